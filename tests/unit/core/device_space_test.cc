#include "daemon/core/device_space.h"

#include <map>
#include <optional>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_device.h"
#include "tests/support/status_matchers.h"

namespace hoistd {
namespace {

using ::testing::ElementsAre;
using testing::FakeDevice;
using testing::FakeDeviceOptions;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

constexpr uint64_t kGranule = 16;
constexpr uint64_t kSlab = 64;

bool Never(SlabId) { return false; }
bool Always(SlabId) { return true; }
std::optional<double> Worth(OwnerId) { return 1; }

class DeviceSpaceTest : public ::testing::Test {
 protected:
  void Make(uint64_t capacity, uint64_t memory = UINT64_MAX) {
    FakeDeviceOptions options;
    options.granularity = kGranule;
    options.span_bytes = DeviceSpace::SpanFor(capacity, kGranule);
    options.memory_bytes = memory;
    device_.emplace(options);
    space_.emplace(DeviceSpaceOptions{capacity, kSlab}, *device_);
  }
  // The image's offset, which must be had.
  uint64_t Put(Zone zone, uint64_t bytes) {
    const OwnerId owner(++last_);
    const absl::StatusOr<uint64_t> at = space_->Allocate(zone, bytes, owner);
    EXPECT_OK(at);
    if (!at.ok()) return 0;
    EXPECT_TRUE(device_->Covers(*at, bytes));
    EXPECT_LE(device_->bytes(), space_->capacity());
    EXPECT_EQ(device_->bytes(), space_->allocated());
    return *at;
  }

