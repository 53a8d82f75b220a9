// A device whose memory is host memory that this process maps.
#ifndef HOIST_DAEMON_DEVICE_MAPPED_DEVICE_H_
#define HOIST_DAEMON_DEVICE_MAPPED_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/device/emulated_link.h"
#include "daemon/device/slab_memory.h"
#include "daemon/device/slab_table.h"
#include "daemon/types/device.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct MappedDeviceOptions {
  DeviceInfo info;  // Its backing is the memory's; its link's rate, each way.
  std::unique_ptr<SlabMemory> memory;
  absl::Duration link_latency = absl::ZeroDuration();
  const Clock* clock = nullptr;  // nullptr: CLOCK_MONOTONIC. Outlives it.
};

// Slabs lie in one range of addresses, and the CPU copies to and from them.
//
// Threads:  thread-safe. Each stream has one thread, which it joins.
// Owns:     the slabs' memory; a client's mapping keeps it alive for longer.
// Bounds:   slabs together never exceed info().total_bytes. A stream's queue is
//           as long as its owner makes it.
class MappedDevice : public Device {
 public:
  // Slabs' sizes and places are multiples of it, as those of CUDA's slabs are,
  // so that policy sees the same shapes; huge pages fit, too.
  static constexpr uint64_t kGranularity = uint64_t{2} << 20;

  MappedDevice(const MappedDevice&) = delete;
  MappedDevice& operator=(const MappedDevice&) = delete;
  ~MappedDevice() override;

  const DeviceInfo& info() const override { return info_; }
  absl::Status CreateSlab(const SlabSpec& spec) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AdoptSlab(const SlabSpec& spec, hoist::UniqueFd fd) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status DestroySlab(SlabId id) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ZeroSlab(SlabId id) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<SlabShare> Share(SlabId id) const override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RegisterHost(std::span<std::byte> memory) override;
  absl::Status UnregisterHost(std::span<std::byte> memory) override;
  absl::StatusOr<std::unique_ptr<CopyStream>> CreateStream() override;

  // The whole span. Only addresses in slabs may be accessed.
  std::span<std::byte> span() const {
    return {memory_->base(), info_.span_bytes};
  }

 protected:
  // InvalidArgument: total or span is 0 or not a multiple of the granularity.
  static absl::Status CheckSizes(const DeviceInfo& info);
  explicit MappedDevice(MappedDeviceOptions options);

 private:
  friend class MappedStream;

  absl::Status AddSlab(const SlabSpec& spec, hoist::UniqueFd original)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The address of a range. InvalidArgument: part of it is in no slab.
  absl::StatusOr<std::byte*> Range(uint64_t offset, uint64_t bytes) const
      ABSL_LOCKS_EXCLUDED(mu_);

  const MonotonicClock monotonic_;
  const Clock& clock_;
  const std::unique_ptr<SlabMemory> memory_;
  const DeviceInfo info_;
  EmulatedLink in_;
  EmulatedLink out_;
  mutable absl::Mutex mu_;
  // A slab is in slabs_ from before it has memory until it has none.
  SlabTable slabs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<SlabId, SlabMemory::Fds> fds_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_MAPPED_DEVICE_H_
