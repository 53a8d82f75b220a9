// Copies in slabs of their own, and memory that is read in place.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_apart_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::Not;
using ::testing::SizeIs;
using testing::StatusIs;

const TierAt kDevice = NodeRig::FirstDevice();
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

// Ada's and Bob's models of groups of two pages each, on a device of eight
// pages beside eight that are read in place.
struct Apart : NodeRig {
  explicit Apart(NodeRigOptions options = {.in_place_pages = 8})
      : NodeRig(options) {}
  absl::Status StatusOf(RequestId request) {
    const Answer* answer = AnswerTo(request);
    return answer == nullptr ? absl::InternalError("not answered")
                             : answer->status;
  }
  const LeaseGrant& GrantOf(LeaseId lease) { return leases().at(lease).second; }
  uint64_t Slabs(uint32_t device) {
    return this->device(device).slabs().size();
  }

  SessionId ada = Open(1), bob = Open(2);
  ModelId adas = AddModel(ada, "m", {2, 2, 2, 2, 2, 2});
  ModelId bobs = AddModel(bob, "m", {2, 2, 2, 2, 2, 2});
};

// --- Slabs of their own ------------------------------------------------------

TEST(NodeApart, EachGroupLiesInASlabOfItsOwn) {
  Apart rig;
  for (const uint32_t device : {0u, rig.in_place()}) {
    for (uint32_t g = 0; g < 3; ++g) {
      const LeaseGrant& grant =
          rig.GrantOf(rig.StageApartNow(rig.ada, Key(rig.adas, g), device));
      EXPECT_TRUE(grant.apart);
      ASSERT_THAT(grant.new_slabs, SizeIs(1));
      EXPECT_TRUE(grant.new_slabs[0].slab.apart);
      EXPECT_EQ(grant.new_slabs[0].slab.offset, grant.offset);
    }
    EXPECT_EQ(rig.Slabs(device), 3u);
  }
}

// Two a slab there: three slabs.
TEST(NodeApart, DescriptorsAreBoundAndWhatNobodyLeasesGivesThemBack) {
  Apart rig({.in_place_pages = 8, .apart_descriptors = 6});
  const LeaseId first =
      rig.StageApartNow(rig.ada, Key(rig.adas, 0), rig.in_place());
  rig.StageApartNow(rig.ada, Key(rig.adas, 1), rig.in_place());
  const LeaseId hot = rig.StageApartNow(rig.ada, Key(rig.adas, 0), 0);
  // All are leased, on whichever device.
  const RequestId more = rig.StageApart(rig.bob, Key(rig.bobs, 0),
                                        rig.in_place(), absl::ZeroDuration());
  EXPECT_THAT(rig.StatusOf(more),
              StatusIs(kExhausted, HasSubstr("LimitNOFILE")));
  // A copy that nobody leases goes, on another device too.
  ASSERT_OK(rig.Release(rig.ada, hot));
  rig.StageApartNow(rig.bob, Key(rig.bobs, 0), rig.in_place());
  EXPECT_EQ(rig.Slabs(0), 0u);
  ASSERT_OK(rig.Release(rig.ada, first));
  rig.StageApartNow(rig.bob, Key(rig.bobs, 1), 0);
  EXPECT_EQ(rig.Slabs(rig.in_place()), 2u);
}

TEST(NodeApart, OneGroupMayLieApartAndWithOthers) {
  Apart rig;
  const LeaseId apart = rig.StageApartNow(rig.ada, Key(rig.adas, 0), 0);
  const LeaseId beside = rig.StageNow(rig.ada, Key(rig.adas, 0));
  EXPECT_FALSE(rig.GrantOf(beside).apart);
  EXPECT_NE(rig.GrantOf(apart).offset, rig.GrantOf(beside).offset);
  EXPECT_EQ(rig.TierOf(kDevice).leased_bytes, 4 * kPage);
  ASSERT_OK(rig.Release(rig.ada, apart));
  EXPECT_EQ(rig.TierOf(kDevice).leased_bytes, 2 * kPage);
}

