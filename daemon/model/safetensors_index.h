// model.safetensors.index.json: which shard holds which tensor.
#ifndef HOIST_DAEMON_MODEL_SAFETENSORS_INDEX_H_
#define HOIST_DAEMON_MODEL_SAFETENSORS_INDEX_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hoistd {

inline constexpr uint64_t kMaxSafetensorsIndexBytes = 100'000'000;

struct SafetensorsIndex {
  std::map<std::string, std::string> shard_of;  // By tensor.
};

// InvalidArgument: no weight_map or two, a tensor there twice, or a shard that
// is not a plain file name (an index must not point out of its folder).
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view json);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_SAFETENSORS_INDEX_H_
