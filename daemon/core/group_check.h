// What a check of one published group is about, and has found.
#ifndef HOIST_DAEMON_CORE_GROUP_CHECK_H_
#define HOIST_DAEMON_CORE_GROUP_CHECK_H_

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/requests.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// A copy on a device: read, and where it is wrong perhaps loaded again where it
// lies, and then read again.
struct DeviceCheck {
  Place place;
  std::optional<TransferId> transfer;  // The last that was started.
  bool mended = false;                 // Loaded again.
  absl::Status status;                 // DataLoss: it is wrong.
};

struct GroupCheck {
  RequestId request;
  bool repair = false;
  int open = 0;  // Transfers and mends that are not over.
  std::optional<TransferId> host;
  std::optional<TransferId> disk;
  absl::Status host_status;
  absl::Status disk_status;
  std::vector<DeviceCheck> devices;
  CheckedGroup result;

  // nullptr: it is none of this check's.
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