TEST(NodeApart, WorkersOfOneUserShareTheCopy) {
  Apart rig;
  const SessionId other = rig.Open(1);
  const LeaseId one = rig.StageApartNow(rig.ada, Key(rig.adas, 0), 0);
  const RequestId request = rig.StageApart(other, Key(rig.adas, 0), 0);
  const LeaseId two = rig.LeaseOf(request);  // At once.
  EXPECT_EQ(rig.GrantOf(one).offset, rig.GrantOf(two).offset);
  EXPECT_TRUE(rig.GrantOf(two).was_resident);
  EXPECT_THAT(rig.GrantOf(two).new_slabs, SizeIs(1));
  EXPECT_EQ(rig.Slabs(0), 1u);
  // One that dies takes nothing from the other.
  rig.Close(rig.ada);
  EXPECT_EQ(rig.TierOf(kDevice).leased_bytes, 2 * kPage);
}

TEST(NodeApart, WhoWaitsForItsSlabGetsThatOneAndNobodyElseIsWoken) {
  Apart rig;
  rig.hold_slabs = true;
  const RequestId first =
      rig.StageApart(rig.ada, Key(rig.adas, 0), 0, absl::ZeroDuration());
  const RequestId second =
      rig.StageApart(rig.ada, Key(rig.adas, 1), 0, absl::ZeroDuration());
  ASSERT_THAT(rig.slab_work(), SizeIs(2));
  rig.FinishAll();  // Their bytes come to the host meanwhile.
  EXPECT_THAT(rig.Moving(), IsEmpty());
  EXPECT_TRUE(rig.waiting(first));
  const uint64_t place = rig.slab_work()[0].slab.offset;
  rig.DoNextSlab();
  ASSERT_THAT(rig.Moving<HostToDevice>(), SizeIs(1));
  EXPECT_EQ(rig.TheWay<HostToDevice>().device_offset, place);
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(first));
  EXPECT_TRUE(rig.waiting(second));
  rig.DoNextSlab();
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(second));
}

TEST(NodeApart, ASlabMayComeBeforeTheBytes) {
  Apart rig;
  rig.hold_slabs = true;
  const RequestId stage = rig.StageApart(rig.ada, Key(rig.adas, 0), 0);
  rig.DoNextSlab();
  EXPECT_THAT(rig.Moving<HostToDevice>(), IsEmpty());
  rig.Finish<FilesToHost>();
  rig.Finish<HostToDevice>();
  EXPECT_OK(rig.StatusOf(stage));
}

TEST(NodeApart, ASlabThatCannotBeMadeIsARefusalWithItsReason) {
  Apart rig;
  rig.hold_slabs = true;
  const RequestId stage =
      rig.StageApart(rig.ada, Key(rig.adas, 0), 0, absl::ZeroDuration());
  rig.DoNextSlab(0, absl::ResourceExhaustedError("another process has it"));
  EXPECT_THAT(rig.StatusOf(stage),
              StatusIs(kExhausted, HasSubstr("another process has it")));
  rig.FinishAll();
  EXPECT_EQ(rig.TierOf(kDevice).allocated_bytes, 0u);
  EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 0u);
  EXPECT_THAT(rig.slab_work(), IsEmpty());  // Not asked over and over.
  const RequestId later = rig.StageApart(rig.ada, Key(rig.adas, 0), 0);
  rig.DoNextSlab();
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(later));
}

TEST(NodeApart, ASlabThatCannotBeMadeMakesItEvictInstead) {
  Apart rig;
  ASSERT_OK(
      rig.Release(rig.ada, rig.StageApartNow(rig.ada, Key(rig.adas, 0), 0)));
  rig.hold_slabs = true;
  const RequestId stage =
      rig.StageApart(rig.ada, Key(rig.adas, 1), 0, absl::ZeroDuration());
  EXPECT_TRUE(rig.Has(Key(rig.adas, 0), kDevice));
  rig.DoNextSlab(0, absl::ResourceExhaustedError("none left"));
  EXPECT_FALSE(rig.Has(Key(rig.adas, 0), kDevice));
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(stage));
  EXPECT_EQ(rig.Slabs(0), 1u);
}