  std::optional<FakeDevice> device_;
  std::optional<DeviceSpace> space_;
  uint64_t last_ = 0;
  const Zone vmm_{1, Backing::kVmm};
  const Zone vmm_other_{2, Backing::kVmm};
  const Zone ipc_{1, Backing::kIpc};
  const Zone ipc_other_{2, Backing::kIpc};
};

TEST_F(DeviceSpaceTest, TakesMemoryOnlyWhenItIsNeeded) {
  Make(256);
  EXPECT_EQ(device_->bytes(), 0u);
  EXPECT_EQ(space_->largest_free(), 256u);
  Put(vmm_, 16);
  EXPECT_EQ(device_->bytes(), kSlab);
  Put(vmm_, 48);
  EXPECT_EQ(device_->bytes(), kSlab);
  Put(vmm_, 1);
  EXPECT_EQ(device_->bytes(), 2 * kSlab);
}

TEST_F(DeviceSpaceTest, ImagesCrossSlabsThatLieSideBySide) {
  Make(256);
  const uint64_t at = Put(vmm_, 150);
  EXPECT_EQ(space_->SlabsOf(at, 150).size(), 3u);
  EXPECT_EQ(space_->used(), 150u);
}

TEST_F(DeviceSpaceTest, AnImageInIpcSlabsLiesInOne) {
  Make(512);
  Put(ipc_, 40);
  const uint64_t at = Put(ipc_, 40);  // Does not fit beside the first.
  EXPECT_EQ(space_->SlabsOf(at, 40).size(), 1u);
  const uint64_t large = Put(ipc_, 150);
  const auto slabs = space_->SlabsOf(large, 150);
  ASSERT_EQ(slabs.size(), 1u);
  EXPECT_EQ(slabs[0].bytes, 160u);
  EXPECT_EQ(slabs[0].backing, Backing::kIpc);
}

TEST_F(DeviceSpaceTest, ZonesNeverShareASlab) {
  Make(512);
  std::map<SlabId, Zone> zone_of;
  for (int i = 0; i < 6; ++i) {
    for (const Zone zone : {vmm_, vmm_other_, ipc_, ipc_other_}) {
      for (const SlabSpec& slab : space_->SlabsOf(Put(zone, 16), 16)) {
        EXPECT_EQ(zone_of.emplace(slab.id, zone).first->second, zone);
        EXPECT_EQ(slab.backing, zone.backing);
      }
    }
  }
}

TEST_F(DeviceSpaceTest, NeverTakesMoreThanItsCapacity) {
  Make(200);  // 192 in whole granules.
  EXPECT_EQ(space_->capacity(), 192u);
  Put(vmm_, 100);
  Put(ipc_, 60);
  EXPECT_THAT(space_->Allocate(vmm_, 60, OwnerId(99)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_LE(device_->bytes(), 192u);
}

TEST_F(DeviceSpaceTest, FreedSpaceServesAgainWithoutANewSlab) {
  Make(64);
  const uint64_t at = Put(vmm_, 64);
  EXPECT_THAT(space_->Allocate(vmm_, 16, OwnerId(99)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  space_->Free(at);
  EXPECT_EQ(space_->used(), 0u);
  EXPECT_EQ(Put(vmm_, 64), at);
  EXPECT_EQ(device_->creates(), 1);
}

TEST_F(DeviceSpaceTest, EvictsInItsOwnZoneFirst) {
  Make(128);
  const uint64_t mine = Put(vmm_, 64);
  Put(vmm_other_, 64);
  const auto hole = space_->CheapestHole(vmm_, 64, Worth, Never);
  ASSERT_TRUE(hole.has_value());
  EXPECT_EQ(hole->offset, mine);
  EXPECT_THAT(hole->victims, ElementsAre(OwnerId(1)));
}

TEST_F(DeviceSpaceTest, TakesMemoryOverFromAnotherZone) {
  Make(128);
  const uint64_t other = Put(vmm_other_, 100);
  EXPECT_THAT(space_->Allocate(vmm_, 64, OwnerId(9)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  const auto hole = space_->CheapestHole(vmm_, 64, Worth, Never);
  ASSERT_TRUE(hole.has_value());
  EXPECT_THAT(hole->victims, ElementsAre(OwnerId(1)));
  space_->Free(other);
  ASSERT_OK(space_->ReleaseSlabs(vmm_, 64, Never));
  Put(vmm_, 64);
}

TEST_F(DeviceSpaceTest, ASlabThatIsOpenElsewhereIsNotGivenBack) {
  Make(128);
  const uint64_t other = Put(vmm_other_, 128);
  EXPECT_EQ(space_->CheapestHole(vmm_, 64, Worth, Always), std::nullopt);
  space_->Free(other);
  ASSERT_OK(space_->ReleaseSlabs(vmm_, 64, Always));
  EXPECT_EQ(device_->bytes(), 128u);
  EXPECT_THAT(space_->Allocate(vmm_, 64, OwnerId(9)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(DeviceSpaceTest, GivesBackNoMoreThanIsNeeded) {
  Make(256);
  const uint64_t other = Put(vmm_other_, 256);
  space_->Free(other);
  ASSERT_OK(space_->ReleaseSlabs(vmm_, 64, Never));
  EXPECT_EQ(device_->bytes(), 192u);
}

TEST_F(DeviceSpaceTest, WhatCannotMoveKeepsItsZonesMemory) {
  Make(128);
  Put(vmm_other_, 128);
  const auto wall = [](OwnerId) -> std::optional<double> {
    return std::nullopt;
  };
  EXPECT_EQ(space_->CheapestHole(vmm_, 64, wall, Never), std::nullopt);
}

TEST_F(DeviceSpaceTest, ARefusedSlabMakesItEvictInstead) {
  Make(256, /*memory=*/64);
  Put(vmm_, 64);
  // The pool would have room; the device has not.
  EXPECT_THAT(space_->Allocate(vmm_, 32, OwnerId(9)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  const int creates = device_->creates();
  EXPECT_EQ(space_->largest_free(), 0u);
  const auto hole = space_->CheapestHole(vmm_, 32, Worth, Never);
  ASSERT_TRUE(hole.has_value());
  EXPECT_THAT(hole->victims, ElementsAre(OwnerId(1)));
  EXPECT_THAT(space_->Allocate(vmm_, 32, OwnerId(9)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(device_->creates(), creates);  // Not asked over and over.
  device_->set_memory_bytes(256);
  space_->RetrySlabs();
  Put(vmm_, 32);
}

TEST_F(DeviceSpaceTest, SaysWhenIpcSlabsAreTooScattered) {
  Make(256);
  const uint64_t a = Put(ipc_, 64);
  Put(ipc_, 64);
  const uint64_t c = Put(ipc_, 64);
  Put(ipc_, 64);
  space_->Free(a);
  space_->Free(c);
  // Gives a and c back: two gaps of one slab, memory for two.
  ASSERT_OK(space_->ReleaseSlabs(ipc_, 128, Never));
  EXPECT_THAT(space_->Allocate(ipc_, 128, OwnerId(9)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("too scattered")));
  Put(ipc_, 64);  // A smaller one fits into a gap.
}

TEST_F(DeviceSpaceTest, IdleIpcSlabsMakeRoomForALargerImage) {
  Make(128);
  const uint64_t a = Put(ipc_, 64);
  const uint64_t b = Put(ipc_, 64);
  const auto hole = space_->CheapestHole(ipc_, 128, Worth, Never);
  ASSERT_TRUE(hole.has_value());
  EXPECT_THAT(hole->victims, ElementsAre(OwnerId(1), OwnerId(2)));
  space_->Free(a);
  space_->Free(b);
  ASSERT_OK(space_->ReleaseSlabs(ipc_, 128, Never));
  Put(ipc_, 128);
}

TEST_F(DeviceSpaceTest, EveryZoneCanHaveThePoolAndNoMore) {
  Make(64);
  for (uint64_t z = 0; z < 2 * DeviceSpace::kMaxZones; ++z) {
    const Zone zone = {z, Backing::kVmm};
    space_->Free(Put(zone, 64));
    ASSERT_OK(space_->ReleaseSlabs({99, Backing::kVmm}, 64, Never));
  }
  Make(kGranule * (DeviceSpace::kMaxZones + 1));
  space_.emplace(
      DeviceSpaceOptions{kGranule * (DeviceSpace::kMaxZones + 1), kGranule},
      *device_);
  for (uint64_t z = 0; z < DeviceSpace::kMaxZones; ++z) {
    Put({z, Backing::kVmm}, kGranule);
  }
  EXPECT_THAT(space_->Allocate({99, Backing::kVmm}, kGranule, OwnerId(99)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("models.readers")));
}

TEST_F(DeviceSpaceTest, SpanHoldsAllZones) {
  EXPECT_EQ(DeviceSpace::SpanFor(100, 16), 8u * 112);
  EXPECT_EQ(DeviceSpace::SpanFor(0, 16), 0u);
}

TEST_F(DeviceSpaceTest, GivesEverySlabBackAtTheEnd) {
  Make(256);
  Put(vmm_, 100);
  Put(ipc_, 30);
  space_.reset();
  EXPECT_THAT(device_->slabs(), IsEmpty());
}

}  // namespace
}  // namespace hoistd
