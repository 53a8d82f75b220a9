// A device in memory of this process, whose streams go on when the world says
// so.
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

// What the world is told, before it happens.
struct SimDeviceEvents {
  // Memory of the device that is written.
  std::function<void(DeviceIndex, uint64_t offset, uint64_t bytes)> on_write;
  std::function<void(DeviceIndex, const SlabSpec&)> on_destroy;
};

class SimStream;

// It outlives the hoistds that use it, one after another. Copies take time and
// end in the order of their stream. While one is under way, half of its bytes
// are there and the others are of nobody; its source is read when it begins and
// when it ends.
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
  // Whether any stream has something to do.
  bool busy() const;
  // The first that has begins or ends the next of it.
  void Step();
  // Whether a copy that is queued reads some of it.
  bool Reads(std::span<const std::byte> host) const;
  const std::map<SlabId, SlabSpec>& slabs() const { return slabs_; }

  // The process that uses it dies: of what was queued a part is done, and of
  // one copy perhaps a half.
  void Reap(std::mt19937_64& random);
  // Another one begins: it has no slabs until it adopts or makes some.
  void Begin() { adopted_.clear(); }
  // It has begun: slabs of the last one that it did not adopt go.
  void DropOthers();
  // Slabs may have the numbers of earlier ones from now on.
  void ForgetNumbers() { numbers_.clear(); }

 private:
  friend class SimStream;

  void Erase(std::map<SlabId, SlabSpec>::iterator slab);
  // All of it lies in slabs.
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