TEST(NodeApart, ADeadlineWhileTheSlabComesTakesNothingForGood) {
  Apart rig;
  rig.hold_slabs = true;
  const RequestId stage =
      rig.StageApart(rig.ada, Key(rig.adas, 0), 0, absl::Seconds(1));
  rig.Advance(absl::Seconds(2));
  EXPECT_THAT(rig.StatusOf(stage),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  rig.Advance(absl::Seconds(120));
  EXPECT_EQ(rig.TierOf(kDevice).leased_bytes, 0u);
  rig.DoNextSlab();
  rig.FinishAll();
  EXPECT_EQ(rig.node().NextDeadline(), absl::InfiniteFuture());
  // The next one of that size takes its place.
  rig.hold_slabs = false;
  for (uint32_t g = 1; g < 5; ++g) {
    rig.StageApartNow(rig.ada, Key(rig.adas, g), 0);
  }
  EXPECT_EQ(rig.Slabs(0), 4u);
}

TEST(NodeApart, ASessionThatEndsWhileItsSlabComesLeavesItToOthers) {
  Apart rig;
  rig.hold_slabs = true;
  const SessionId other = rig.Open(1);
  rig.StageApart(rig.ada, Key(rig.adas, 0), 0);
  rig.Close(rig.ada);
  rig.DoNextSlab();
  rig.FinishAll();
  rig.Advance(absl::Seconds(120));
  EXPECT_EQ(rig.node().NextDeadline(), absl::InfiniteFuture());
  rig.hold_slabs = false;
  for (uint32_t g = 0; g < 4; ++g) {
    rig.StageApartNow(other, Key(rig.adas, g), 0);
  }
  EXPECT_THAT(rig.leases(), SizeIs(4));
}

TEST(NodeApart, AModelForgottenWhileItsSlabComesLeavesNothing) {
  Apart rig;
  rig.hold_slabs = true;
  const RequestId stage = rig.StageApart(rig.ada, Key(rig.adas, 0), 0);
  rig.FinishAll();
  ASSERT_OK(rig.Forget(rig.adas));
  EXPECT_THAT(rig.StatusOf(stage), StatusIs(absl::StatusCode::kNotFound));
  rig.DoSlabWork();
  EXPECT_THAT(rig.Moving(), IsEmpty());
  EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 0u);
}

TEST(NodeApart, WhatIsCleanMakesRoomAndWhatIsLeasedStays) {
  Apart rig;
  std::vector<LeaseId> leases;
  for (uint32_t g = 0; g < 4; ++g) {
    leases.push_back(
        rig.StageApartNow(rig.ada, Key(rig.adas, g), rig.in_place()));
    rig.Advance(absl::Seconds(1));
  }
  const RequestId refused = rig.StageApart(
      rig.ada, Key(rig.adas, 4), rig.in_place(), absl::ZeroDuration());
  EXPECT_THAT(rig.StatusOf(refused),
              StatusIs(kExhausted, HasSubstr("needs 8.0 KiB in place; of 32.0 "
                                             "KiB (host.in_place)")));
  ASSERT_OK(rig.Release(rig.ada, leases[1]));
  rig.StageApartNow(rig.ada, Key(rig.adas, 4), rig.in_place());
  EXPECT_FALSE(rig.Has(Key(rig.adas, 1), rig.InPlace()));
  EXPECT_TRUE(rig.Has(Key(rig.adas, 0), rig.InPlace()));
  EXPECT_EQ(rig.Slabs(rig.in_place()), 4u);
  EXPECT_EQ(rig.device(rig.in_place()).creates(), 4);
}

TEST(NodeApart, IdleSlabsOfAnotherUserAreClosedForWhoWaits) {
  Apart rig({.in_place_pages = 8, .closing = NodeRigOptions::Closing::kByHand});
  for (uint32_t g = 0; g < 4; ++g) {
    ASSERT_OK(rig.Release(
        rig.ada, rig.StageApartNow(rig.ada, Key(rig.adas, g), rig.in_place())));
  }
  const RequestId stage =
      rig.StageApart(rig.bob, Key(rig.bobs, 0), rig.in_place());
  ASSERT_THAT(rig.asks(), SizeIs(1));
  EXPECT_THAT(rig.asks()[0].slabs, SizeIs(1));
  EXPECT_TRUE(rig.waiting(stage));
  rig.AnswerAsk();
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(stage));
  // Three of Ada's have stayed.
  EXPECT_EQ(rig.Slabs(rig.in_place()), 4u);
}

// --- Read in place -----------------------------------------------------------

