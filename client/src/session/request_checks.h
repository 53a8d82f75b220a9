// Checks of what callers ask for, before hoistd is asked.
#ifndef HOIST_CLIENT_SRC_SESSION_REQUEST_CHECKS_H_
#define HOIST_CLIENT_SRC_SESSION_REQUEST_CHECKS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "client/src/session/session.h"
#include "hoist/shared/status.h"

namespace hoist {

inline Status Missing(std::string_view what) {
  return Status(Code::kInvalidArgument,
                std::string(what) + " must not be NULL");
}

// NotFound: hoistd has no such device.
Status CheckDevice(const Session& session, uint32_t device);
// InvalidArgument: a weight or priority out of range.
Status CheckShare(uint32_t weight, int32_t priority);
// Of a plan or a permit.
template <typename Options>
Status CheckOptions(const Session& session, const Options& options) {
  Status device = CheckDevice(session, options.device);
  return device.ok() ? CheckShare(options.weight, options.priority) : device;
}
// InvalidArgument: none of HOIST_READERS_*.
Status CheckReaders(int readers);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_SESSION_REQUEST_CHECKS_H_
