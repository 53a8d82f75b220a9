// An arena's memfds, where its worker maps them.
#ifndef HOIST_CLIENT_SRC_MAPPED_SLABS_H_
#define HOIST_CLIENT_SRC_MAPPED_SLABS_H_

#include <vector>

#include "client/src/device_map.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/status.h"

namespace hoist {

// Side by side, for reading and writing. The child of a fork has no part in it:
// the memory is back when this process is gone. InvalidArgument: one is no
// memfd of its bytes.
Result<Mapping> MapSlabs(const std::vector<SlabImport>& slabs);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_MAPPED_SLABS_H_
