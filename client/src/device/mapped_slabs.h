// An arena's memfds, mapped by its worker.
#ifndef HOIST_CLIENT_SRC_DEVICE_MAPPED_SLABS_H_
#define HOIST_CLIENT_SRC_DEVICE_MAPPED_SLABS_H_

#include <vector>

#include "client/src/device/device_map.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/status.h"

namespace hoist {

// Maps them side by side, readable and writable. The child of a fork does not
// have the mapping, so the memory is free when this process ends.
// InvalidArgument: a slab is not a memfd of its size.
Result<Mapping> MapSlabs(const std::vector<SlabImport>& slabs);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_DEVICE_MAPPED_SLABS_H_
