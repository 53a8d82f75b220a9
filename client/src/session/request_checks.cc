#include "client/src/session/request_checks.h"

#include "hoist/c/model.h"

namespace hoist {

Status CheckDevice(const Session& session, uint32_t device) {
  if (session.FindDevice(device) != nullptr) return Status();
  return Status(Code::kNotFound, "hoistd has no device " +
                                     std::to_string(device) + "; it has " +
                                     std::to_string(session.devices().size()));
}

Status CheckShare(uint32_t weight, int32_t priority) {
  constexpr uint32_t kMaxWeight = 1000;
  constexpr int32_t kMaxPriority = 10;
  if (weight > kMaxWeight) {
    return Status(Code::kInvalidArgument, "weight " + std::to_string(weight) +
                                              " is not between 1 and 1000");
  }
  if (priority < -kMaxPriority || priority > kMaxPriority) {
    return Status(
        Code::kInvalidArgument,
        "priority " + std::to_string(priority) + " is not between -10 and 10");
  }
  return Status();
}

Status CheckReaders(int readers) {
  if (readers >= HOIST_READERS_DEFAULT && readers <= HOIST_READERS_EVERYONE) {
    return Status();
  }
  return Status(Code::kInvalidArgument, "readers is none of HOIST_READERS_*");
}

}  // namespace hoist
