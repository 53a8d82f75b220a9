// Reads JSON event by event, without recursion and without building a tree.
#ifndef HOIST_DAEMON_MODEL_JSON_READER_H_
#define HOIST_DAEMON_MODEL_JSON_READER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace hoistd {

// What happens in a document. Each returns OK to go on; the first error ends
// the reading and is what ReadJson returns.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual absl::Status OnBeginObject() = 0;
  virtual absl::Status OnKey(std::string key) = 0;
  virtual absl::Status OnEndObject() = 0;
  virtual absl::Status OnBeginArray() = 0;
  virtual absl::Status OnEndArray() = 0;
  virtual absl::Status OnString(std::string value) = 0;
  // A non-negative integer that fits.
  virtual absl::Status OnUnsigned(uint64_t value) = 0;
  // null, true, false, a negative number or one that is no integer.
  virtual absl::Status OnOther(absl::string_view what) = 0;
};

// InvalidArgument: not JSON; says at which byte.
absl::Status ReadJson(absl::string_view json, JsonEvents& events);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_JSON_READER_H_
