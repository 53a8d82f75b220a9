#include "daemon/core/space.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/core/space_rig.h"

namespace hoistd::space_test {

using namespace space_rig;

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::SizeIs;
using testing::StatusIs;

class SpaceTest : public SpaceRig {};

TEST_F(SpaceTest, WhatIsNeededLastLeavesAndIsToldOf) {
  AddModel(1, 3);
  demand_.next_use = {{Key(1, 0), absl::Seconds(9)},
                      {Key(1, 1), absl::Seconds(1)}};
  ASSERT_THAT(Bring(HostOf(Key(1, 0))), IsOk());
  ASSERT_THAT(Bring(HostOf(Key(1, 1))), IsOk());
  const uint64_t before = space_.epoch();
  EXPECT_THAT(Bring(HostOf(Key(1, 2))), IsOk());
  EXPECT_NE(space_.epoch(), before);
  EXPECT_FALSE(There(HostOf(Key(1, 0))));
  EXPECT_TRUE(There(HostOf(Key(1, 1))));
  EXPECT_THAT(space_.TakeWork().dropped, ElementsAre(HostOf(Key(1, 0))));
  EXPECT_THAT(space_.TakeWork().dropped, IsEmpty());
}

TEST_F(SpaceTest, WhatSomebodyWaitsForStays) {
  AddModel(1, 3);
  ASSERT_THAT(Bring(HostOf(Key(1, 0))), IsOk());
  ASSERT_THAT(Bring(HostOf(Key(1, 1))), IsOk());
  demand_.awaited = {HostOf(Key(1, 0)), HostOf(Key(1, 1))};
  EXPECT_THAT(Reserve(HostOf(Key(1, 2))),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(copies_.At(HostOf(Key(1, 2))).state, Residency::kAbsent);
}

TEST_F(SpaceTest, APrefetchPushesOutNothingThatIsNeededSooner) {
  AddModel(1, 3);
  ASSERT_THAT(Bring(HostOf(Key(1, 0))), IsOk());
  ASSERT_THAT(Bring(HostOf(Key(1, 1))), IsOk());
  demand_.next_use = {{Key(1, 0), absl::Seconds(1)},
                      {Key(1, 1), absl::Seconds(1)},
                      {Key(1, 2), absl::Seconds(2)}};
  EXPECT_THAT(Reserve(HostOf(Key(1, 2)), /*urgent=*/false),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Reserve(HostOf(Key(1, 2)), /*urgent=*/true), IsOk());
}

TEST_F(SpaceTest, WhatIsNowhereElseIsWrittenToTheDiskBeforeItLeaves) {
  AddModel(1, 2, /*in_files=*/false);
  AddModel(2, 1);
  ASSERT_THAT(Bring(HostOf(Key(1, 0)), kStart - absl::Seconds(9)), IsOk());
  ASSERT_THAT(Bring(HostOf(Key(1, 1))), IsOk());
  EXPECT_THAT(Reserve(HostOf(Key(2, 0))),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(space_.TakeWork().spills, ElementsAre(::testing::Key(Key(1, 0))));
  EXPECT_TRUE(There(HostOf(Key(1, 0))));
}

TEST_F(SpaceTest, AFullDiskCostsTheModelsThatNoSessionUses) {
  AddModel(1, 1, /*in_files=*/false);
  AddModel(2, 1, /*in_files=*/false);
  AddModel(3, 1);
  ASSERT_THAT(Bring(HostOf(Key(1, 0)), kStart - absl::Seconds(9)), IsOk());
  ASSERT_THAT(Bring(HostOf(Key(2, 0))), IsOk());
  disk_.Failed(absl::ResourceExhaustedError("full"), kStart);
  demand_.used = {ModelId(1), ModelId(2)};
  EXPECT_THAT(Reserve(HostOf(Key(3, 0))),
              StatusIs(absl::StatusCode::kResourceExhausted));
  demand_.used = {ModelId(1)};
  EXPECT_THAT(Reserve(HostOf(Key(3, 0))), IsOk());
  const SpaceWork work = space_.TakeWork();
  ASSERT_THAT(work.forgotten, SizeIs(1));
  EXPECT_EQ(work.forgotten[0].model, ModelId(2));
  EXPECT_EQ(work.forgotten[0].unsaved_bytes, kPage);
  EXPECT_FALSE(There(HostOf(Key(2, 0))));
  EXPECT_TRUE(There(HostOf(Key(1, 0))));
}

TEST_F(SpaceTest, OfTheHostAsMuchIsKeptAsTheDiskAloneHas) {
  AddModel(1, 1, /*in_files=*/false);
  copies_.SetSpilled(*copies_.FindGroup(Key(1, 0)), SpillId(1));
  demand_.used = {ModelId(1)};
  disk_.Failed(absl::ResourceExhaustedError("full"), kStart);
  const OwnerId owner = copies_.NewOwner();
  const auto first = space_.PlaceUnsaved(owner, kPage, 0, kStart);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(space_.KeepWayBack(*first, kPage, kStart), IsOk());
  // The other page is the way back of what is on the disk.
  EXPECT_THAT(space_.PlaceUnsaved(copies_.NewOwner(), kPage, kPage, kStart),
              StatusIs(absl::StatusCode::kResourceExhausted));
  space_.FreeHost(*first);
}

TEST_F(SpaceTest, WhatPlansWerePromisedIsNobodyElses) {
  AddModel(1, 2);
  const Zone everyone = {.readers = Zone::kEveryone};
  PromiseBook& book = space_.promises()[0];
  book.AddRing(everyone, 3 * kPage);
  book.Promise(DeviceOf(Key(1, 0)), everyone, kPage);
  EXPECT_THAT(space_.CheckReservations(DeviceOf(Key(1, 0))), IsOk());
  EXPECT_THAT(Reserve(DeviceOf(Key(1, 1))),
              StatusIs(absl::StatusCode::kResourceExhausted));
  book.Unpromise(DeviceOf(Key(1, 0)));
  EXPECT_THAT(space_.CheckReservations(DeviceOf(Key(1, 1))), IsOk());
  book.RemoveRing(everyone, 3 * kPage);
}

TEST_F(SpaceTest, OnlyForWhoWaitsIsAWorkerAskedToCloseItsSlabs) {
  AddModel(1, 1);
  ASSERT_THAT(Bring(DeviceOf(Key(1, 0))), IsOk());
  const uint64_t offset = copies_.At(DeviceOf(Key(1, 0))).offset;
  EXPECT_THAT(space_.UseSlabs(kWorker, kDevice, offset, kPage), SizeIs(1));
  space_.LeaveSlabs(kWorker, kDevice, offset, kPage);
  // An image of all of the device, in another zone.
  CopyRef large = DeviceOf(Key(1, 0));
  large.place.shared = true;
  SpaceClaim claim = {.copy = large, .urgent = false, .waited_for = false};
  const OwnerId owner = copies_.NewOwner();
  EXPECT_THAT(space_.PlaceOnDevice(claim, owner, 4 * kPage, kStart),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(space_.TakeWork().asks, IsEmpty());
  claim.waited_for = true;
  EXPECT_THAT(space_.PlaceOnDevice(claim, owner, 4 * kPage, kStart),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(space_.TakeWork().asks,
              ElementsAre(Field(&SlabAsk::session, kWorker)));
}

TEST_F(SpaceTest, ACopyApartHasNoPlaceIfItsSlabCannotBeMade) {
  AddModel(1, 1);
  CopyRef apart = DeviceOf(Key(1, 0));
  apart.place.apart = true;
  ASSERT_THAT(Reserve(apart), IsOk());
  EXPECT_TRUE(space_.device(kDevice).IsComing(copies_.At(apart).offset));
  const std::vector<SlabWork> slabs = space_.TakeWork().slabs;
  ASSERT_THAT(slabs, SizeIs(1));
  const Space::SlabOutcome outcome = space_.SlabMade(
      kDevice, slabs[0].slab.id, absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(outcome.copy, apart);
  EXPECT_EQ(copies_.At(apart).state, Residency::kAbsent);
  EXPECT_FALSE(space_.promises(kDevice).IsFirm(apart));
}

TEST_F(SpaceTest, AnArenaHasPlacesForAllPiecesOrForNone) {
  const Zone zone = {.readers = 1, .apart = true, .writable = true};
  const std::vector<ArenaPiece> five(5, ArenaPiece{.bytes = kPage});
  EXPECT_THAT(space_.PlacePieces(kDevice, zone, five, kStart),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(space_.device(kDevice).used(), 0u);
  EXPECT_EQ(space_.MostForArena(kDevice, zone, kStart), 4 * kPage);
  const std::vector<ArenaPiece> four(4, ArenaPiece{.bytes = kPage});
  const auto placed = space_.PlacePieces(kDevice, zone, four, kStart);
  ASSERT_THAT(placed, IsOk());
  EXPECT_EQ(space_.device(kDevice).used(), 4 * kPage);
  for (const ArenaPiece& piece : *placed) {
    EXPECT_TRUE(piece.made_anew);
    space_.device(kDevice).GiveUp(piece.offset);
  }
}

TEST_F(SpaceTest, ASuccessorIsToldOfWhatLiesNoLongerThere) {
  AddModel(1, 1, /*in_files=*/false);
  ASSERT_THAT(Bring(HostOf(Key(1, 0))), IsOk());
  kept_.Take();
  EXPECT_EQ(space_.DropModel(ModelId(1)), kPage);
  const std::vector<Persisted> kept = kept_.Take();
  ASSERT_THAT(kept, SizeIs(1));
  EXPECT_EQ(std::get<PersistedOnHost>(kept[0]).what.index(), 0u);
  EXPECT_EQ(space_.host().used(), 0u);
}

}  // namespace hoistd::space_test
