#include "daemon/core/apart_slabs.h"

#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::apart_slabs_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

constexpr uint64_t kBegin = 1000;
constexpr uint64_t kBytes = 100;
const Zone kZone = {.readers = 1, .apart = true};
const Zone kOther = {.readers = 2, .apart = true};
const Zone kWritable = {.readers = 1, .apart = true, .writable = true};
const OwnerId kOwner(7);

std::optional<double> ByNumber(OwnerId owner) {
  return static_cast<double>(owner.number());
}

class ApartSlabsTest : public ::testing::Test {
 protected:
  // Where one lies that is there, and the owner's.
  uint64_t Put(const Zone& zone, uint64_t bytes, OwnerId owner) {
    const ApartSlabs::Slab* slab =
        slabs_.Add(zone, SlabId(++last_), bytes, owner);
    EXPECT_NE(slab, nullptr);
    if (slab == nullptr) return 0;
    const uint64_t offset = slab->spec.offset;
    slabs_.Made(offset);
    slabs_.Check();
    return offset;
  }
  static SlabSpec Spec(uint64_t id, uint64_t offset, uint64_t bytes) {
    return {SlabId(id), offset, bytes, Backing::kMemfd, /*apart=*/true};
  }

  ApartSlabs slabs_{kBegin, kBytes};
  uint64_t last_ = 0;
};

TEST_F(ApartSlabsTest, ASlabHasItsOwnerFromWhenItIsAskedFor) {
  const ApartSlabs::Slab* slab = slabs_.Add(kZone, SlabId(1), 16, kOwner);
  ASSERT_NE(slab, nullptr);
  EXPECT_TRUE(slab->coming);
  EXPECT_EQ(slab->owner, kOwner);
  EXPECT_TRUE(slab->spec.apart);
  EXPECT_EQ(slab->spec.offset, kBegin);
  EXPECT_EQ(slabs_.used(), 16u);
  slabs_.Check();
  // Nobody else is given it, nor when it is there.
  EXPECT_EQ(slabs_.Take(kZone, 16, OwnerId(8)), nullptr);
  slabs_.Made(kBegin);
  EXPECT_EQ(slabs_.Take(kZone, 16, OwnerId(8)), nullptr);
  EXPECT_FALSE(slabs_.At(kBegin)->coming);
  slabs_.Check();
}

TEST_F(ApartSlabsTest, WhatWasWrittenToIsFreeWhileItIsZeroedAndReadyAfter) {
  const uint64_t first = Put(kWritable, 16, kOwner);
  EXPECT_TRUE(slabs_.At(first)->spec.writable);
  slabs_.FreeToZero(first);
  slabs_.Check();
  EXPECT_EQ(slabs_.used(), 0u);
  EXPECT_EQ(slabs_.free_writable(), 16u);
  EXPECT_FALSE(slabs_.At(first)->ready());
  // One that is ready goes before it.
  const uint64_t ready = Put(kWritable, 16, OwnerId(8));
  slabs_.Free(ready);
  EXPECT_EQ(slabs_.Take(kWritable, 16, OwnerId(9))->spec.offset, ready);
  EXPECT_EQ(slabs_.Take(kWritable, 16, OwnerId(10))->spec.offset, first);
  EXPECT_FALSE(slabs_.At(first)->ready());  // Whoever has it waits.
  slabs_.Check();
  slabs_.Zeroed(first);
  EXPECT_TRUE(slabs_.At(first)->ready());
  EXPECT_EQ(slabs_.At(first)->owner, OwnerId(10));
  EXPECT_EQ(slabs_.free_writable(), 0u);
  slabs_.Check();
}

TEST_F(ApartSlabsTest, WhoGivesItUpWhileItIsZeroedLeavesItSo) {
  const uint64_t offset = Put(kWritable, 16, kOwner);
  slabs_.FreeToZero(offset);
  slabs_.Take(kWritable, 16, OwnerId(8));
  slabs_.Free(offset);
  slabs_.Check();
  EXPECT_FALSE(slabs_.At(offset)->ready());
  slabs_.Zeroed(offset);
  slabs_.Check();
  EXPECT_TRUE(slabs_.At(offset)->ready());
  slabs_.Remove(offset);
  slabs_.Check();
  EXPECT_EQ(slabs_.free_writable(), 0u);
}

