// The fixture of the suite: one device, and peer processes.
#ifndef HOIST_TESTS_CONFORMANCE_DEVICE_RIG_H_
#define HOIST_TESTS_CONFORMANCE_DEVICE_RIG_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/device/in_place_device.h"
#include "daemon/types/device.h"
#include "gtest/gtest.h"
#include "tests/conformance/device/peer.h"

namespace hoistd::testing {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kSlabBytes = 4 * kMiB;

// A kind of device, and where its slabs are.
struct DeviceCase {
  Backing backing;
  bool in_place = false;  // Host memory, which devices of that kind read.
};
inline constexpr DeviceCase kDeviceCases[] = {{Backing::kMemfd},
                                              {Backing::kVmm},
                                              {Backing::kIpc},
                                              {Backing::kMemfd, true},
                                              {Backing::kVmm, true}};

// Runs for each case; skips cases without a device on this host. Each case has
// one device for the whole program, since a CUDA context takes 0.2 s.
class DeviceConformance : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override;
  void TearDown() override;

  Device& device() { return *device_; }
  Backing backing() const { return GetParam().backing; }
  // In-place memory for the devices under test. nullptr: none; the reason was
  // reported.
  InPlaceDevice* InPlaceBeside();
  // A slab of the backing under test at `offset`; gone after the test.
  SlabSpec Spec(uint64_t offset, uint64_t bytes = kSlabBytes) const;
  absl::StatusOr<SlabSpec> MakeSlab(uint64_t offset,
                                    uint64_t bytes = kSlabBytes);

  // A worker process with the device's map.
  absl::StatusOr<std::unique_ptr<Peer>> SpawnWorker();
  absl::Status Import(Peer& worker, const SlabSpec& spec);
  // One that lies on `device`.
  static absl::Status Import(Peer& worker, const SlabSpec& spec,
                             const Device& device);

  // Copies and waits.
  absl::Status CopyIn(uint64_t to, std::span<const std::byte> from);
  static absl::Status CopyIn(Device& device, uint64_t to,
                             std::span<const std::byte> from);
  absl::StatusOr<std::vector<std::byte>> CopyOut(uint64_t from, uint64_t bytes);

  // Until all that is queued is done.
  static absl::Status WaitFor(CopyStream& stream);
  std::string kind() const;
  // For a peer that is the device's daemon.
  std::string DeviceCommand() const;
  std::string MapCommand() const;
  // The GPU's free memory; 0 if emulated.
  uint64_t FreeDeviceBytes() const;

 private:
  Device* device_ = nullptr;
  std::vector<SlabId> made_;
};

std::string CaseName(const ::testing::TestParamInfo<DeviceCase>& info);

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_CONFORMANCE_DEVICE_RIG_H_
