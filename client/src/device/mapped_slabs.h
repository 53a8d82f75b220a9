// An arena's memfds, mapped by its worker.
#ifndef HOIST_CLIENT_SRC_DEVICE_MAPPED_SLABS_H_
#define HOIST_CLIENT_SRC_DEVICE_MAPPED_SLABS_H_

#include <vector>

#include "client/src/device/device_map.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/status.h"

namespace hoist {

// Maps them side by side, readable and writable, but not in the child of a
// fork: the memory is free when this process ends. InvalidArgument: one is no
// memfd of its bytes.
Result<Mapping> MapSlabs(const std::vector<SlabImport>& slabs);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_DEVICE_MAPPED_SLABS_H_
