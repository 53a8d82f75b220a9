// Arenas: memory in place that one session leases, and writes to.
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_arenas_test {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::Not;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kAtOnce = absl::ZeroDuration();

// Ada's and Bob's sessions beside eight pages in place, in pieces of four.
struct Arenas : NodeRig {
  explicit Arenas(NodeRigOptions options = {.in_place_pages = 8})
      : NodeRig(options) {}
  absl::Status StatusOf(RequestId request) {
    const Answer* answer = AnswerTo(request);
    return answer == nullptr ? absl::InternalError("not answered")
                             : answer->status;
  }
  // By offset: the slabs' numbers.
  std::map<uint64_t, SlabId> SlabsOf(const ArenaGrant& grant) {
    std::map<uint64_t, SlabId> slabs;
    for (const SlabUse& use : grant.slabs) {
      slabs[use.slab.offset] = use.slab.id;
    }
    return slabs;
  }
  TierUse Place() { return TierOf(InPlace()); }
  GroupKey Key(uint32_t group) { return {model, GroupIndex(group)}; }

  SessionId ada = Open(1), bob = Open(2);
  ModelId model = AddModel(bob, "m", {2, 2, 2, 2});
};

TEST(NodeArenas, IsOfPiecesThatNobodyElseHas) {
  Arenas rig;
  const ArenaGrant first = rig.ArenaOf(rig.OpenArena(rig.ada, 6));
  EXPECT_EQ(first.bytes, 6 * kPage);
  ASSERT_THAT(first.slabs, SizeIs(2));
  EXPECT_EQ(first.slabs[0].slab.bytes, 4 * kPage);
  const ArenaGrant second = rig.ArenaOf(rig.OpenArena(rig.ada, 1));
  EXPECT_THAT(rig.Place().holders, SizeIs(2));
  EXPECT_EQ(rig.Place().arena_bytes, 7 * kPage);
  EXPECT_THAT(rig.node().books().arenas.Of(rig.ada),
              ::testing::ElementsAre(first.id, second.id));
}

TEST(NodeArenas, IsBackWhenItIsClosedOrItsSessionEnds) {
  Arenas rig;
  const ArenaGrant first = rig.ArenaOf(rig.OpenArena(rig.ada, 3));
  rig.ArenaOf(rig.OpenArena(rig.ada, 2));
  ASSERT_OK(rig.CloseArena(rig.ada, first.id));
  EXPECT_EQ(rig.Place().arena_bytes, 2 * kPage);
  EXPECT_THAT(rig.CloseArena(rig.ada, first.id),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no arena")));
  rig.Close(rig.ada);
  EXPECT_EQ(rig.Place().arena_bytes, 0u);
  EXPECT_EQ(rig.Place().used_bytes, 0u);
  EXPECT_THAT(rig.events(),
              Contains(Field(&NodeEvent::detail, HasSubstr("1 arenas"))));
}

TEST(NodeArenas, AnothersCannotBeClosed) {
  Arenas rig;
  const ArenaGrant arena = rig.ArenaOf(rig.OpenArena(rig.ada, 3));
  EXPECT_THAT(rig.CloseArena(rig.bob, arena.id),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no arena")));
  EXPECT_EQ(rig.Place().arena_bytes, 3 * kPage);
}

// The rig looks that no byte of the first is in the second.
TEST(NodeArenas, TheUsersNextHasTheSameMemoryZeroed) {
  Arenas rig;
  const ArenaGrant first = rig.ArenaOf(rig.OpenArena(rig.ada, 6));
  rig.Close(rig.ada);
  EXPECT_EQ(rig.Place().kept_arena_bytes, 6 * kPage);
  const SessionId next = rig.Open(1);
  const ArenaGrant second = rig.ArenaOf(rig.OpenArena(next, 6));
  EXPECT_EQ(rig.SlabsOf(first), rig.SlabsOf(second));
  EXPECT_EQ(rig.Place().kept_arena_bytes, 0u);
  const Counters& counters = rig.counters();
  EXPECT_EQ(counters.arena_made_bytes, 6 * kPage);
  EXPECT_EQ(counters.arena_reused_bytes, 6 * kPage);
}

TEST(NodeArenas, WhoComesWhileItIsBeingZeroedWaitsForThatAndMakesNone) {
  Arenas rig;
  const ArenaGrant first = rig.ArenaOf(rig.OpenArena(rig.ada, 4));
  rig.hold_slabs = true;
  ASSERT_OK(rig.CloseArena(rig.ada, first.id));
  const RequestId request = rig.OpenArena(rig.ada, 4, kAtOnce);
  EXPECT_TRUE(rig.waiting(request));
  rig.DoNextSlab(rig.in_place());
  EXPECT_EQ(rig.SlabsOf(first), rig.SlabsOf(rig.ArenaOf(request)));
}

TEST(NodeArenas, AnotherUsersNextHasOtherMemory) {
  Arenas rig;
  const ArenaGrant first = rig.ArenaOf(rig.OpenArena(rig.ada, 4));
  rig.Close(rig.ada);
  const ArenaGrant second = rig.ArenaOf(rig.OpenArena(rig.bob, 8));
  ASSERT_THAT(second.slabs, SizeIs(2));
  for (const SlabUse& use : second.slabs) {
    EXPECT_NE(use.slab.id, first.slabs[0].slab.id);
  }
  EXPECT_EQ(rig.Place().kept_arena_bytes, 0u);  // It was in the way.
  EXPECT_EQ(rig.counters().arena_reused_bytes, 0u);
}

TEST(NodeArenas, WhatCannotBeZeroedGoesAndWhoWaitedForItIsTold) {
  Arenas rig;
  const ArenaGrant first = rig.ArenaOf(rig.OpenArena(rig.ada, 4));
  rig.hold_slabs = true;
  ASSERT_OK(rig.CloseArena(rig.ada, first.id));
  const RequestId request = rig.OpenArena(rig.ada, 4, kAtOnce);
  rig.DoNextSlab(rig.in_place(), absl::InternalError("a bad page"));
  EXPECT_THAT(rig.StatusOf(request),
              StatusIs(kExhausted, HasSubstr("a bad page")));
  EXPECT_TRUE(rig.device(rig.in_place()).slabs().empty());
  EXPECT_EQ(rig.Place().allocated_bytes, 0u);
}

TEST(NodeArenas, OneThatIsGivenUpWhileItComesIsTheNextOnes) {
  Arenas rig;
  rig.hold_slabs = true;
  rig.OpenArena(rig.ada, 4);
  rig.Close(rig.ada);
  rig.DoSlabWork();
  EXPECT_EQ(rig.Place().kept_arena_bytes, 4 * kPage);
  rig.hold_slabs = false;
  rig.ArenaOf(rig.OpenArena(rig.Open(1), 4));
  EXPECT_EQ(rig.counters().arena_made_bytes, 0u);
}

TEST(NodeArenas, WhereMemoryCannotBeMadeTheRefusalSaysWhy) {
  Arenas rig;
  rig.hold_slabs = true;
  const RequestId request = rig.OpenArena(rig.ada, 8);
  rig.DoNextSlab(rig.in_place());
  rig.DoNextSlab(rig.in_place(), absl::ResourceExhaustedError("no pages left"));
  EXPECT_THAT(rig.StatusOf(request),
              StatusIs(kExhausted, HasSubstr("no pages left")));
  EXPECT_EQ(rig.Place().kept_arena_bytes, 4 * kPage);
}

// --- Room
// ---------------------------------------------------------------------

TEST(NodeArenas, TheLeastThatWouldDoIsInTheRefusal) {
  Arenas rig;
  rig.ArenaOf(rig.OpenArena(rig.ada, 5));
  EXPECT_THAT(
      rig.StatusOf(rig.OpenArena(rig.ada, 4, kAtOnce)),
      StatusIs(kExhausted,
               AllOf(HasSubstr("an arena needs 16.0 KiB in place"),
                     HasSubstr("20.0 KiB is in arenas"),
                     HasSubstr("one of 12.0 KiB would be enough now"))));
  // Bob is told of the sum alone.
  EXPECT_THAT(
      rig.StatusOf(rig.OpenArena(rig.bob, 4, kAtOnce)),
      StatusIs(kExhausted, AllOf(HasSubstr("20.0 KiB is used by other users"),
                                 Not(HasSubstr("is in arenas")))));
  EXPECT_THAT(rig.StatusOf(rig.OpenArena(rig.ada, 9)),
              StatusIs(kExhausted, HasSubstr("host.in_place is 32.0 KiB")));
}

TEST(NodeArenas, OneThatWaitsIsGrantedWhenRoomComes) {
  Arenas rig;
  const ArenaGrant first = rig.ArenaOf(rig.OpenArena(rig.ada, 5));
  const RequestId waits = rig.OpenArena(rig.bob, 6);
  EXPECT_TRUE(rig.waiting(waits));
  ASSERT_OK(rig.CloseArena(rig.ada, first.id));
  EXPECT_EQ(rig.ArenaOf(waits).bytes, 6 * kPage);
}

TEST(NodeArenas, TwoThatWaitHoldNothingOfEachOthers) {
  Arenas rig;
  const ArenaGrant first = rig.ArenaOf(rig.OpenArena(rig.ada, 8));
  const RequestId one = rig.OpenArena(rig.bob, 8);
  const RequestId other = rig.OpenArena(rig.Open(3), 8);
  ASSERT_OK(rig.CloseArena(rig.ada, first.id));
  const ArenaGrant second = rig.ArenaOf(one);
  EXPECT_TRUE(rig.waiting(other));
  rig.Advance(absl::Seconds(11));
  EXPECT_THAT(rig.StatusOf(other),
              StatusIs(kExhausted, HasSubstr("would be enough")));
}

TEST(NodeArenas, BelowWeightsItTakesWhatIsFree) {
  Arenas rig;
  const LeaseId lease = rig.StageApartNow(rig.bob, rig.Key(0), rig.in_place());
  ASSERT_OK(rig.Release(rig.bob, lease));  // Idle, and stays.
  EXPECT_THAT(
      rig.StatusOf(rig.OpenArena(rig.ada, 7, kAtOnce)),
      StatusIs(kExhausted, AllOf(HasSubstr("one of 24.0 KiB would be enough"),
                                 HasSubstr("host.arenas = \"above\""))));
  rig.ArenaOf(rig.OpenArena(rig.ada, 6));
  EXPECT_TRUE(rig.Has(rig.Key(0), rig.InPlace()));
}

TEST(NodeArenas, AboveThemItTakesThePlaceOfThoseThatNobodyUses) {
  Arenas rig({.in_place_pages = 8, .arenas_evict = true});
  const LeaseId used = rig.StageApartNow(rig.bob, rig.Key(0), rig.in_place());
  const LeaseId idle = rig.StageApartNow(rig.bob, rig.Key(1), rig.in_place());
  ASSERT_OK(rig.Release(rig.bob, idle));
  EXPECT_THAT(rig.StatusOf(rig.OpenArena(rig.ada, 7, kAtOnce)),
              StatusIs(kExhausted, Not(HasSubstr("host.arenas"))));
  rig.ArenaOf(rig.OpenArena(rig.ada, 6));
  EXPECT_TRUE(rig.Has(rig.Key(0), rig.InPlace()));
  EXPECT_FALSE(rig.Has(rig.Key(1), rig.InPlace()));
  ASSERT_OK(rig.Release(rig.bob, used));
}

TEST(NodeArenas, WhatIsKeptOfOneGoesBeforeAnybodysWeights) {
  Arenas rig;
  const ArenaGrant arena = rig.ArenaOf(rig.OpenArena(rig.ada, 4));
  for (const uint32_t group : {0u, 1u}) {
    ASSERT_OK(rig.Release(
        rig.bob, rig.StageApartNow(rig.bob, rig.Key(group), rig.in_place())));
  }
  ASSERT_OK(rig.CloseArena(rig.ada, arena.id));
  rig.StageApartNow(rig.bob, rig.Key(2), rig.in_place());
  EXPECT_TRUE(rig.Has(rig.Key(0), rig.InPlace()));
  EXPECT_TRUE(rig.Has(rig.Key(1), rig.InPlace()));
  EXPECT_EQ(rig.Place().kept_arena_bytes, 0u);
}

TEST(NodeArenas, AnArenaIsNeverPushedOut) {
  Arenas rig({.in_place_pages = 8, .arenas_evict = true});
  rig.ArenaOf(rig.OpenArena(rig.ada, 8));
  const RequestId stage =
      rig.StageApart(rig.bob, rig.Key(0), rig.in_place(), kAtOnce);
  EXPECT_THAT(rig.StatusOf(stage), StatusIs(kExhausted, HasSubstr("in place")));
}

TEST(NodeArenas, CountsAgainstItsUsersQuota) {
  NodeRigOptions options = {.in_place_pages = 8};
  options.quota.each.device_bytes = {QuotaLimits::kNone, 5 * kPage};
  Arenas rig(options);
  rig.ArenaOf(rig.OpenArena(rig.ada, 3));
  EXPECT_THAT(rig.StatusOf(rig.OpenArena(rig.ada, 3)),
              StatusIs(kExhausted, HasSubstr("quota.device_bytes")));
  rig.ArenaOf(rig.OpenArena(rig.bob, 3));
}

TEST(NodeArenas, DescriptorsAreBound) {
  Arenas rig({.in_place_pages = 8, .apart_descriptors = 3});
  EXPECT_THAT(rig.StatusOf(rig.OpenArena(rig.ada, 8, kAtOnce)),
              StatusIs(kExhausted, HasSubstr("LimitNOFILE")));
  EXPECT_EQ(rig.Place().arena_bytes, 0u);
  rig.ArenaOf(rig.OpenArena(rig.ada, 4));
}

// Each would take the other's pieces apart, and make its own, for ever.
TEST(NodeArenas, TwoThatWaitMakeNothingThatTheyCouldNotKeep) {
  Arenas rig({.in_place_pages = 8, .apart_descriptors = 3});
  const RequestId one = rig.OpenArena(rig.ada, 8);
  const RequestId other = rig.OpenArena(rig.bob, 8);
  EXPECT_TRUE(rig.waiting(one) && rig.waiting(other));
  EXPECT_EQ(rig.Place().allocated_bytes, 0u);
}

// --- Refusals of another kind
// -----------------------------------------------------

TEST(NodeArenas, OfNothingOrWhereThereIsNoneOrWhileDrainingIsRefused) {
  Arenas rig;
  EXPECT_THAT(
      rig.StatusOf(rig.OpenArena(rig.ada, 0)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 bytes")));
  rig.Drain(true);
  EXPECT_THAT(rig.StatusOf(rig.OpenArena(rig.ada, 1)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
  Arenas without(NodeRigOptions{});
  EXPECT_THAT(
      without.StatusOf(without.OpenArena(without.ada, 1)),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("host.in_place")));
}

// --- Death
// ------------------------------------------------------------------------

TEST(NodeArenas, GoesOnWithTheNextHoistd) {
  Arenas rig;
  const ArenaGrant arena = rig.ArenaOf(rig.OpenArena(rig.ada, 6));
  ASSERT_TRUE(rig.Die());
  EXPECT_EQ(rig.Place().arena_bytes, 6 * kPage);
  ASSERT_OK(rig.CloseArena(rig.ada, arena.id));
  EXPECT_EQ(rig.Place().arena_bytes, 0u);
}

TEST(NodeArenas, WhatItsClientNeverHeardOfGoesBack) {
  Arenas rig;
  rig.ArenaOf(rig.OpenArena(rig.ada, 6));
  Effects effects;
  const Resumed resumed =
      rig.node().Resume(rig.ada, {.arenas = {ArenaId(99)}}, rig.now, effects);
  EXPECT_THAT(resumed.lost_arenas, ::testing::ElementsAre(ArenaId(99)));
  EXPECT_EQ(rig.Place().arena_bytes, 0u);
  EXPECT_EQ(rig.Place().kept_arena_bytes, 6 * kPage);
}

// It was closed, and hoistd died before it was zeroed; the rig looks that the
// next one's has nothing of it.
TEST(NodeArenas, WhatTheLastHoistdHadNotZeroedTheNextOneZeroes) {
  Arenas rig;
  const ArenaGrant arena = rig.ArenaOf(rig.OpenArena(rig.ada, 4));
  rig.hold_slabs = true;
  ASSERT_OK(rig.CloseArena(rig.ada, arena.id));
  rig.hold_slabs = false;
  ASSERT_TRUE(rig.Die());
  const ArenaGrant next = rig.ArenaOf(rig.OpenArena(rig.ada, 4));
  EXPECT_EQ(rig.SlabsOf(next), rig.SlabsOf(arena));
}

}  // namespace hoistd::node_arenas_test
