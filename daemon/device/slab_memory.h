// The memory of a mapped device's slabs.
#ifndef HOIST_DAEMON_DEVICE_SLAB_MEMORY_H_
#define HOIST_DAEMON_DEVICE_SLAB_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/types/device.h"
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
    // What others open, for reading; unset, as of a writable slab: the
    // original.
    hoist::UniqueFd shared;
  };

  virtual ~SlabMemory() = default;

  virtual Backing backing() const = 0;
  // On which the slab's memory lies, as the driver numbers them; or 0.
  virtual uint32_t NumaNodeOf(const SlabSpec& spec) const = 0;
  // Of the range; a multiple of the granularity.
  virtual std::byte* base() const = 0;
  // Memory for the slab, zeroed, which the CPU reads and writes at its place;
  // or that which `original` holds, as it is.
  // InvalidArgument: `original` is no slab of these bytes. ResourceExhausted:
  // there is no memory left.
  virtual absl::StatusOr<Fds> Place(const SlabSpec& spec,
                                    hoist::UniqueFd original) = 0;
  virtual absl::Status Unplace(const SlabSpec& spec) = 0;
  // What was placed there reads as zeros. `original`: of its Fds.
  virtual absl::Status Zero(const SlabSpec& spec, int original) = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_SLAB_MEMORY_H_
