#ifndef HOIST_DAEMON_CORE_RESTORED_EXTENT_H_
#define HOIST_DAEMON_CORE_RESTORED_EXTENT_H_

#include <cstdint>
#include <optional>

#include "daemon/terms/ids.h"

namespace hoistd {

// What the last hoistd left on the host, while the pool is not up there.
struct RestoredExtent {
  uint64_t bytes = 0;
  std::optional<GroupKey> image;
  // Else a part:
  OwnerId owner;
  TransferId filler;  // Which nobody carries out.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_RESTORED_EXTENT_H_
