// Slabs of the driver's own host memory, which GPUs read, by descriptor.
#ifndef HOIST_DAEMON_DEVICE_VMM_HOST_MEMORY_H_
#define HOIST_DAEMON_DEVICE_VMM_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/slab_memory.h"
#include "hoist/shared/cuda_driver.h"

namespace hoistd {

// VMM allocations on the NUMA nodes of the GPUs, slabs in turn: pinned from the
// start, and alive for as long as anybody has the descriptor. The driver zeroes
// them, which takes 0.3 ms a MiB.
//
// Threads:  as SlabMemory says.
// Owns:     a reference to the first GPU's context, in which it calls.
class VmmHostMemory final : public SlabMemory {
 public:
  // Unimplemented: these GPUs, or this driver, have no such memory; it was
  // tried.
  static absl::StatusOr<std::unique_ptr<VmmHostMemory>> Create(
      const hoist::cuda::Driver& driver,
      std::vector<hoist::cuda::DeviceId> gpus, uint64_t span_bytes);
  VmmHostMemory(const VmmHostMemory&) = delete;
  VmmHostMemory& operator=(const VmmHostMemory&) = delete;
  ~VmmHostMemory() override;

  Backing backing() const override { return Backing::kVmm; }
  uint32_t NumaNodeOf(const SlabSpec& spec) const override {
    return static_cast<uint32_t>(NodeOf(spec));
  }
  std::byte* base() const override {
    return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(base_));
  }
  absl::StatusOr<Fds> Place(const SlabSpec& spec,
                            hoist::UniqueFd original) override;
  absl::Status Unplace(const SlabSpec& spec) override;
  absl::Status Zero(const SlabSpec& spec, int original) override;

 private:
  VmmHostMemory(const hoist::cuda::Driver& driver,
                std::vector<hoist::cuda::DeviceId> gpus,
                hoist::cuda::Context context, uint64_t span_bytes);

  absl::Status Reserve();
  absl::Status Probe();
  int NodeOf(const SlabSpec& spec) const;
  absl::StatusOr<hoist::cuda::Allocation> Make(const SlabSpec& spec, Fds& fds);
  // Gives the CPU and the GPUs access.
  absl::Status Open(const SlabSpec& spec) const;
  absl::Status Check(hoist::cuda::Error error, const char* what) const;

  const hoist::cuda::Driver driver_;
  const std::vector<hoist::cuda::DeviceId> gpus_;
  const hoist::cuda::Context context_;
  const uint64_t span_bytes_;
  std::vector<int> nodes_;  // Of NUMA, each once.
  hoist::cuda::Address base_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_VMM_HOST_MEMORY_H_