TEST_F(ApartSlabsTest, WeightsAreNeverInWhatIsWritable) {
  slabs_.FreeToZero(Put(kWritable, 16, kOwner));
  EXPECT_EQ(slabs_.Take(kZone, 16, OwnerId(8)), nullptr);
  SlabSpec spec = Spec(9, kBegin + 32, 16);
  EXPECT_THAT(slabs_.Restore(kWritable, spec),
              StatusIs(absl::StatusCode::kInvalidArgument));
  spec.writable = true;
  EXPECT_THAT(slabs_.Restore(kZone, spec),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(slabs_.Restore(kWritable, spec));
  slabs_.Check();
}

TEST_F(ApartSlabsTest, OneThatIsGivenUpWhileItComesIsFreeWhenItIsThere) {
  slabs_.Add(kZone, SlabId(1), 16, kOwner);
  slabs_.Free(kBegin);
  EXPECT_EQ(slabs_.used(), 0u);
  EXPECT_THAT(slabs_.free(), IsEmpty());
  EXPECT_EQ(slabs_.Take(kZone, 16, OwnerId(8)), nullptr);
  slabs_.Check();
  slabs_.Made(kBegin);
  EXPECT_THAT(slabs_.free(), ElementsAre(kBegin));
  slabs_.Check();
  const ApartSlabs::Slab* taken = slabs_.Take(kZone, 16, OwnerId(8));
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->spec.id, SlabId(1));
  EXPECT_EQ(taken->owner, OwnerId(8));
  slabs_.Check();
}

TEST_F(ApartSlabsTest, OneThatCannotBeMadeLeavesItsAddresses) {
  slabs_.Add(kZone, SlabId(1), kBytes, kOwner);
  slabs_.Remove(kBegin);
  EXPECT_EQ(slabs_.used(), 0u);
  EXPECT_EQ(slabs_.Find(SlabId(1)), nullptr);
  slabs_.Check();
  slabs_.Add(kZone, SlabId(2), kBytes, kOwner);
  slabs_.Free(kBegin);  // Nobody waits for it any more when it fails.
  slabs_.Remove(kBegin);
  EXPECT_EQ(slabs_.used(), 0u);
  slabs_.Check();
  EXPECT_EQ(Put(kZone, kBytes, kOwner), kBegin);
}

TEST_F(ApartSlabsTest, AFreeOneServesItsZoneAndSizeAlone) {
  slabs_.Free(Put(kZone, 16, kOwner));
  EXPECT_EQ(slabs_.Take(kOther, 16, kOwner), nullptr);
  EXPECT_EQ(slabs_.Take(kZone, 8, kOwner), nullptr);
  EXPECT_EQ(slabs_.Take(kZone, 32, kOwner), nullptr);
  slabs_.Check();
  EXPECT_NE(slabs_.Take(kZone, 16, kOwner), nullptr);
  EXPECT_THAT(slabs_.free(), IsEmpty());
  slabs_.Check();
}

TEST_F(ApartSlabsTest, WithoutAddressesThereIsNone) {
  Put(kZone, 60, kOwner);
  EXPECT_EQ(slabs_.Add(kZone, SlabId(90), 60, OwnerId(8)), nullptr);
  EXPECT_EQ(slabs_.Find(SlabId(90)), nullptr);
  EXPECT_EQ(slabs_.used(), 60u);
  slabs_.Check();
  EXPECT_NE(slabs_.Add(kZone, SlabId(91), 40, OwnerId(8)), nullptr);
}

TEST_F(ApartSlabsTest, TheCheapestOfTheSameZoneAndSizeLeaves) {
  Put(kZone, 16, OwnerId(5));
  const uint64_t cheap = Put(kZone, 16, OwnerId(3));
  Put(kZone, 8, OwnerId(1));
  Put(kOther, 16, OwnerId(2));
  slabs_.Add(kZone, SlabId(99), 16, OwnerId(0));  // It is coming.
  const std::optional<Hole> hole = slabs_.Cheapest(kZone, 16, ByNumber);
  ASSERT_TRUE(hole.has_value());
  EXPECT_EQ(hole->offset, cheap);
  EXPECT_THAT(hole->victims, ElementsAre(OwnerId(3)));
  EXPECT_EQ(hole->value, 3);
  const auto leased = [](OwnerId) -> std::optional<double> { return {}; };
  EXPECT_EQ(slabs_.Cheapest(kZone, 16, leased), std::nullopt);
}

