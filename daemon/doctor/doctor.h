#ifndef HOIST_DAEMON_DOCTOR_DOCTOR_H_
#define HOIST_DAEMON_DOCTOR_DOCTOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/doctor/machine.h"
#include "daemon/types/device.h"
#include "daemon/types/finding.h"
#include "daemon/types/huge_pages.h"
#include "daemon/types/io_engine.h"

namespace hoistd {

// hoistd's own state.
struct SelfKnowledge {
  std::vector<DeviceInfo> devices;  // Served ones, in-place memory too.
  std::string no_in_place;          // Why there is no in-place memory, or "".
  std::string gpu_on_board;  // A GPU that is not used; "": there is none.
  IoInfo io;
  bool keeps = false;  // Its state survives its death.
  uint64_t host_pool_bytes = 0;
  uint64_t pageable_bytes = 0;              // host.pageable.
  uint64_t pageable_made_bytes = 0;         // Of them, taken.
  std::optional<uint64_t> available_bytes;  // Memory to be had; if known.
  PageKind host_pool_pages = PageKind::kSmall;
  PageKind best_pages = PageKind::kHugetlb;  // host.huge_pages.
  HugePages huge_pages;                      // The kernel's, now.
};

// One finding per check, good ones too, in a fixed order.
std::vector<Finding> Examine(const Machine& machine, const SelfKnowledge& self);

}  // namespace hoistd

#endif  // HOIST_DAEMON_DOCTOR_DOCTOR_H_
