// A device whose memory is host memory that clients map.
#ifndef HOIST_DAEMON_DEVICE_EMULATED_DEVICE_H_
#define HOIST_DAEMON_DEVICE_EMULATED_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/device/emulated_link.h"
#include "daemon/device/slab_table.h"
#include "daemon/terms/device.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct EmulatedDeviceOptions {
  DeviceIndex index;
  // With the index, decides the uuid, so that it stays over restarts.
  std::string pool = "emulated";
  uint64_t total_bytes = 0;  // Slabs together never exceed it. Not 0.
  uint64_t span_bytes = 0;   // 0: four times total_bytes.
  // Each way; 0: as fast as memory goes.
  uint64_t link_bytes_per_second = 0;
  absl::Duration link_latency = absl::ZeroDuration();
  const Clock* clock = nullptr;  // nullptr: CLOCK_MONOTONIC. Outlives it.
};

// A shipped choice, not a test double: the workers of a host without a GPU
// share one copy of the weights through it. Slabs are memfds, side by side in
// one reserved range; a client gets a descriptor that maps for reading only.
//
// Threads:  thread-safe. Each stream has one thread, which it joins.
// Owns:     the slabs' memory; a client's mapping keeps it alive for longer.
// Bounds:   a stream's queue is as long as its owner makes it.
class EmulatedDevice final : public Device {
 public:
  // Slabs' sizes and places are multiples of it, as those of CUDA's slabs are,
  // so that policy sees the same shapes; huge pages fit, too.
  static constexpr uint64_t kGranularity = uint64_t{2} << 20;

  // InvalidArgument: total or span is 0 or not a multiple of the granularity.
  static absl::StatusOr<std::unique_ptr<EmulatedDevice>> Create(
      const EmulatedDeviceOptions& options);

  const DeviceInfo& info() const override { return info_; }
  absl::Status CreateSlab(const SlabSpec& spec) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status AdoptSlab(const SlabSpec& spec, hoist::UniqueFd fd) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status DestroySlab(SlabId id) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<SlabShare> Share(SlabId id) const override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RegisterHost(std::span<std::byte> memory) override;
  absl::Status UnregisterHost(std::span<std::byte> memory) override;
  absl::StatusOr<std::unique_ptr<CopyStream>> CreateStream() override;

 private:
  friend class EmulatedStream;

  struct SlabFds {
    hoist::UniqueFd original;
    hoist::UniqueFd read_only;
  };

  EmulatedDevice(const EmulatedDeviceOptions& options, hoist::Mapping span);

  absl::Status AddSlab(const SlabSpec& spec, hoist::UniqueFd original)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the memory, unless `original` is that.
  absl::StatusOr<SlabFds> Place(const SlabSpec& spec, hoist::UniqueFd original);
  // The address of a range that lies in slabs; InvalidArgument if it does not.
  absl::StatusOr<std::byte*> Range(uint64_t offset, uint64_t bytes) const
      ABSL_LOCKS_EXCLUDED(mu_);

  const MonotonicClock monotonic_;
  const Clock& clock_;
  DeviceInfo info_;
  EmulatedLink in_;
  EmulatedLink out_;
  hoist::Mapping span_;    // Reserved with room to align base_.
  std::byte* const base_;  // The span's address: a multiple of kGranularity.
  mutable absl::Mutex mu_;
  // A slab is booked in slabs_ before it has memory, and until it has none.
  SlabTable slabs_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<SlabId, SlabFds> fds_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_EMULATED_DEVICE_H_