TEST(NodeApart, ADevicesCopyComesFromInPlaceWhereTheHostPoolHasNone) {
  Apart rig;
  const LeaseId cold =
      rig.StageApartNow(rig.ada, Key(rig.adas, 0), rig.in_place());
  rig.Evict("m", OnHost());
  ASSERT_FALSE(rig.Has(Key(rig.adas, 0), OnHost()));
  const RequestId hot = rig.StageApart(rig.ada, Key(rig.adas, 0), 0);
  ASSERT_THAT(rig.Moving<InPlaceToDevice>(), SizeIs(1));
  EXPECT_THAT(rig.Moving(), SizeIs(1));  // Nothing from files.
  const auto& way = rig.TheWay<InPlaceToDevice>();
  EXPECT_EQ(way.from_offset, rig.GrantOf(cold).offset);
  EXPECT_EQ(way.device, DeviceIndex(0));
  const uint64_t before = rig.counters().host_to_device_bytes;
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(hot));
  EXPECT_EQ(rig.counters().host_to_device_bytes - before, 2 * kPage);
  EXPECT_FALSE(rig.Has(Key(rig.adas, 0), OnHost()));
}

TEST(NodeApart, WhatACopyReadsInPlaceStaysUntilItsEnd) {
  Apart rig;
  const LeaseId cold =
      rig.StageApartNow(rig.ada, Key(rig.adas, 0), rig.in_place());
  rig.Evict("m", OnHost());
  rig.StageApart(rig.ada, Key(rig.adas, 0), 0);
  ASSERT_THAT(rig.Moving<InPlaceToDevice>(), SizeIs(1));
  const TransferId copy = rig.Moving()[0];
  ASSERT_OK(rig.Release(rig.ada, cold));
  // Neither an admin nor whoever needs all of the memory has it leave.
  EXPECT_EQ(rig.Evict("m", rig.InPlace()).kept, 1u);
  EXPECT_THAT(rig.Forget(rig.adas),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("is being copied")));
  for (uint32_t g = 0; g < 4; ++g) {
    rig.StageApart(rig.bob, Key(rig.bobs, g), rig.in_place());
  }
  while (rig.Moving().size() > 1) rig.Finish(rig.Moving()[1]);
  EXPECT_TRUE(rig.Has(Key(rig.adas, 0), rig.InPlace()));
  rig.Finish(copy);
  rig.FinishAll();
  EXPECT_FALSE(rig.Has(Key(rig.adas, 0), rig.InPlace()));
  EXPECT_TRUE(rig.Has(Key(rig.adas, 0), kDevice));
}

TEST(NodeApart, ACopyFromInPlaceThatFailsIsARefusalAndLeavesTheColdOne) {
  Apart rig;
  rig.StageApartNow(rig.ada, Key(rig.adas, 0), rig.in_place());
  rig.Evict("m", OnHost());
  const RequestId hot = rig.StageApart(rig.ada, Key(rig.adas, 0), 0);
  rig.Finish<InPlaceToDevice>(absl::UnavailableError("no such luck"));
  EXPECT_THAT(rig.StatusOf(hot), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(rig.Has(Key(rig.adas, 0), rig.InPlace()));
  EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 0u);
  rig.StageApartNow(rig.ada, Key(rig.adas, 0), 0);
}

TEST(NodeApart, WhatGoesWhileTheSlabComesIsReadFromFiles) {
  Apart rig;
  const LeaseId cold =
      rig.StageApartNow(rig.ada, Key(rig.adas, 0), rig.in_place());
  rig.Evict("m", OnHost());
  rig.hold_slabs = true;
  const RequestId hot = rig.StageApart(rig.ada, Key(rig.adas, 0), 0);
  EXPECT_THAT(rig.Moving(), IsEmpty());
  ASSERT_OK(rig.Release(rig.ada, cold));
  EXPECT_EQ(rig.Evict("m", rig.InPlace()).groups, 1u);
  rig.DoNextSlab();
  rig.Finish<FilesToHost>();
  rig.Finish<HostToDevice>();
  EXPECT_OK(rig.StatusOf(hot));
}

TEST(NodeApart, ABackgroundLeaseIsHurriedOnceSomebodyNeedsIt) {
  Apart rig;
  rig.StageApart(rig.ada, Key(rig.adas, 0), 0, absl::Seconds(10),
                 /*background=*/true);
  rig.Finish<FilesToHost>();
  ASSERT_THAT(rig.Moving<HostToDevice>(), SizeIs(1));
  EXPECT_FALSE(rig.TransferOf(rig.Moving()[0]).urgent);
  const RequestId now =
      rig.StageApart(rig.ada, Key(rig.adas, 0), 0, absl::Seconds(10));
  EXPECT_THAT(rig.hurried(), SizeIs(1));
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(now));
  EXPECT_THAT(rig.leases(), SizeIs(2));
}

// --- Beside quotas and plans -------------------------------------------------

