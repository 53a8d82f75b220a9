// Headroom: gives device memory back when others need it.
#ifndef HOIST_DAEMON_CORE_HEADROOM_H_
#define HOIST_DAEMON_CORE_HEADROOM_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/device_names.h"
#include "daemon/core/effects.h"
#include "daemon/core/pool_bounds.h"
#include "daemon/core/reclaim.h"
#include "daemon/core/requests.h"
#include "daemon/core/space.h"
#include "daemon/types/ids.h"

namespace hoistd {

// A device whose slabs exceed its capacity gives back, in this order: empty
// slabs, slabs of the least valuable idle copies, and slabs that idle workers
// close. Then plans that give way are asked for the rest. Leased and pinned
// copies and plans with a budget of their own stay, and so may the excess.
//
// The capacity is what other programs leave. Beside spares it is at most what
// the pool had when the first of them began, less all of them.
//
// Threads:  one at a time.
// Owns:     the spares. Borrows the rest, which must outlive this object.
// Bounds:   one spare per session and device.
// Restart:  not persistent: a successor's pool is whole.
class Headroom {
 public:
  Headroom(const DeviceNames& names, Space& space, Reclaim& reclaim)
      : names_(names), space_(space), reclaim_(reclaim) {}
  Headroom(const Headroom&) = delete;
  Headroom& operator=(const Headroom&) = delete;

  // What other programs leave of the device.
  void Resize(DeviceIndex device, PoolSize size);
  // Of 0 bytes: ends the session's, and answers.
  // OK: answered once the device has given the bytes back or, at the deadline,
  // with ResourceExhausted; the pool then takes them again. NotFound: no such
  // device. ResourceExhausted: the pool has not so much there.
  // FailedPrecondition: the session waits for a spare there.
  absl::Status Spare(RequestId request, SessionId session,
                     const SpareArgs& args, absl::Time now, Effects& effects);
  // The session is over, with its spares.
  void Leave(SessionId session);
  absl::Time NextDeadline() const;

  // Takes the next step. To be called when space may have changed; cheap if no
  // device has an excess.
  void Keep(absl::Time now, Effects& effects);

 private:
  struct Spared {
    SessionId session;
    uint64_t bytes = 0;
    std::optional<RequestId> request;  // Waits for the bytes.
    absl::Time deadline;               // Its own.
  };
  struct OfDevice {
    std::optional<PoolSize> size;  // Of Resize.
    uint64_t had = 0;              // By the pool, before the spares.
    std::vector<Spared> spares;    // In the order of their requests.

    uint64_t bytes() const;  // Of all spares.
  };

  void Keep(DeviceIndex device, absl::Time now, Effects& effects);
  void Answer(DeviceIndex device, absl::Time now, Effects& effects);
  void Drop(DeviceIndex device, SessionId session);
  void Fit(DeviceIndex device);

  const DeviceNames& names_;
  Space& space_;
  Reclaim& reclaim_;
  std::map<DeviceIndex, OfDevice> devices_;
  uint64_t looked_at_ = 0;  // The space's epoch.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_HEADROOM_H_
