// What lies apart in a device's pool, beside its segments.
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "daemon/core/device_space.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_device.h"
#include "tests/support/status_matchers.h"

namespace hoistd::device_space_apart_test {

using ::testing::ElementsAre;
using testing::FakeDevice;
using testing::FakeDeviceOptions;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr uint64_t kGranule = 16;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

Opened Nobody(SlabId) { return Opened::kNobody; }
Opened Idle(SlabId) { return Opened::kIdle; }
Opened Kept(SlabId) { return Opened::kKept; }
std::optional<double> ByNumber(OwnerId owner) {
  return static_cast<double>(owner.number());
}
std::optional<double> Wall(OwnerId) { return std::nullopt; }

class DeviceSpaceApart : public ::testing::Test {
 protected:
  void Make(uint64_t capacity) {
    FakeDeviceOptions options;
    options.granularity = kGranule;
    options.span_bytes = DeviceSpace::SpanFor(capacity, kGranule);
    options.backing = Backing::kVmm;
    device_.emplace(options);
    space_.emplace(DeviceSpaceOptions{DeviceIndex(0), kGranule, capacity, 64,
                                      &descriptors_});
  }
  // What was asked of the device since, in order, is done now.
  void DoWork() {
    for (const SlabWork& work : space_->TakeWork()) queue_.push_back(work);
    while (DoNext()) {
    }
    space_->Check();
    EXPECT_EQ(device_->bytes(), space_->allocated());
  }
  bool DoNext(absl::Status made = {}) {
    for (const SlabWork& work : space_->TakeWork()) queue_.push_back(work);
    if (queue_.empty()) return false;
    const SlabWork work = queue_.front();
    queue_.pop_front();
    if (work.kind == SlabWork::Kind::kDestroy) {
      EXPECT_OK(device_->DestroySlab(work.slab.id));
      return true;
    }
    if (made.ok()) made = device_->CreateSlab(work.slab);
    last_made_ = space_->SlabMade(
        work.slab.id, made.ok() ? device_->Share(work.slab.id) : made);
    return true;
  }
  // The image's offset, which must be had, with its slab.
  uint64_t Put(const Zone& zone, uint64_t bytes,
               std::optional<OwnerId> owner = {}) {
    const OwnerId mine = owner.value_or(OwnerId(++last_));
    absl::StatusOr<uint64_t> at = space_->Allocate({zone, bytes}, mine);
    while (absl::IsUnavailable(at.status())) {
      DoWork();
      at = space_->Allocate({zone, bytes}, mine);
    }
    DoWork();
    EXPECT_OK(at);
    if (!at.ok()) return 0;
    EXPECT_TRUE(device_->Covers(*at, bytes));
    return *at;
  }
  absl::Status Refused(const Want& want) {
    const absl::Status status = space_->Allocate(want, OwnerId(999)).status();
    EXPECT_THAT(space_->TakeWork(), IsEmpty());
    space_->Check();
    return status;
  }

