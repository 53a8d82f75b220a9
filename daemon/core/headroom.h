// Headroom: gives device memory back when other programs need it.
#ifndef HOIST_DAEMON_CORE_HEADROOM_H_
#define HOIST_DAEMON_CORE_HEADROOM_H_

#include <cstdint>

#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/reclaim.h"
#include "daemon/core/space.h"
#include "daemon/types/ids.h"

namespace hoistd {

// A device whose slabs exceed its capacity gives back, in this order: empty
// slabs, slabs of the least valuable idle copies, and slabs that idle workers
// close. Then plans that give way are asked for the rest. Leased and pinned
// copies and plans with a budget of their own stay, and so may the excess.
//
// Threads:  one at a time.
// Owns:     nothing; borrows all, which must outlive this object.
class Headroom {
 public:
  Headroom(Space& space, Reclaim& reclaim) : space_(space), reclaim_(reclaim) {}
  Headroom(const Headroom&) = delete;
  Headroom& operator=(const Headroom&) = delete;

  // Takes the next step. To be called when space may have changed; cheap if no
  // device has an excess.
  void Keep(absl::Time now, Effects& effects);

 private:
  void Keep(DeviceIndex device, absl::Time now, Effects& effects);

  Space& space_;
  Reclaim& reclaim_;
  uint64_t looked_at_ = 0;  // The space's epoch.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_HEADROOM_H_
