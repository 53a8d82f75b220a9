// NVIDIA GPUs, through the driver API that is loaded at run time.
#ifndef HOIST_DAEMON_DEVICE_CUDA_DEVICE_H_
#define HOIST_DAEMON_DEVICE_CUDA_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/device/cuda_host_ranges.h"
#include "daemon/device/slab_table.h"
#include "daemon/types/device.h"
#include "hoist/shared/cuda_driver.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct CudaDeviceOptions {
  // The default kind of slab: kVmm or kIpc. A device makes both kinds.
  Backing backing = Backing::kVmm;
  // The first GPU's index; the others' follow.
  DeviceIndex first_index;
  // Address space for slabs, of each GPU. 0: four times its memory.
  uint64_t span_bytes = 0;
};

// Every GPU that is visible to this process, in the driver's order. Empty if
// there is no driver or no GPU.
// FailedPrecondition: the driver is broken or too old, or a GPU cannot share
// memory as `backing` requires; the message names the remedy.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> FindCudaDevices(
    const CudaDeviceOptions& options);

// The same with a driver that is loaded already.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> FindCudaDevices(
    const CudaDeviceOptions& options, const hoist::cuda::Driver& driver);

// One GPU, in its primary context. VMM slabs lie side by side in one reserved
// range of addresses. Each has one descriptor, which is made with it, since an
// imported slab cannot be exported again. The driver places IPC slabs; any
// process that opens one can write to it, and every worker must close it before
// it is destroyed.
//
// Threads:  thread-safe; no driver call under its lock. Each call makes the
//           context current on its thread.
// Owns:     the slabs, its registrations of host memory, and one reference to
//           the primary context.
class CudaDevice final : public Device {
 public:
  // `ordinal` is the driver's. `index` overrides options.first_index.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(
      const hoist::cuda::Driver& driver, int ordinal, DeviceIndex index,
      const CudaDeviceOptions& options, std::shared_ptr<CudaHostRanges> host);
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice() override;

  const DeviceInfo& info() const override { return info_; }
  absl::Status CreateSlab(const SlabSpec& spec) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AdoptSlab(const SlabSpec& spec, hoist::UniqueFd fd) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status DestroySlab(SlabId id) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ZeroSlab(SlabId id) override;
  absl::StatusOr<SlabShare> Share(SlabId id) const override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RegisterHost(std::span<std::byte> memory) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status UnregisterHost(std::span<std::byte> memory) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::unique_ptr<CopyStream>> CreateStream() override;
  absl::StatusOr<uint64_t> OthersBytes() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class CudaStream;

  struct Memory {
    Backing backing = Backing::kVmm;
    hoist::cuda::Address address = 0;
    uint64_t bytes = 0;
    hoist::UniqueFd fd;                       // kVmm: the original.
    std::array<uint8_t, 64> ipc_handle = {};  // kIpc.
  };

  CudaDevice(const hoist::cuda::Driver& driver, hoist::cuda::DeviceId device,
             hoist::cuda::Context context, DeviceInfo info,
             hoist::cuda::Address base, std::shared_ptr<CudaHostRanges> host);

  absl::Status Probe();
  absl::Status CheckBacking(Backing backing) const;
  absl::Status AddSlab(const SlabSpec& spec,
                       absl::FunctionRef<absl::StatusOr<Memory>()> make)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Memory> MakeCleared(const SlabSpec& spec);
  absl::StatusOr<Memory> MakeVmm(const SlabSpec& spec);
  absl::StatusOr<Memory> ImportVmm(const SlabSpec& spec, hoist::UniqueFd fd);
  // Takes the allocation's own reference.
  absl::Status MapVmm(const SlabSpec& spec, hoist::cuda::Allocation allocation);
  absl::StatusOr<Memory> MakeIpc(const SlabSpec& spec);
  absl::Status Zero(const Memory& memory);
  absl::Status FreeMemory(const Memory& memory);
  absl::Status Explain(const absl::Status& status, const SlabSpec& spec) const;
  // The address of a range. InvalidArgument: part of it is in no slab.
  absl::StatusOr<hoist::cuda::Address> Range(uint64_t offset,
                                             uint64_t bytes) const
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Check(hoist::cuda::Error error, absl::string_view what) const;

  const hoist::cuda::Driver driver_;
  const hoist::cuda::DeviceId device_;
  const hoist::cuda::Context context_;
  DeviceInfo info_;
  const hoist::cuda::Address base_;  // 0: this GPU has no VMM.
  // Shared by the devices that were found together: registering host memory
  // for one pins it for all.
  const std::shared_ptr<CudaHostRanges> host_;
  mutable absl::Mutex mu_;
  // A slab is in slabs_ from before it has memory until it has none.
  SlabTable slabs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<SlabId, Memory> memory_ ABSL_GUARDED_BY(mu_);
  // Bytes from each start; undone on destruction if the caller did not.
  absl::flat_hash_map<std::byte*, size_t> registered_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_CUDA_DEVICE_H_