TEST(NodeApart, TheQuotaCountsWhatLiesApart) {
  NodeRigOptions options = {.in_place_pages = 8};
  options.quota.each.device_bytes = {4 * kPage, 6 * kPage};
  Apart rig(options);
  rig.StageApartNow(rig.ada, Key(rig.adas, 0), 0);
  rig.StageNow(rig.ada, Key(rig.adas, 0));
  EXPECT_THAT(rig.StatusOf(rig.StageApart(rig.ada, Key(rig.adas, 1), 0)),
              StatusIs(kExhausted, AllOf(HasSubstr("quota.device_bytes"),
                                         HasSubstr("of device 0"))));
  for (uint32_t g = 0; g < 3; ++g) {
    rig.StageApartNow(rig.ada, Key(rig.adas, g), rig.in_place());
  }
  EXPECT_THAT(
      rig.StatusOf(rig.StageApart(rig.ada, Key(rig.adas, 3), rig.in_place())),
      StatusIs(kExhausted, AllOf(HasSubstr("quota.device_bytes"),
                                 HasSubstr("of the memory in place"))));
}

TEST(NodeApart, ASessionsDeviceBudgetIsOfDeviceMemoryAlone) {
  Apart rig;
  const SessionId small = rig.Open(1, /*budget_pages=*/2);
  for (uint32_t g = 0; g < 4; ++g) {
    rig.StageApartNow(small, Key(rig.adas, g), rig.in_place());
  }
  rig.StageApartNow(small, Key(rig.adas, 0), 0);
  EXPECT_THAT(rig.StatusOf(rig.StageApart(small, Key(rig.adas, 1), 0)),
              StatusIs(kExhausted, HasSubstr("may lease 8.0 KiB at once")));
}

TEST(NodeApart, AGroupLargerThanTheMemoryNamesItsKey) {
  Apart rig;
  const ModelId large = rig.AddModel(rig.ada, "large", {9});
  const auto status = [&](uint32_t device) {
    return rig.StatusOf(rig.StageApart(rig.ada, Key(large, 0), device));
  };
  EXPECT_THAT(status(0), StatusIs(kExhausted, HasSubstr("raise device.pool")));
  EXPECT_THAT(
      status(rig.in_place()),
      StatusIs(
          kExhausted,
          AllOf(HasSubstr("all of the memory in place is 32.0 KiB"),
                HasSubstr("raise host.in_place"), Not(HasSubstr("device")))));
}

