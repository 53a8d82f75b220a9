#ifndef HOIST_CLIENT_SRC_BASE_ALLOCATED_MEMFD_H_
#define HOIST_CLIENT_SRC_BASE_ALLOCATED_MEMFD_H_

#include <cstdint>
#include <string>

#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// A new memfd with memory for all its `bytes`, so that no write through a
// mapping ends in SIGBUS. ResourceExhausted: a limit, of memory or of this
// process; the text names the group.
Result<UniqueFd> AllocatedMemfd(const char* name, uint64_t bytes,
                                const std::string& group);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_BASE_ALLOCATED_MEMFD_H_
