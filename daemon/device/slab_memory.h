// Where the slabs of a mapped device have their bytes.
#ifndef HOIST_DAEMON_DEVICE_SLAB_MEMORY_H_
#define HOIST_DAEMON_DEVICE_SLAB_MEMORY_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/terms/device.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// One reserved range of addresses, in which slabs get memory that other
// processes can open.
//
// Threads:  thread-safe for slabs that do not lie over each other.
// Owns:     the range. What was placed in it is unplaced before it goes.
class SlabMemory {
 public:
  struct Fds {
    hoist::UniqueFd original;  // What Place takes, in another process too.
    hoist::UniqueFd shared;    // What others open; unset: the original.
  };

  virtual ~SlabMemory() = default;

  virtual Backing backing() const = 0;
  // Of the range; a multiple of the granularity.
  virtual std::byte* base() const = 0;
  // Memory for the slab, zeroed, which the CPU reads and writes at its place;
  // or that which `original` holds, as it is.
  // InvalidArgument: `original` is no slab of these bytes. ResourceExhausted:
  // there is no memory left.
  virtual absl::StatusOr<Fds> Place(const SlabSpec& spec,
                                    hoist::UniqueFd original) = 0;
  virtual absl::Status Unplace(const SlabSpec& spec) = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_SLAB_MEMORY_H_