TEST(NodeApart, WhatIsReadInPlaceIsNotPlanned) {
  Apart rig;
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("leased group by group"));
  const RequestId plan = rig.SetPlan(rig.ada, rig.adas, {0, 1, 2}, 4,
                                     absl::Seconds(1), {}, rig.in_place());
  EXPECT_THAT(rig.StatusOf(plan), refused);
  // It is no device that anybody could mean.
  EXPECT_THAT(rig.StatusOf(rig.StageApart(rig.ada, Key(rig.adas, 0), 2)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no device 2; this node has 1")));
}

TEST(NodeApart, WhatPlansWerePromisedIsNotTakenApart) {
  Apart rig;
  // Six of eight pages: two residents of two, and a ring of two and a bit.
  const PlanGrant plan =
      rig.PlanOf(rig.SetPlan(rig.ada, rig.adas, {0, 1, 2, 3, 4, 5}, 6));
  const uint64_t left = 8 * kPage - plan.ring_bytes - plan.resident_bytes;
  EXPECT_EQ(left, 2 * kPage);
  rig.StageApartNow(rig.bob, Key(rig.bobs, 0), 0);
  EXPECT_THAT(rig.StatusOf(rig.StageApart(rig.bob, Key(rig.bobs, 1), 0,
                                          absl::ZeroDuration())),
              StatusIs(kExhausted, HasSubstr("promised")));
  // All of what was promised can be had.
  for (const PlannedGroup& group : plan.groups) {
    if (!group.resident) continue;
    rig.StageNow(rig.ada, {rig.adas, group.group});
  }
  // What is read in place is beside it.
  for (uint32_t g = 0; g < 4; ++g) {
    rig.StageApartNow(rig.bob, Key(rig.bobs, g), rig.in_place());
  }
}

TEST(NodeApart, APlanTakesTheMemoryOfWhatIsIdleApart) {
  Apart rig;
  for (uint32_t g = 0; g < 4; ++g) {
    ASSERT_OK(
        rig.Release(rig.bob, rig.StageApartNow(rig.bob, Key(rig.bobs, g), 0)));
  }
  const PlanGrant plan =
      rig.PlanOf(rig.SetPlan(rig.ada, rig.adas, {0, 1, 2, 3, 4, 5}, 8));
  for (const PlannedGroup& group : plan.groups) {
    if (!group.resident) continue;
    rig.StageNow(rig.ada, {rig.adas, group.group});
  }
}

TEST(NodeApart, APlanIsNotPromisedWhatIsLeasedApart) {
  Apart rig;
  for (uint32_t g = 0; g < 2; ++g) {
    rig.StageApartNow(rig.bob, Key(rig.bobs, g), 0);
  }
  EXPECT_THAT(rig.CheckPlan(rig.ada, rig.adas, {0, 1, 2, 3, 4, 5}, 6),
              StatusIs(kExhausted, HasSubstr("a budget of")));
  const PlanGrant plan =
      rig.PlanOf(rig.SetPlan(rig.ada, rig.adas, {0, 1, 2, 3, 4, 5}, 0));
  EXPECT_EQ(plan.budget_bytes, 4 * kPage);
}

// --- What a successor knows --------------------------------------------------

TEST(NodeApart, SlabsCopiesAndLeasesApartOutliveHoistd) {
  Apart rig;
  const LeaseId cold =
      rig.StageApartNow(rig.ada, Key(rig.adas, 0), rig.in_place());
  const LeaseId hot = rig.StageApartNow(rig.ada, Key(rig.adas, 0), 0);
  rig.StageNow(rig.ada, Key(rig.adas, 0));
  ASSERT_OK(rig.Release(
      rig.ada, rig.StageApartNow(rig.ada, Key(rig.adas, 1), rig.in_place())));
  const std::map<SlabId, SlabSpec> slabs = rig.device(rig.in_place()).slabs();
  ASSERT_TRUE(rig.Die());
  EXPECT_EQ(rig.TierOf(rig.InPlace()).leased_bytes, 2 * kPage);
  EXPECT_EQ(rig.TierOf(kDevice).leased_bytes, 4 * kPage);
  // What was there is leased without a copy, the idle one too.
  const SessionId other = rig.Open(1);
  const auto at_once = [&](uint32_t group, uint32_t device) {
    return rig.GrantOf(
        rig.LeaseOf(rig.StageApart(other, Key(rig.adas, group), device)));
  };
  EXPECT_EQ(at_once(0, 0).offset, rig.GrantOf(hot).offset);
  EXPECT_EQ(at_once(0, rig.in_place()).offset, rig.GrantOf(cold).offset);
  at_once(1, rig.in_place());
  EXPECT_THAT(rig.Moving(), IsEmpty());
  EXPECT_EQ(rig.device(rig.in_place()).slabs().size(), slabs.size());
  ASSERT_OK(rig.Release(rig.ada, cold));
  rig.Close(rig.ada);
  rig.Close(other);
  EXPECT_EQ(rig.TierOf(rig.InPlace()).leased_bytes, 0u);
  EXPECT_OK(rig.Forget(rig.adas));
}

TEST(NodeApart, ASlabOnItsWayAtTheDeathIsNobodysAndIsAskedForAnew) {
  Apart rig;
  rig.hold_slabs = true;
  rig.StageApart(rig.ada, Key(rig.adas, 0), rig.in_place());
  ASSERT_TRUE(rig.Die());
  EXPECT_EQ(rig.TierOf(rig.InPlace()).allocated_bytes, 0u);
  rig.hold_slabs = false;
  rig.StageApartNow(rig.ada, Key(rig.adas, 0), rig.in_place());
}

TEST(NodeApart, AnEmptySlabApartIsTakenOverAndServesAgain) {
  Apart rig;
  ASSERT_OK(rig.Release(
      rig.ada, rig.StageApartNow(rig.ada, Key(rig.adas, 0), rig.in_place())));
  rig.Evict("m", rig.InPlace());
  ASSERT_TRUE(rig.Die());
  EXPECT_EQ(rig.TierOf(rig.InPlace()).allocated_bytes, 2 * kPage);
  rig.StageApartNow(rig.ada, Key(rig.adas, 1), rig.in_place());
  EXPECT_EQ(rig.Slabs(rig.in_place()), 1u);
}

}  // namespace hoistd::node_apart_test
