// The subject and the findings of a check of one published group.
#ifndef HOIST_DAEMON_CORE_GROUP_CHECK_H_
#define HOIST_DAEMON_CORE_GROUP_CHECK_H_

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/requests.h"
#include "daemon/types/ids.h"

namespace hoistd {

// A copy on a device: it is read; if damaged, perhaps reloaded at its address
// and read again.
struct DeviceCheck {
  Place place;
  std::optional<TransferId> transfer;  // The last one started.
  bool repaired = false;               // Loaded again.
  absl::Status status;                 // DataLoss: damaged.
};

struct GroupCheck {
  RequestId request;
  bool repair = false;
  int open = 0;  // Unfinished transfers and repairs.
  std::optional<TransferId> host;
  std::optional<TransferId> pageable;
  std::optional<TransferId> disk;
  absl::Status host_status;
  absl::Status pageable_status;
  absl::Status disk_status;
  std::vector<DeviceCheck> devices;
  CheckedGroup result;

  // nullptr: the transfer is none of this check's.
  DeviceCheck* Find(TransferId transfer) {
    const auto found = std::ranges::find(devices, std::optional(transfer),
                                         &DeviceCheck::transfer);
    return found == devices.end() ? nullptr : &*found;
  }
  DeviceCheck* Find(const Place& place) {
    const auto found = std::ranges::find(devices, place, &DeviceCheck::place);
    return found == devices.end() ? nullptr : &*found;
  }
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_GROUP_CHECK_H_