  std::optional<FakeDevice> device_;
  ApartDescriptors descriptors_;
  std::optional<DeviceSpace> space_;
  std::deque<SlabWork> queue_;
  ZonedSlab last_made_;
  uint64_t last_ = 0;
  const Zone apart_{1, Backing::kVmm, /*apart=*/true};
  const Zone other_{2, Backing::kVmm, /*apart=*/true};
  const Zone segment_{1, Backing::kVmm};
};

TEST_F(DeviceSpaceApart, AnImageHasItsPlaceAtOnceAndItsSlabLater) {
  Make(128);
  const auto at = space_->Allocate({apart_, 20}, OwnerId(1));
  ASSERT_OK(at);
  EXPECT_TRUE(space_->IsComing(*at));
  EXPECT_TRUE(space_->IsApart(*at));
  EXPECT_EQ(space_->coming(), 32u);  // Whole granules.
  EXPECT_EQ(space_->allocated(), 32u);
  EXPECT_EQ(space_->allocated(apart_), 32u);
  EXPECT_THAT(space_->AllSlabs(), IsEmpty());
  space_->Check();
  ASSERT_TRUE(DoNext());
  EXPECT_EQ(last_made_.owner, OwnerId(1));
  EXPECT_EQ(last_made_.slab.offset, *at);
  EXPECT_TRUE(last_made_.slab.apart);
  EXPECT_FALSE(space_->IsComing(*at));
  EXPECT_EQ(space_->coming(), 0u);
  const std::vector<SlabSpec> slabs = space_->SlabsOf(*at, 20);
  ASSERT_THAT(slabs, SizeIs(1));
  EXPECT_EQ(slabs[0].id, last_made_.slab.id);
  ASSERT_THAT(space_->AllSlabs(), SizeIs(1));
  EXPECT_EQ(space_->AllSlabs()[0].zone, apart_);
}

TEST_F(DeviceSpaceApart, NoTwoImagesShareASlabAndSegmentsLieElsewhere) {
  Make(256);
  std::map<SlabId, int> images;
  for (int i = 0; i < 4; ++i) {
    for (const SlabSpec& slab : space_->SlabsOf(Put(apart_, 16), 16)) {
      EXPECT_EQ(++images[slab.id], 1);
      EXPECT_TRUE(slab.apart);
    }
  }
  const uint64_t beside = Put(segment_, 16);
  EXPECT_FALSE(space_->IsApart(beside));
  EXPECT_FALSE(images.contains(space_->SlabsOf(beside, 16)[0].id));
  EXPECT_EQ(space_->allocated(segment_), 16u);
  EXPECT_EQ(space_->allocated(apart_), 64u);
}

TEST_F(DeviceSpaceApart, AFreedSlabServesTheNextOfItsSizeWithoutTheDevice) {
  Make(64);
  const uint64_t at = Put(apart_, 20);
  space_->Free(at);
  EXPECT_EQ(space_->used(), 0u);
  EXPECT_EQ(Put(apart_, 32), at);
  EXPECT_EQ(device_->creates(), 1);
}

TEST_F(DeviceSpaceApart, DescriptorsAreCountedAndBound) {
  descriptors_.most = 3;
  Make(256);
  const uint64_t first = Put(apart_, 16);
  Put(apart_, 32);
  Put(other_, 16);
  EXPECT_EQ(descriptors_.used, 3u);
  EXPECT_THAT(Refused({apart_, 48}),
              StatusIs(kExhausted, HasSubstr("LimitNOFILE")));
  // A free one of its size is no new one; what no slab apart has is not bound.
  space_->Free(first);
  EXPECT_EQ(Put(apart_, 16), first);
  Put(segment_, 16);
  EXPECT_EQ(descriptors_.used, 3u);
  // Who nobody needs could leave; whoever has one open keeps it.
  EXPECT_THAT(space_->MovableApart(ByNumber, Kept), IsEmpty());
  EXPECT_THAT(space_->MovableApart(Wall, Nobody), IsEmpty());
  EXPECT_THAT(space_->MovableApart(ByNumber, Nobody), SizeIs(3));
  space_->Free(first);
  space_->ReleaseApart(Backing::kVmm, Kept);
  EXPECT_EQ(descriptors_.used, 3u);
  space_->ReleaseApart(Backing::kVmm, Nobody);
  EXPECT_EQ(descriptors_.used, 2u);
  DoWork();
  Put(apart_, 48);
  EXPECT_EQ(descriptors_.used, 3u);
}

TEST_F(DeviceSpaceApart, ItsMemoryIsTheSegmentsToo) {
  Make(64);
  Put(segment_, 48);
  EXPECT_THAT(Refused({apart_, 32}), StatusIs(kExhausted));
  Put(apart_, 16);
  EXPECT_THAT(Refused({segment_, 16}), StatusIs(kExhausted));
  EXPECT_EQ(space_->largest_free(), 0u);
}

TEST_F(DeviceSpaceApart, WhatIsPromisedIsNotTaken) {
  Make(64);
  EXPECT_THAT(Refused({apart_, 32, {{other_, 40}}}), StatusIs(kExhausted));
  ASSERT_OK(space_->Allocate({apart_, 16, {{other_, 40}}}, OwnerId(1)));
}

TEST_F(DeviceSpaceApart, WhatIsPromisedIsNotGivenBackForAnother) {
  Make(64);
  const uint64_t first = Put(other_, 32), second = Put(other_, 32);
  space_->Free(first);
  space_->Free(second);
  const Want want = {apart_, 32, {{other_, 48}}};
  const auto room = [&](const Want& one) {
    return space_->RoomElsewhere(one, false, false, Wall, Nobody);
  };
  EXPECT_FALSE(room(want).enough);
  EXPECT_FALSE(room({segment_, 32, want.promised}).enough);
  space_->ReleaseSlabs({apart_, 16, {{other_, 64}}}, Nobody);
  DoWork();
  EXPECT_EQ(device_->bytes(), 64u);
  EXPECT_TRUE(room({apart_, 16, {{other_, 48}}}).enough);
}

TEST_F(DeviceSpaceApart, OneThatCannotBeMadeIsGoneAndNotAskedForAgain) {
  Make(64);
  const auto at = space_->Allocate({apart_, 32}, OwnerId(1));
  ASSERT_OK(at);
  ASSERT_TRUE(DoNext(absl::ResourceExhaustedError("no such luck")));
  EXPECT_EQ(last_made_.owner, OwnerId(1));
  EXPECT_EQ(space_->allocated(), 0u);
  EXPECT_EQ(space_->used(), 0u);
  EXPECT_EQ(space_->coming(), 0u);
  EXPECT_FALSE(space_->IsComing(*at));
  EXPECT_THAT(space_->SlabsOf(*at, 32), IsEmpty());
  EXPECT_THAT(Refused({apart_, 32}),
              StatusIs(kExhausted, HasSubstr("no such luck")));
  space_->RetrySlabs();
  Put(apart_, 32);
}

TEST_F(DeviceSpaceApart, WhatWorkersWroteToGoesFirstAndAsFarAsItHelps) {
  Make(4 * kGranule);
  const Zone writable = {
      .readers = 1, .backing = Backing::kVmm, .apart = true, .writable = true};
  std::vector<uint64_t> offsets;
  for (int i = 0; i < 3; ++i) offsets.push_back(Put(writable, kGranule));
  for (const uint64_t offset : offsets) space_->FreeToZero(offset);
  const std::vector<SlabWork> zeroes = space_->TakeWork();
  ASSERT_THAT(zeroes, SizeIs(3));
  EXPECT_EQ(zeroes[0].kind, SlabWork::Kind::kZero);
  EXPECT_EQ(space_->free_writable(), 3 * kGranule);
  const Want want = {{.readers = 2, .backing = Backing::kVmm}, 2 * kGranule};
  // More than all of it would be: nothing goes for that.
  space_->ReleaseWritable({want.zone, 5 * kGranule});
  EXPECT_THAT(space_->TakeWork(), IsEmpty());
  space_->ReleaseWritable(want);
  EXPECT_EQ(space_->free_writable(), 2 * kGranule);
  // It was asked to be zeroed, and went.
  EXPECT_FALSE(
      space_->SlabZeroed(zeroes[0].slab.id, absl::OkStatus()).has_value());
  const auto failed =
      space_->SlabZeroed(zeroes[1].slab.id, absl::InternalError("a bad page"));
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(space_->free_writable(), kGranule);
  ASSERT_TRUE(
      space_->SlabZeroed(zeroes[2].slab.id, absl::OkStatus()).has_value());
  EXPECT_TRUE(space_->TakeFree({writable, kGranule}, OwnerId(99)).has_value());
  space_->Check();
}

TEST_F(DeviceSpaceApart, OneThatIsGivenUpIsFreeWhenItComes) {
  Make(32);
  const auto at = space_->Allocate({apart_, 32}, OwnerId(1));
  ASSERT_OK(at);
  space_->Free(*at);
  EXPECT_EQ(space_->used(), 0u);
  EXPECT_EQ(space_->coming(), 32u);
  // It keeps nothing from anybody for long.
  EXPECT_EQ(space_->StuckBytes(false, Wall, Kept)[apart_], 0u);
  EXPECT_THAT(space_->Allocate({apart_, 32}, OwnerId(2)), StatusIs(kExhausted));
  space_->Check();
  ASSERT_TRUE(DoNext());
  EXPECT_EQ(last_made_.owner, std::nullopt);
  EXPECT_EQ(Put(apart_, 32), *at);
}

TEST_F(DeviceSpaceApart, TheCheapestOfItsOwnKindIsEvicted) {
  Make(64);
  Put(apart_, 16, OwnerId(5));
  const uint64_t cheap = Put(apart_, 16, OwnerId(3));
  Put(apart_, 32, OwnerId(1));
  const auto hole = space_->CheapestHole({apart_, 10}, ByNumber);
  ASSERT_TRUE(hole.has_value());
  EXPECT_EQ(hole->offset, cheap);
  EXPECT_THAT(hole->victims, ElementsAre(OwnerId(3)));
  EXPECT_EQ(space_->CheapestHole({apart_, 48}, ByNumber), std::nullopt);
  EXPECT_EQ(space_->CheapestHole({other_, 16}, ByNumber), std::nullopt);
}

TEST_F(DeviceSpaceApart, OthersMemoryComesFromFreeSlabsThenFromTheCheapest) {
  Make(80);
  for (const uint64_t owner : {5, 3, 4}) Put(other_, 16, OwnerId(owner));
  space_->Free(Put(other_, 16));
  Put(other_, 16, OwnerId(2));
  const auto room = [&](uint64_t bytes) {
    return space_->RoomElsewhere({segment_, bytes}, false, false, ByNumber,
                                 Nobody);
  };
  EXPECT_THAT(room(16).victims, IsEmpty());
  EXPECT_TRUE(room(16).enough);
  EXPECT_THAT(room(48).victims, ElementsAre(OwnerId(2), OwnerId(3)));
  EXPECT_TRUE(room(80).enough);
  EXPECT_FALSE(
      space_->RoomElsewhere({segment_, 32}, false, false, Wall, Nobody).enough);
  space_->ReleaseSlabs({segment_, 16}, Nobody);
  DoWork();
  EXPECT_EQ(device_->bytes(), 64u);  // No more than was needed.
  Put(segment_, 16);
}

TEST_F(DeviceSpaceApart, AnotherSizeOfItsOwnZoneMakesRoomToo) {
  Make(64);
  Put(apart_, 16, OwnerId(5));
  Put(apart_, 48, OwnerId(6));
  const Want want = {apart_, 32};
  EXPECT_EQ(space_->CheapestHole(want, ByNumber), std::nullopt);
  EXPECT_FALSE(
      space_->RoomElsewhere(want, /*own=*/false, false, ByNumber, Nobody)
          .enough);
  const Room room =
      space_->RoomElsewhere(want, /*own=*/true, false, ByNumber, Nobody);
  ASSERT_TRUE(room.enough);
  EXPECT_THAT(room.victims, ElementsAre(OwnerId(5), OwnerId(6)));
}

TEST_F(DeviceSpaceApart, ASlabThatIsOpenElsewhereIsNotGivenBack) {
  Make(32);
  const uint64_t at = Put(other_, 32);
  const SlabId slab = space_->SlabsOf(at, 32)[0].id;
  const Want want = {apart_, 32};
  EXPECT_FALSE(space_->RoomElsewhere(want, true, true, ByNumber, Kept).enough);
  EXPECT_FALSE(space_->RoomElsewhere(want, true, false, ByNumber, Idle).enough);
  const Room idle = space_->RoomElsewhere(want, true, true, ByNumber, Idle);
  EXPECT_TRUE(idle.enough);
  EXPECT_THAT(idle.idle, ElementsAre(slab));
  EXPECT_EQ(space_->StuckBytes(false, ByNumber, Idle)[other_], 32u);
  EXPECT_EQ(space_->StuckBytes(true, ByNumber, Idle)[other_], 0u);
  space_->Free(at);
  space_->ReleaseSlabs(want, Idle);
  EXPECT_THAT(space_->TakeWork(), IsEmpty());
  space_->ReleaseSlabs(want, Nobody);
  Put(apart_, 32);
}

TEST_F(DeviceSpaceApart, WhatIsRestoredCountsAndLiesWhereItLay) {
  Make(64);
  const uint64_t begin = DeviceSpace::SpanFor(64, kGranule) / 10 * 8;
  const auto spec = [&](uint64_t id, uint64_t offset, uint64_t bytes,
                        bool apart) {
    return SlabSpec{SlabId(id), offset, bytes, Backing::kVmm, apart};
  };
  ASSERT_OK(space_->Restore(spec(7, 0, 16, false), segment_, {}));
  ASSERT_OK(space_->Restore(spec(9, begin + 32, 32, true), apart_, {}));
  space_->Check();
  EXPECT_EQ(space_->allocated(), 48u);
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(space_->Restore(spec(10, begin, 32, true), apart_, {}), refused)
      << "more than there is";
  EXPECT_THAT(space_->Restore(spec(10, begin, 16, false), segment_, {}),
              refused);
  EXPECT_THAT(space_->Restore(spec(10, 16, 16, true), apart_, {}), refused);
  EXPECT_THAT(space_->Restore(spec(10, begin + 1, 16, true), apart_, {}),
              refused);
  EXPECT_THAT(space_->Restore(spec(10, begin, 0, true), apart_, {}), refused);
  EXPECT_THAT(space_->Restore(spec(9, begin, 16, true), apart_, {}), refused);
  EXPECT_THAT(space_->Restore(spec(7, begin, 16, true), apart_, {}), refused);
  space_->Check();
  EXPECT_THAT(space_->RestoreAt(begin, 20, apart_, OwnerId(1)), refused);
  ASSERT_OK(space_->RestoreAt(begin + 32, 20, apart_, OwnerId(1)));
  ASSERT_OK(space_->RestoreAt(0, 10, segment_, OwnerId(2)));
  space_->Check();
  const auto next = space_->Allocate({apart_, 16}, OwnerId(3));
  ASSERT_OK(next);
  EXPECT_EQ(space_->TakeWork().at(0).slab.id, SlabId(10));  // None twice.
}

struct Image {
  Zone zone;
  uint64_t offset = 0, bytes = 0;
};

// Segments and what is apart beside each other, slabs that come late or not at
// all, evictions by what the space says: the bytes add up at each step.
TEST_F(DeviceSpaceApart, RandomLivesAddUpBesideSegments) {
  int apart = 0, failed = 0, evicted = 0;
  for (uint32_t seed = 1; seed <= 100 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Make(kGranule * (4 + random() % 40));
    queue_.clear();
    std::map<OwnerId, Image> images;
    const auto free = [&](OwnerId owner) {
      space_->Free(images.at(owner).offset);
      images.erase(owner);
    };
    for (int step = 0; step < 200 && !HasFailure(); ++step) {
      const Want want = {{random() % 3, Backing::kVmm, random() % 2 == 0},
                         1 + random() % 60,
                         {{Zone{3, Backing::kVmm}, random() % 3 * 16}}};
      switch (random() % 6) {
        case 0:
        case 1: {
          last_made_ = {};
          const uint64_t before = space_->allocated();
          if (!DoNext(random() % 8 == 0 ? absl::ResourceExhaustedError("no")
                                        : absl::OkStatus())) {
            break;
          }
          if (space_->allocated() == before) break;
          ++failed;
          if (last_made_.owner.has_value()) images.erase(*last_made_.owner);
          break;
        }
        case 2:
          if (images.empty()) break;
          free(std::next(images.begin(), random() % images.size())->first);
          break;
        case 3:
          space_->ReleaseSlabs(want, [&](SlabId id) {
            return static_cast<Opened>(id.number() * seed % 3);
          });
          break;
        default: {
          const OwnerId owner(++last_);
          space_->RetrySlabs();
          absl::StatusOr<uint64_t> at = space_->Allocate(want, owner);
          if (absl::IsResourceExhausted(at.status())) {
            const auto hole = space_->CheapestHole(
                want, [&](OwnerId other) -> std::optional<double> {
                  const auto image = images.find(other);
                  if (image == images.end() ||
                      space_->IsComing(image->second.offset)) {
                    return std::nullopt;
                  }
                  return 1;
                });
            if (!hole.has_value()) break;
            for (const OwnerId victim : hole->victims) free(victim);
            ++evicted;
            at = space_->Allocate(want, owner);
            EXPECT_TRUE(at.ok() || absl::IsUnavailable(at.status()));
          }
          if (!at.ok()) break;
          if (want.zone.apart) ++apart;
          images[owner] = {want.zone, *at, want.bytes};
        }
      }
      for (const SlabWork& work : space_->TakeWork()) queue_.push_back(work);
      space_->Check();
      ASSERT_LE(space_->allocated(), space_->capacity());
      uint64_t end = 0;
      std::map<uint64_t, uint64_t> ends;
      for (const auto& [owner, image] : images) {
        ends[image.offset] = image.offset + image.bytes;
        ASSERT_EQ(space_->IsApart(image.offset), image.zone.apart);
        if (space_->IsComing(image.offset)) continue;
        ASSERT_TRUE(device_->Covers(image.offset, image.bytes));
      }
      ASSERT_EQ(ends.size(), images.size());
      for (const auto& [from, to] : ends) {
        ASSERT_LE(end, from);
        end = to;
      }
    }
  }
  EXPECT_GT(apart, 1000);
  EXPECT_GT(failed, 100);
  EXPECT_GT(evicted, 100);
}

}  // namespace hoistd::device_space_apart_test
