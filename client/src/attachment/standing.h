// What an attachment has of one hoistd.
#ifndef HOIST_CLIENT_SRC_ATTACHMENT_STANDING_H_
#define HOIST_CLIENT_SRC_ATTACHMENT_STANDING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "client/src/attachment/attachment.h"

namespace hoist {

// Threads:  the owner's.
struct Attachment::Standing {
  Standing() = default;
  Standing(const Standing&) = delete;
  Standing& operator=(const Standing&) = delete;
  ~Standing() {
    GiveBack();
    if (session != nullptr) session->Close();
  }
  // Waits for the GPU.
  void GiveBack() {
    plan.reset();
    residents.clear();
  }
  // nullptr: the plan's business.
  Lease* Resident(uint32_t group) const {
    const auto found = residents.find(group);
    return found == residents.end() ? nullptr : found->second.get();
  }
  bool on_cpu(uint32_t device) const {
    return session->FindDevice(device)->kind == DeviceKind::kEmulated;
  }

  std::shared_ptr<Session> session;
  HeldModel model;
  std::vector<uint32_t> number;  // Here, of the first model's groups.
  std::map<uint32_t, std::unique_ptr<Lease>> residents;  // By first number.
  std::unique_ptr<Plan> plan;
  uint64_t generations = 0;  // Of earlier plans.
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_ATTACHMENT_STANDING_H_
