#include "daemon/core/device_space.h"

#include <deque>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_device.h"
#include "tests/support/status_matchers.h"

namespace hoistd::device_space_test {

using ::testing::ElementsAre;
using testing::FakeDevice;
using testing::FakeDeviceOptions;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr uint64_t kGranule = 16;
constexpr uint64_t kSlab = 64;

Opened Nobody(SlabId) { return Opened::kNobody; }
Opened Idle(SlabId) { return Opened::kIdle; }
Opened Kept(SlabId) { return Opened::kKept; }
std::optional<double> Worth(OwnerId) { return 1; }
std::optional<double> Wall(OwnerId) { return std::nullopt; }

// The oldest piece of work, if there is one.
bool DoNext(std::deque<SlabWork>& queue, DeviceSpace& space,
            FakeDevice& device) {
  for (const SlabWork& work : space.TakeWork()) queue.push_back(work);
  if (queue.empty()) return false;
  const SlabWork work = queue.front();
  queue.pop_front();
  if (work.kind == SlabWork::Kind::kDestroy) {
    EXPECT_OK(device.DestroySlab(work.slab.id));
    return true;
  }
  const absl::Status made = device.CreateSlab(work.slab);
  space.SlabMade(work.slab.id, made.ok() ? device.Share(work.slab.id) : made);
  return true;
}

// Space whose slabs are made at once.
absl::StatusOr<uint64_t> AllocateNow(DeviceSpace& space, const Want& want,
                                     OwnerId owner, FakeDevice& device) {
  std::deque<SlabWork> queue;
  while (true) {
    const absl::StatusOr<uint64_t> at = space.Allocate(want, owner);
    while (DoNext(queue, space, device)) {
    }
    if (!absl::IsUnavailable(at.status())) return at;
  }
}

void ReleaseNow(DeviceSpace& space, const Want& want, OpenedFn opened,
                FakeDevice& device) {
  space.ReleaseSlabs(want, opened);
  std::deque<SlabWork> queue;
  while (DoNext(queue, space, device)) {
  }
}

class DeviceSpaceTest : public ::testing::Test {
 protected:
  void Make(uint64_t capacity, uint64_t memory = UINT64_MAX) {
    FakeDeviceOptions options;
    options.granularity = kGranule;
    options.span_bytes = DeviceSpace::SpanFor(capacity, kGranule);
    options.memory_bytes = memory;
    device_.emplace(options);
    space_.emplace(
        DeviceSpaceOptions{DeviceIndex(0), kGranule, capacity, kSlab});
  }
  absl::StatusOr<uint64_t> Allocate(const Want& want, OwnerId owner) {
    return AllocateNow(*space_, want, owner, *device_);
  }
  void Release(const Want& want, OpenedFn opened) {
    ReleaseNow(*space_, want, opened, *device_);
  }
  // What is asked for when this is, and is to be made and destroyed.
  std::vector<SlabWork> Ask(const Want& want) {
    EXPECT_THAT(space_->Allocate(want, OwnerId(++last_)),
                StatusIs(absl::StatusCode::kUnavailable));
    space_->Check();
    return space_->TakeWork();
  }
  void Made(const SlabWork& work, const absl::Status& status = {}) {
    if (status.ok()) {
      space_->SlabMade(work.slab.id, SlabShare());
    } else {
      space_->SlabMade(work.slab.id, status);
    }
    space_->Check();
  }
  // The image's offset, which must be had.
  uint64_t Put(Zone zone, uint64_t bytes) {
    const OwnerId owner(++last_);
    const absl::StatusOr<uint64_t> at = Allocate({zone, bytes}, owner);
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
  Put(vmm_, 10);
  EXPECT_EQ(device_->bytes(), kGranule);
  Put(vmm_, 6);
  EXPECT_EQ(device_->bytes(), kGranule);
  Put(vmm_, 1);
  EXPECT_EQ(device_->bytes(), 2 * kGranule);
}

TEST_F(DeviceSpaceTest, AZonesSlabsGrowUpToTheUsualSize) {
  Make(512);
  for (const uint64_t sum : {16u, 32u, 64u, 64u, 128u}) {
    Put(vmm_, 16);
    EXPECT_EQ(device_->bytes(), sum);
  }
  Put(vmm_, 48);
  Put(vmm_, 16);
  EXPECT_EQ(device_->bytes(), 192u);  // No slab is larger than 64.
  EXPECT_EQ(space_->allocated(vmm_), 192u);
  Put(vmm_other_, 16);
  EXPECT_EQ(device_->bytes(), 208u);  // What others have does not count.
  EXPECT_EQ(space_->allocated(vmm_other_), 16u);
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
  EXPECT_THAT(Allocate({vmm_, 60}, OwnerId(99)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_LE(device_->bytes(), 192u);
}

TEST_F(DeviceSpaceTest, FreedSpaceServesAgainWithoutANewSlab) {
  Make(64);
  const uint64_t at = Put(vmm_, 64);
  EXPECT_THAT(Allocate({vmm_, 16}, OwnerId(99)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  space_->Free(at);
  EXPECT_EQ(space_->used(), 0u);
  EXPECT_EQ(Put(vmm_, 64), at);
  EXPECT_EQ(device_->creates(), 1);
}

TEST_F(DeviceSpaceTest, FindsWhatToEvictInItsOwnZone) {
  Make(128);
  const uint64_t mine = Put(vmm_, 64);
  Put(vmm_other_, 64);
  const auto hole = space_->CheapestHole({vmm_, 64}, Worth);
  ASSERT_TRUE(hole.has_value());
  EXPECT_EQ(hole->offset, mine);
  EXPECT_THAT(hole->victims, ElementsAre(OwnerId(1)));
  EXPECT_EQ(space_->CheapestHole({vmm_, 65}, Worth), std::nullopt);
}

TEST_F(DeviceSpaceTest, TakesMemoryOverFromAnotherZone) {
  Make(128);
  const uint64_t other = Put(vmm_other_, 100);
  EXPECT_THAT(Allocate({vmm_, 64}, OwnerId(9)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  const auto room =
      space_->RoomElsewhere({vmm_, 64}, false, false, Worth, Nobody);
  ASSERT_TRUE(room.enough);
  EXPECT_THAT(room.victims, ElementsAre(OwnerId(1)));
  EXPECT_THAT(room.idle, IsEmpty());
  space_->Free(other);
  Release({vmm_, 64}, Nobody);
  Put(vmm_, 64);
}

TEST_F(DeviceSpaceTest, TakesNoMoreFromAnotherZoneThanItNeeds) {
  Make(192);
  for (int i = 0; i < 12; ++i) Put(vmm_other_, 16);
  const auto room =
      space_->RoomElsewhere({vmm_, 64}, false, false, Worth, Nobody);
  ASSERT_TRUE(room.enough);
  // Those at the end, since slabs leave from there.
  EXPECT_THAT(room.victims,
              ElementsAre(OwnerId(9), OwnerId(10), OwnerId(11), OwnerId(12)));
}

TEST_F(DeviceSpaceTest, ASlabThatIsOpenElsewhereIsNotGivenBack) {
  Make(128);
  const uint64_t other = Put(vmm_other_, 128);
  EXPECT_FALSE(
      space_->RoomElsewhere({vmm_, 64}, false, true, Worth, Kept).enough);
  space_->Free(other);
  Release({vmm_, 64}, Kept);
  EXPECT_EQ(device_->bytes(), 128u);
  EXPECT_THAT(Allocate({vmm_, 64}, OwnerId(9)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(DeviceSpaceTest, AnIdleSlabMustBeClosedBeforeItIsGivenBack) {
  Make(128);
  const uint64_t other = Put(vmm_other_, 128);
  const auto room = [&](bool idle) {
    return space_->RoomElsewhere({vmm_, 64}, false, idle, Worth, Idle);
  };
  EXPECT_FALSE(room(false).enough);
  ASSERT_TRUE(room(true).enough);
  const std::vector<SlabSpec> slabs = space_->SlabsOf(other, 128);
  EXPECT_THAT(room(true).idle, ElementsAre(slabs.back().id));
  space_->Free(other);
  Release({vmm_, 64}, Idle);
  EXPECT_EQ(device_->bytes(), 128u);
}

TEST_F(DeviceSpaceTest, WhatIsPromisedIsNotTaken) {
  Make(128);
  EXPECT_THAT(Allocate({vmm_, 64, {{ipc_, 80}}}, OwnerId(9)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_OK(Allocate({vmm_, 48, {{ipc_, 80}, {vmm_, 128}}}, OwnerId(9)));
  EXPECT_LE(device_->bytes(), 48u);
  Put(vmm_other_, 80);
  const auto enough = [&](const Want& want) {
    return space_->RoomElsewhere(want, false, false, Worth, Nobody).enough;
  };
  EXPECT_FALSE(enough({vmm_, 81}));
  EXPECT_TRUE(enough({vmm_, 80}));
  EXPECT_FALSE(enough({vmm_, 80, {{ipc_, 16}}}));
  // What has been made of it is no more of it to come.
  EXPECT_TRUE(enough({vmm_, 80, {{vmm_, 128}}}));
}

// Given back, it would be made for its zone again: for ever, where each takes
// it from the other.
TEST_F(DeviceSpaceTest, WhatIsPromisedIsNotGivenBackForAnother) {
  Make(64);
  space_->Free(Put(vmm_other_, 64));
  const auto room = [&](const Want& want) {
    return space_->RoomElsewhere(want, false, false, Worth, Nobody);
  };
  const Want all_is_promised = {vmm_, 16, {{vmm_other_, 64}}};
  EXPECT_FALSE(room(all_is_promised).enough);
  Release(all_is_promised, Nobody);
  EXPECT_EQ(device_->bytes(), 64u);
  // A part of a slab may be for another.
  EXPECT_FALSE(room({vmm_, 32, {{vmm_other_, 48}}}).enough);
  const Want the_rest = {vmm_, 16, {{vmm_other_, 48}}};
  EXPECT_TRUE(room(the_rest).enough);
  Release(the_rest, Nobody);
  ASSERT_OK(Allocate(the_rest, OwnerId(9)));
}

TEST_F(DeviceSpaceTest, GivesBackNoMoreThanIsNeeded) {
  Make(256);
  const uint64_t other = Put(vmm_other_, 256);
  space_->Free(other);
  Release({vmm_, 64}, Nobody);
  EXPECT_EQ(device_->bytes(), 192u);
}

TEST_F(DeviceSpaceTest, WhatCannotMoveKeepsItsZonesMemory) {
  Make(128);
  Put(vmm_other_, 128);
  EXPECT_FALSE(
      space_->RoomElsewhere({vmm_, 64}, false, false, Wall, Nobody).enough);
}

TEST_F(DeviceSpaceTest, ARefusedSlabMakesItEvictInstead) {
  Make(256, /*memory=*/64);
  Put(vmm_, 64);
  // The pool would have room; the device has not.
  EXPECT_THAT(Allocate({vmm_, 32}, OwnerId(9)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  const int creates = device_->creates();
  EXPECT_EQ(space_->largest_free(), 0u);
  const auto hole = space_->CheapestHole({vmm_, 32}, Worth);
  ASSERT_TRUE(hole.has_value());
  EXPECT_THAT(hole->victims, ElementsAre(OwnerId(1)));
  EXPECT_THAT(Allocate({vmm_, 32}, OwnerId(9)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(device_->creates(), creates);  // Not asked over and over.
  device_->set_memory_bytes(256);
  space_->RetrySlabs();
  Put(vmm_, 32);
}

TEST_F(DeviceSpaceTest, IdleIpcSlabsMakeRoomForALargerImage) {
  Make(128);
  const uint64_t a = Put(ipc_, 64);
  const uint64_t b = Put(ipc_, 64);
  EXPECT_EQ(space_->CheapestHole({ipc_, 128}, Worth), std::nullopt);
  EXPECT_FALSE(
      space_->RoomElsewhere({ipc_, 128}, false, false, Worth, Nobody).enough);
  const auto room =
      space_->RoomElsewhere({ipc_, 128}, true, false, Worth, Nobody);
  ASSERT_TRUE(room.enough);
  EXPECT_THAT(room.victims, ElementsAre(OwnerId(1), OwnerId(2)));
  space_->Free(a);
  space_->Free(b);
  Release({ipc_, 128}, Nobody);
  Put(ipc_, 128);
}

TEST_F(DeviceSpaceTest, EachZoneCanHaveThePool) {
  Make(64);
  for (uint64_t z = 0; z < 100; ++z) {
    const Zone zone = {z, Backing::kVmm};
    space_->Free(Put(zone, 64));
    Release({{999, Backing::kVmm}, 64}, Nobody);
  }
}

TEST_F(DeviceSpaceTest, AsManyZonesAsGranulesHaveAPlace) {
  constexpr uint64_t kZones = 300;
  Make(kGranule * kZones);
  for (uint64_t z = 0; z < kZones; ++z) Put({z, Backing::kVmm}, 1);
  EXPECT_EQ(device_->bytes(), space_->capacity());
}

TEST_F(DeviceSpaceTest, ALargeImageFitsThoughManyZonesHaveALittle) {
  constexpr uint64_t kZones = 200;
  Make(kGranule * (kZones + 400));
  std::vector<uint64_t> small;
  for (uint64_t z = 0; z < kZones; ++z) {
    small.push_back(Put({z, Backing::kVmm}, 1));
  }
  const uint64_t large = Put({kZones, Backing::kVmm}, kGranule * 400);
  EXPECT_EQ(device_->bytes(), space_->capacity());
  space_->Free(large);
  Release({{999, Backing::kVmm}, kGranule * 400}, Nobody);
  // One that had a little grows, wherever it lies.
  Put({150, Backing::kVmm}, kGranule * 400);
}

struct Image {
  Zone zone;
  uint64_t offset = 0, bytes = 0;
};

void CheckImages(const std::map<OwnerId, Image>& images,
                 const DeviceSpace& space, const FakeDevice& device) {
  space.Check();
  ASSERT_LE(device.bytes(), space.capacity());
  ASSERT_EQ(device.bytes(), space.allocated());
  uint64_t used = 0;
  std::map<uint64_t, uint64_t> ends;  // By offset.
  std::map<SlabId, Zone> zone_of;
  for (const auto& [id, image] : images) {
    used += image.bytes;
    ends[image.offset] = image.offset + image.bytes;
    ASSERT_TRUE(device.Covers(image.offset, image.bytes));
    const auto slabs = space.SlabsOf(image.offset, image.bytes);
    ASSERT_TRUE(slabs.size() == 1 || image.zone.backing != Backing::kIpc);
    for (const SlabSpec& slab : slabs) {
      ASSERT_EQ(zone_of.emplace(slab.id, image.zone).first->second, image.zone);
    }
  }
  uint64_t before = 0;
  for (const auto& [offset, end] : ends) {
    ASSERT_LE(before, offset);
    before = end;
  }
  ASSERT_EQ(ends.size(), images.size());
  ASSERT_EQ(space.used(), used);
}

// Allocates after evicting what the space says would be enough.
absl::StatusOr<uint64_t> AllocateWithForce(DeviceSpace& space, const Want& want,
                                           OwnerId owner,
                                           std::map<OwnerId, Image>& images,
                                           FakeDevice& device) {
  if (const auto at = AllocateNow(space, want, owner, device); at.ok()) {
    return at;
  }
  const auto hole = space.CheapestHole(want, Worth);
  const auto room = space.RoomElsewhere(want, true, true, Worth, Nobody);
  std::vector<OwnerId> victims;
  if (hole.has_value()) {
    victims = hole->victims;
  } else if (room.enough) {
    victims = room.victims;
  }
  for (const OwnerId victim : victims) {
    space.Free(images.at(victim).offset);
    images.erase(victim);
  }
  if (!hole.has_value()) ReleaseNow(space, want, Nobody, device);
  auto at = AllocateNow(space, want, owner, device);
  // Only addresses may be short then, and so for islands alone.
  if (hole.has_value() || room.enough) {
    EXPECT_TRUE(at.ok() || want.zone.backing == Backing::kIpc);
  }
  return at;
}

// Whatever comes and goes, in whatever order.
TEST_F(DeviceSpaceTest, ZonesNeverMeetAndImagesNeverOverlap) {
  for (uint32_t seed = 1; seed <= 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Make(kGranule * (4 + random() % 60));
    std::map<OwnerId, Image> images;
    for (int step = 0; step < 150 && !HasFailure(); ++step) {
      const Want want = {
          {random() % 12, random() % 4 == 0 ? Backing::kIpc : Backing::kVmm},
          1 + random() % 200,
          {{Zone{12, Backing::kVmm}, random() % 3 * 16}}};
      const auto opened = [&](SlabId id) {
        return static_cast<Opened>(id.number() * seed % 3);
      };
      if (random() % 3 == 0 && !images.empty()) {
        auto it = images.begin();
        std::advance(it, random() % images.size());
        space_->Free(it->second.offset);
        images.erase(it);
      } else {
        const OwnerId owner(++last_);
        const auto at =
            AllocateWithForce(*space_, want, owner, images, *device_);
        if (at.ok()) images[owner] = {want.zone, *at, want.bytes};
      }
      if (random() % 4 == 0) {
        Release(want, opened);
      }
      CheckImages(images, *space_, *device_);
    }
  }
}

TEST_F(DeviceSpaceTest, SpanIsAFewTimesThePool) {
  EXPECT_EQ(DeviceSpace::SpanFor(100, 16), 10u * 112);
  EXPECT_EQ(DeviceSpace::SpanFor(0, 16), 0u);
}

// --- Slabs that are coming --------------------------------------------------

TEST_F(DeviceSpaceTest, WhatComesIsTakenAndHoldsNothingYet) {
  Make(128);
  const std::vector<SlabWork> work = Ask({vmm_, 100});
  ASSERT_THAT(work, SizeIs(2));
  EXPECT_EQ(work[0].kind, SlabWork::Kind::kMake);
  EXPECT_EQ(work[1].slab.offset, work[0].slab.offset + work[0].slab.bytes);
  EXPECT_EQ(space_->allocated(), 128u);
  EXPECT_EQ(space_->allocated(vmm_), 128u);
  EXPECT_EQ(space_->coming(), 128u);
  EXPECT_EQ(space_->used(), 0u);
  EXPECT_THAT(space_->SlabsOf(work[0].slab.offset, 128), IsEmpty());
  // It has gone from what others may have.
  EXPECT_THAT(space_->Allocate({vmm_other_, 32}, OwnerId(98)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  Made(work[0]);
  EXPECT_THAT(Ask({vmm_, 100}), IsEmpty());
  Made(work[1]);
  EXPECT_EQ(space_->coming(), 0u);
  ASSERT_OK(space_->Allocate({vmm_, 100}, OwnerId(99)));
}

TEST_F(DeviceSpaceTest, WhatWouldDoIsNotAskedForTwice) {
  Make(256);
  const std::vector<SlabWork> work = Ask({vmm_, 40});
  ASSERT_THAT(work, SizeIs(1));
  EXPECT_THAT(Ask({vmm_, 48}), IsEmpty());
  // Only what is missing, behind it.
  const std::vector<SlabWork> more = Ask({vmm_, 64});
  ASSERT_THAT(more, SizeIs(1));
  EXPECT_EQ(more[0].slab.offset, work[0].slab.offset + 48);
  Made(work[0]);
  ASSERT_OK(space_->Allocate({vmm_, 40}, OwnerId(98)));
}

TEST_F(DeviceSpaceTest, TwoZonesSlabsComeSideBySide) {
  Make(128);
  const std::vector<SlabWork> one = Ask({vmm_, 64});
  const std::vector<SlabWork> two = Ask({vmm_other_, 64});
  ASSERT_THAT(one, SizeIs(1));
  ASSERT_THAT(two, SizeIs(1));
  // Of one device in order; of a zone what is its own.
  Made(one[0]);
  EXPECT_THAT(Ask({vmm_other_, 64}), IsEmpty());
  Made(two[0]);
  const auto at = space_->Allocate({vmm_other_, 64}, OwnerId(99));
  ASSERT_OK(at);
  EXPECT_EQ(*at, two[0].slab.offset);
}

TEST_F(DeviceSpaceTest, WhatCannotBeMadeIsNotThere) {
  Make(192);
  const std::vector<SlabWork> work = Ask({vmm_, 160});
  ASSERT_THAT(work, SizeIs(3));
  Made(work[0]);
  Made(work[1], absl::ResourceExhaustedError("no such luck"));
  // The one behind it comes all the same, apart.
  EXPECT_EQ(space_->allocated(), 128u);
  EXPECT_EQ(space_->coming(), 64u);
  EXPECT_THAT(space_->Allocate({vmm_, 160}, OwnerId(97)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no such luck")));
  Made(work[2]);
  ASSERT_OK(space_->Allocate({vmm_, 64}, OwnerId(98)));
  const auto at = space_->Allocate({vmm_, 64}, OwnerId(99));
  ASSERT_OK(at);
  EXPECT_EQ(*at, work[2].slab.offset);
  EXPECT_THAT(space_->TakeWork(), IsEmpty());
  // Its bytes and its addresses can be had again.
  space_->RetrySlabs();
  EXPECT_THAT(Ask({vmm_, 64}), SizeIs(1));
}

TEST_F(DeviceSpaceTest, TheFirstOfASegmentThatCannotBeMadeLeavesNone) {
  Make(128);
  const std::vector<SlabWork> work = Ask({vmm_, 64});
  ASSERT_THAT(work, SizeIs(1));
  Made(work[0], absl::ResourceExhaustedError("none"));
  EXPECT_EQ(space_->allocated(), 0u);
  EXPECT_EQ(space_->coming(), 0u);
  space_->RetrySlabs();
  EXPECT_THAT(Ask({vmm_other_, 128}), SizeIs(2));
}

TEST_F(DeviceSpaceTest, WhatComesIsNotGivenBackAndIsNoVictimsPlace) {
  Make(128);
  const std::vector<SlabWork> work = Ask({vmm_, 64});
  ASSERT_THAT(work, SizeIs(1));
  EXPECT_FALSE(
      space_->RoomElsewhere({vmm_other_, 128}, true, true, Worth, Nobody)
          .enough);
  space_->ReleaseSlabs({vmm_other_, 128}, Nobody);
  EXPECT_THAT(space_->TakeWork(), IsEmpty());
  // Yet it keeps nothing from anybody for long.
  EXPECT_EQ(space_->StuckBytes(false, Wall, Kept)[vmm_], 0u);
  Made(work[0]);
  EXPECT_TRUE(
      space_->RoomElsewhere({vmm_other_, 128}, true, true, Worth, Nobody)
          .enough);
}

TEST_F(DeviceSpaceTest, AHoleMayReachIntoWhatComes) {
  Make(96);
  Put(vmm_, 16);
  Put(vmm_, 16);
  const std::vector<SlabWork> work = Ask({vmm_, 32});
  ASSERT_THAT(work, SizeIs(1));
  EXPECT_EQ(work[0].slab.bytes, 32u);
  // 32 come, 32 more can be had: 16 of what is there are enough.
  const auto hole = space_->CheapestHole({vmm_, 80}, Worth);
  ASSERT_TRUE(hole.has_value());
  EXPECT_THAT(hole->victims, ElementsAre(OwnerId(2)));
}

TEST_F(DeviceSpaceTest, WhatIsDestroyedComesBeforeWhatIsMadeOfIt) {
  Make(64);
  space_->Free(Put(vmm_other_, 64));
  space_->ReleaseSlabs({vmm_, 64}, Nobody);
  const std::vector<SlabWork> work = Ask({vmm_, 64});
  ASSERT_THAT(work, SizeIs(2));
  EXPECT_EQ(work[0].kind, SlabWork::Kind::kDestroy);
  EXPECT_EQ(work[1].kind, SlabWork::Kind::kMake);
}

// The same, with slabs that come late, or not at all.
TEST_F(DeviceSpaceTest, ImagesNeverOverlapWhileSlabsComeLate) {
  int failed = 0;
  int late = 0;
  for (uint32_t seed = 1; seed <= 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Make(kGranule * (4 + random() % 60));
    std::map<OwnerId, Image> images;
    std::deque<SlabWork> queue;
    for (int step = 0; step < 200 && !HasFailure(); ++step) {
      const Want want = {
          {random() % 4, random() % 4 == 0 ? Backing::kIpc : Backing::kVmm},
          1 + random() % 200};
      // Now and then somebody else has the device's memory.
      device_->set_memory_bytes(random() % 8 == 0 ? 0 : UINT64_MAX);
      const uint32_t what = random() % 6;
      if (what < 2) {
        const uint64_t before = space_->allocated();
        DoNext(queue, *space_, *device_);
        if (space_->allocated() < before) ++failed;
      } else if (what == 2 && !images.empty()) {
        auto it = images.begin();
        std::advance(it, random() % images.size());
        space_->Free(it->second.offset);
        images.erase(it);
      } else if (what == 3) {
        space_->ReleaseSlabs(want, Nobody);
      } else {
        const OwnerId owner(++last_);
        space_->RetrySlabs();
        const auto at = space_->Allocate(want, owner);
        if (at.ok()) images[owner] = {want.zone, *at, want.bytes};
        if (absl::IsUnavailable(at.status())) {
          ++late;
          EXPECT_GT(space_->coming(), 0u);
        }
      }
      for (const SlabWork& work : space_->TakeWork()) queue.push_back(work);
      space_->Check();
      for (const auto& [id, image] : images) {
        ASSERT_TRUE(device_->Covers(image.offset, image.bytes));
      }
    }
    device_->set_memory_bytes(UINT64_MAX);
    while (DoNext(queue, *space_, *device_)) {
    }
    EXPECT_EQ(space_->coming(), 0u);
    CheckImages(images, *space_, *device_);
  }
  EXPECT_GT(failed, 100);
  EXPECT_GT(late, 1000);
}

}  // namespace hoistd::device_space_test