TEST_F(ApartSlabsTest, WhatIsRestoredIsFreeUntilItsImageIsPutThere) {
  ASSERT_OK(slabs_.Restore(kZone, Spec(5, kBegin + 32, 16)));
  slabs_.Check();
  EXPECT_THAT(slabs_.free(), ElementsAre(kBegin + 32));
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(slabs_.RestoreAt(kZone, kBegin + 32, 8, kOwner), refused);
  EXPECT_THAT(slabs_.RestoreAt(kOther, kBegin + 32, 16, kOwner), refused);
  EXPECT_THAT(slabs_.RestoreAt(kZone, kBegin, 16, kOwner), refused);
  EXPECT_THAT(slabs_.RestoreAt(kZone, kBegin + 40, 8, kOwner), refused);
  ASSERT_OK(slabs_.RestoreAt(kZone, kBegin + 32, 16, kOwner));
  EXPECT_THAT(slabs_.RestoreAt(kZone, kBegin + 32, 16, OwnerId(8)), refused);
  EXPECT_EQ(slabs_.used(), 16u);
  slabs_.Check();
}

TEST_F(ApartSlabsTest, WhatCannotLieThereIsNotRestored) {
  ASSERT_OK(slabs_.Restore(kZone, Spec(5, kBegin + 32, 16)));
  SlabSpec shared = Spec(6, kBegin, 16);
  shared.apart = false;
  SlabSpec foreign = Spec(6, kBegin, 16);
  foreign.backing = Backing::kVmm;
  for (const SlabSpec& bad :
       {Spec(5, kBegin, 16), Spec(6, kBegin + 40, 16), Spec(6, kBegin + 24, 16),
        Spec(6, kBegin - 16, 16), Spec(6, 0, 16), Spec(6, kBegin + 96, 16),
        Spec(6, kBegin + kBytes, 16), Spec(6, UINT64_MAX - 15, 16), shared,
        foreign}) {
    EXPECT_THAT(slabs_.Restore(kZone, bad),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << bad.id.number() << " at " << bad.offset;
    slabs_.Check();
  }
  ASSERT_OK(slabs_.Restore(kZone, Spec(6, kBegin, 32)));
  slabs_.Check();
}

// A model of it, beside: whatever happens, each image has a slab of its own.
TEST_F(ApartSlabsTest, RandomLivesKeepTheTotalsAndGiveEveryImageItsOwn) {
  std::mt19937 random(15);
  ApartSlabs slabs(kBegin, 1000);
  std::map<OwnerId, uint64_t> owned;  // Where.
  std::set<uint64_t> coming;
  uint64_t last = 0;
  const std::vector<Zone> zones = {kZone, kOther};
  const auto pick = [&](const auto& from) {
    return std::next(from.begin(), random() % from.size());
  };
  for (int step = 0; step < 20'000; ++step) {
    switch (random() % 6) {
      case 0:
      case 1: {
        const Zone& zone = zones[random() % 2];
        const uint64_t bytes = 10 * (1 + random() % 6);
        const OwnerId owner(++last);
        const ApartSlabs::Slab* slab = slabs.Take(zone, bytes, owner);
        if (slab == nullptr) {
          slab = slabs.Add(zone, SlabId(last), bytes, owner);
          if (slab != nullptr) coming.insert(slab->spec.offset);
        }
        if (slab == nullptr) break;
        ASSERT_EQ(slab->zone, zone);
        ASSERT_EQ(slab->spec.bytes, bytes);
        for (const auto& [other, at] : owned) ASSERT_NE(at, slab->spec.offset);
        owned[owner] = slab->spec.offset;
        break;
      }
      case 2:
        if (coming.empty()) break;
        slabs.Made(*coming.begin());
        coming.erase(coming.begin());
        break;
      case 3: {
        if (coming.empty()) break;
        const uint64_t failed = *pick(coming);
        slabs.Remove(failed);
        coming.erase(failed);
        std::erase_if(owned, [&](const auto& o) { return o.second == failed; });
        break;
      }
      case 4: {
        if (owned.empty()) break;
        const auto gone = pick(owned);
        slabs.Free(gone->second);
        owned.erase(gone);
        break;
      }
      case 5:
        if (!slabs.free().empty()) slabs.Remove(*pick(slabs.free()));
        break;
    }
    slabs.Check();
    uint64_t used = 0;
    for (const auto& [owner, at] : owned) {
      ASSERT_EQ(slabs.At(at)->owner, owner);
      used += slabs.At(at)->spec.bytes;
    }
    ASSERT_EQ(slabs.used(), used) << "step " << step;
  }
}

}  // namespace hoistd::apart_slabs_test
