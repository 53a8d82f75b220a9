// Slabs that are memfds.
#ifndef HOIST_DAEMON_DEVICE_MEMFD_MEMORY_H_
#define HOIST_DAEMON_DEVICE_MEMFD_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/device/slab_memory.h"
#include "hoist/shared/mapping.h"

namespace hoistd {

// Workers get a descriptor that maps read-only. The file's mode keeps other
// uids from reopening the memory writable. hoistd's own uid and root can bypass
// that.
//
// Threads:  as SlabMemory says.
class MemfdMemory final : public SlabMemory {
 public:
  static absl::StatusOr<std::unique_ptr<MemfdMemory>> Create(
      uint64_t span_bytes);

  Backing backing() const override { return Backing::kMemfd; }
  uint32_t NumaNodeOf(const SlabSpec&) const override { return 0; }
  std::byte* base() const override { return base_; }
  absl::StatusOr<Fds> Place(const SlabSpec& spec,
                            hoist::UniqueFd original) override;
  absl::Status Unplace(const SlabSpec& spec) override;
  absl::Status Zero(const SlabSpec& spec, int original) override;

 private:
  explicit MemfdMemory(hoist::Mapping span);

  size_t PlaceOf(const SlabSpec& spec) const;

  hoist::Mapping span_;    // Reserved with room to align base_.
  std::byte* const base_;  // The span's address.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_MEMFD_MEMORY_H_
