// What every test of the suite stands on: one device, and peers beside it.
#ifndef HOIST_TESTS_CONFORMANCE_DEVICE_RIG_H_
#define HOIST_TESTS_CONFORMANCE_DEVICE_RIG_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/terms/device.h"
#include "gtest/gtest.h"
#include "tests/conformance/device/peer.h"

namespace hoistd::testing {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kSlabBytes = 4 * kMiB;

// Runs for each backing; skips those that this host has no device for. One
// device a kind serves the whole program, since a CUDA context takes 0.2 s.
class DeviceConformance : public ::testing::TestWithParam<Backing> {
 protected:
  void SetUp() override;
  void TearDown() override;

  Device& device() { return *device_; }
  // A slab of the backing under test at `offset`; gone after the test.
  SlabSpec Spec(uint64_t offset, uint64_t bytes = kSlabBytes);
  absl::StatusOr<SlabSpec> MakeSlab(uint64_t offset,
                                    uint64_t bytes = kSlabBytes);

  // A worker process with the device's map.
  absl::StatusOr<std::unique_ptr<Peer>> SpawnWorker();
  absl::Status Import(Peer& worker, const SlabSpec& spec);

  // Copies and waits.
  absl::Status CopyIn(uint64_t to, std::span<const std::byte> from);
  absl::StatusOr<std::vector<std::byte>> CopyOut(uint64_t from, uint64_t bytes);

  // Until all that is queued is done.
  static absl::Status WaitFor(CopyStream& stream);
  std::string kind() const;
  std::string MapCommand() const;
  // The GPU's free memory; 0 if emulated.
  uint64_t FreeDeviceBytes() const;

 private:
  Device* device_ = nullptr;
  std::vector<SlabId> made_;
};

std::string BackingName(const ::testing::TestParamInfo<Backing>& info);

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_CONFORMANCE_DEVICE_RIG_H_
