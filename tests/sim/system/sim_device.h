// A device in this process's memory, whose streams advance at the world's
// command.
#ifndef HOIST_TESTS_SIM_SYSTEM_SIM_DEVICE_H_
#define HOIST_TESTS_SIM_SYSTEM_SIM_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "daemon/types/device.h"
#include "tests/sim/system/mutant.h"
#include "tests/sim/system/sim_threads.h"

namespace hoistd::sim {

struct SimDeviceOptions {
  DeviceIndex index;
  DeviceKind kind = DeviceKind::kEmulated;
  Backing backing = Backing::kMemfd;
  uint64_t total_bytes = 0;
  uint64_t granularity = 0;
  uint64_t span_bytes = 0;
  bool keeps = false;  // Its slabs outlive who made them.
};

// Events, reported to the world before they happen.
struct SimDeviceEvents {
  // A write to device memory.
  std::function<void(DeviceIndex, uint64_t offset, uint64_t bytes)> on_write;
  std::function<void(DeviceIndex, const SlabSpec&)> on_destroy;
};

class SimStream;

// Outlives the hoistds that use it in turn. Copies take time and end in the
// order of their stream. While one is in flight, half of its bytes have arrived
// and the others are garbage; its source is read at its beginning and at its
// end.
//
// Threads:  one.
class SimDevice final : public Device {
 public:
  SimDevice(const SimDeviceOptions& options, SimClock& clock,
            SimDeviceEvents events);
  ~SimDevice() override;

  const DeviceInfo& info() const override { return info_; }
  absl::Status CreateSlab(const SlabSpec& spec) override;
  absl::Status AdoptSlab(const SlabSpec& spec, hoist::UniqueFd fd) override;
  absl::Status DestroySlab(SlabId id) override;
  absl::Status ZeroSlab(SlabId id) override;
  absl::StatusOr<SlabShare> Share(SlabId id) const override;
  absl::Status RegisterHost(std::span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::Status UnregisterHost(std::span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<CopyStream>> CreateStream() override;

  // --- For the world ------------------------------------------------------

  const std::byte* At(uint64_t offset) const { return &memory_[offset]; }
  std::span<std::byte> span() { return memory_; }
  // True: some stream has work.
  bool busy() const;
  // Begins or ends the next work of the first busy stream.
  void Step();
  // True: a queued copy reads some of it.
  bool Reads(std::span<const std::byte> host) const;
  const std::map<SlabId, SlabSpec>& slabs() const { return slabs_; }

  // Its process dies: part of the queued work is done, and one copy perhaps
  // half.
  void Reap(std::mt19937_64& random);
  // The next process begins: it has no slabs until it adopts or makes some.
  void Begin() { adopted_.clear(); }
  // That process has started: the last one's slabs that it did not adopt end.
  void DropOthers();
  // From now on slabs may reuse earlier numbers.
  void ForgetNumbers() { numbers_.clear(); }

 private:
  friend class SimStream;

  void Erase(std::map<SlabId, SlabSpec>::iterator slab);
  // True: all of it lies in slabs.
  bool Covered(uint64_t offset, uint64_t bytes) const;

  DeviceInfo info_;
  SimClock& clock_;
  const SimDeviceEvents events_;
  std::vector<std::byte> memory_;
  std::map<SlabId, SlabSpec> slabs_;
  std::map<SlabId, hoist::UniqueFd> kept_;  // What says which slab it is.
  std::set<SlabId> adopted_;                // By who uses it now; or made.
  std::set<SlabId> numbers_;                // That any slab ever had.
  const bool keeps_;
  std::vector<SimStream*> streams_;
};

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SIM_DEVICE_H_
