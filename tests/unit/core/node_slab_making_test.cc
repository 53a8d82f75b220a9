// Slabs are made beside everything else: who waits for one waits for what is
// under way, and nobody else waits at all.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_slab_making_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kPage;
using testing::NodeRig;
using ::testing::SizeIs;
using testing::StatusIs;

const TierAt kDevice = NodeRig::FirstDevice();
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

GroupKey Key(ModelId model, uint32_t group) {
  return {model, GroupIndex(group)};
}

// Ada's and Bob's models, each of groups of two pages, on a device of eight.
struct Making : NodeRig {
  Making() : NodeRig({.device_pages = {8}}) { hold_slabs = true; }
  absl::Status StatusOf(RequestId request) {
    const Answer* answer = AnswerTo(request);
    return answer == nullptr ? absl::InternalError("not answered")
                             : answer->status;
  }

  SessionId ada = Open(1), bob = Open(2);
  ModelId adas = AddModel(ada, "m", {2, 2, 2, 2});
  ModelId bobs = AddModel(bob, "m", {2, 2, 2, 2});
};

TEST(NodeSlabMaking, AStageWaitsForItsSlabWhateverItsDeadline) {
  Making rig;
  const RequestId stage =
      rig.Stage(rig.ada, Key(rig.adas, 0), absl::ZeroDuration());
  EXPECT_THAT(rig.Moving(), IsEmpty());  // Not even to the host.
  rig.Advance(absl::Seconds(5));
  EXPECT_TRUE(rig.waiting(stage));
  ASSERT_THAT(rig.slab_work(), SizeIs(1));
  rig.DoNextSlab();
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(stage));
}

TEST(NodeSlabMaking, OneWhoseDeadlinePassesIsToldAndTakesNothing) {
  Making rig;
  const RequestId stage =
      rig.Stage(rig.ada, Key(rig.adas, 0), absl::Seconds(1));
  rig.Advance(absl::Seconds(2));
  EXPECT_THAT(rig.StatusOf(stage), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                            HasSubstr("is still being made")));
  EXPECT_EQ(rig.node().NextDeadline(), absl::InfiniteFuture());
  rig.DoNextSlab();
  EXPECT_THAT(rig.Moving(), IsEmpty());
  EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 0u);
}

TEST(NodeSlabMaking, WhoHasABlockIsAnsweredMeanwhile) {
  Making rig;
  rig.hold_slabs = false;
  ASSERT_OK(rig.Release(rig.ada, rig.StageNow(rig.ada, Key(rig.adas, 0))));
  rig.hold_slabs = true;
  const RequestId waits = rig.Stage(rig.bob, Key(rig.bobs, 0));
  const RequestId resident =
      rig.Stage(rig.ada, Key(rig.adas, 0), absl::ZeroDuration());
  EXPECT_OK(rig.StatusOf(resident));
  EXPECT_TRUE(rig.waiting(waits));
  rig.DoNextSlab();
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(waits));
}

TEST(NodeSlabMaking, NothingIsEvictedWhileWhatWouldDoIsComing) {
  Making rig;
  rig.hold_slabs = false;
  ASSERT_OK(rig.Release(rig.ada, rig.StageNow(rig.ada, Key(rig.adas, 0))));
  rig.hold_slabs = true;
  rig.Stage(rig.ada, Key(rig.adas, 1));
  rig.Stage(rig.ada, Key(rig.adas, 2), absl::ZeroDuration());
  rig.Advance(absl::Milliseconds(1));
  ASSERT_THAT(rig.slab_work(), SizeIs(1));
  EXPECT_TRUE(rig.Has(Key(rig.adas, 0), kDevice));
  rig.DoSlabWork();
  rig.FinishAll();
  rig.DoSlabWork();  // The second's.
  rig.FinishAll();
  EXPECT_TRUE(rig.Has(Key(rig.adas, 0), kDevice));
  EXPECT_THAT(rig.leases(), SizeIs(2));
}

TEST(NodeSlabMaking, WhereNothingHelpsTheRefusalIsImmediate) {
  Making rig;
  rig.hold_slabs = false;
  for (uint32_t g = 0; g < 4; ++g) rig.StageNow(rig.ada, Key(rig.adas, g));
  rig.hold_slabs = true;
  const RequestId stage =
      rig.Stage(rig.bob, Key(rig.bobs, 0), absl::ZeroDuration());
  EXPECT_THAT(rig.StatusOf(stage), StatusIs(kExhausted));
  EXPECT_THAT(rig.slab_work(), IsEmpty());
}

TEST(NodeSlabMaking, WhoMustBeRefusedIsSoWhenTheSlabIsThere) {
  Making rig;
  rig.hold_slabs = false;
  for (uint32_t g = 0; g < 2; ++g) rig.StageNow(rig.ada, Key(rig.adas, g));
  rig.hold_slabs = true;
  rig.Stage(rig.ada, Key(rig.adas, 2));
  ASSERT_EQ(rig.TierOf(kDevice).allocated_bytes, 8 * kPage);
  const RequestId bobs =
      rig.Stage(rig.bob, Key(rig.bobs, 0), absl::ZeroDuration());
  EXPECT_TRUE(rig.waiting(bobs));  // It might be left to Bob.
  rig.DoNextSlab();
  EXPECT_THAT(rig.StatusOf(bobs), StatusIs(kExhausted));
}

TEST(NodeSlabMaking, ASlabThatCannotBeMadeIsARefusalWithItsReason) {
  Making rig;
  const RequestId stage =
      rig.Stage(rig.ada, Key(rig.adas, 0), absl::ZeroDuration());
  rig.DoNextSlab(0, absl::ResourceExhaustedError("another process has it"));
  EXPECT_THAT(rig.StatusOf(stage),
              StatusIs(kExhausted, HasSubstr("another process has it")));
  EXPECT_EQ(rig.TierOf(kDevice).allocated_bytes, 0u);
  EXPECT_THAT(rig.slab_work(), IsEmpty());  // Not asked over and over.
  // Who comes later asks again.
  const RequestId later =
      rig.Stage(rig.ada, Key(rig.adas, 0), absl::ZeroDuration());
  rig.DoNextSlab();
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(later));
}

TEST(NodeSlabMaking, ASlabThatCannotBeMadeMakesItEvictInstead) {
  Making rig;
  rig.hold_slabs = false;
  ASSERT_OK(rig.Release(rig.ada, rig.StageNow(rig.ada, Key(rig.adas, 0))));
  rig.hold_slabs = true;
  const RequestId stage =
      rig.Stage(rig.ada, Key(rig.adas, 1), absl::ZeroDuration());
  EXPECT_TRUE(rig.Has(Key(rig.adas, 0), kDevice));
  rig.DoNextSlab(0, absl::ResourceExhaustedError("none left"));
  EXPECT_FALSE(rig.Has(Key(rig.adas, 0), kDevice));
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(stage));
}

TEST(NodeSlabMaking, ASessionThatEndsMeanwhileLeavesTheMemoryToOthers) {
  Making rig;
  rig.Stage(rig.ada, Key(rig.adas, 0));
  rig.SetPlan(rig.ada, rig.adas, {0, 1, 2, 3}, 4);
  ASSERT_FALSE(rig.slab_work().empty());
  rig.Close(rig.ada);
  rig.DoSlabWork();
  EXPECT_THAT(rig.Moving(), IsEmpty());
  EXPECT_EQ(rig.TierOf(kDevice).used_bytes, 0u);
  EXPECT_EQ(rig.node().NextDeadline(), absl::InfiniteFuture());
  // All eight pages are Bob's to have: what was made goes first.
  rig.hold_slabs = false;
  for (uint32_t g = 0; g < 4; ++g) rig.StageNow(rig.bob, Key(rig.bobs, g));
  EXPECT_THAT(rig.leases(), SizeIs(4));
}

TEST(NodeSlabMaking, TwoZonesWantSlabsAtOnce) {
  Making rig;
  const RequestId adas = rig.Stage(rig.ada, Key(rig.adas, 0));
  const RequestId bobs = rig.Stage(rig.bob, Key(rig.bobs, 0));
  ASSERT_THAT(rig.slab_work(), SizeIs(2));
  rig.DoNextSlab();
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(adas));
  EXPECT_TRUE(rig.waiting(bobs));
  rig.DoNextSlab();
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(bobs));
}

TEST(NodeSlabMaking, WhatIsDestroyedGoesBeforeWhatIsMadeOfItsMemory) {
  Making rig;
  rig.hold_slabs = false;
  for (uint32_t g = 0; g < 3; ++g) rig.StageNow(rig.ada, Key(rig.adas, g));
  const LeaseId last = rig.StageNow(rig.ada, Key(rig.adas, 3));
  ASSERT_OK(rig.Release(rig.ada, last));
  rig.hold_slabs = true;
  rig.Close(rig.ada);
  // All of the device was Ada's.
  const RequestId one =
      rig.Stage(rig.bob, Key(rig.bobs, 0), absl::ZeroDuration());
  ASSERT_THAT(rig.slab_work(), SizeIs(2));
  EXPECT_EQ(rig.slab_work()[0].kind, SlabWork::Kind::kDestroy);
  EXPECT_EQ(rig.slab_work()[1].kind, SlabWork::Kind::kMake);
  rig.DoSlabWork();
  rig.FinishAll();
  EXPECT_OK(rig.StatusOf(one));
}

TEST(NodeSlabMaking, APlanAndAStageWaitForTheSame) {
  Making rig;
  const RequestId plan =
      rig.SetPlan(rig.ada, rig.adas, {0, 1, 2, 3}, 4, absl::ZeroDuration());
  const RequestId stage =
      rig.Stage(rig.ada, Key(rig.adas, 0), absl::ZeroDuration());
  EXPECT_TRUE(rig.waiting(plan));
  EXPECT_TRUE(rig.waiting(stage));
  rig.Advance(absl::Seconds(30));
  EXPECT_TRUE(rig.waiting(plan));
  for (int i = 0; i < 8 && !rig.slab_work().empty(); ++i) {
    rig.DoNextSlab();
    rig.FinishAll();
  }
  EXPECT_OK(rig.StatusOf(plan));
  EXPECT_OK(rig.StatusOf(stage));
}

TEST(NodeSlabMaking, APlanWhoseSlabCannotBeMadeIsRefusedAtOnce) {
  Making rig;
  const RequestId plan =
      rig.SetPlan(rig.ada, rig.adas, {0, 1, 2, 3}, 4, absl::ZeroDuration());
  ASSERT_TRUE(rig.waiting(plan));
  while (!rig.slab_work().empty()) {
    rig.DoNextSlab(0, absl::ResourceExhaustedError("none left"));
  }
  EXPECT_THAT(rig.StatusOf(plan), StatusIs(kExhausted, HasSubstr("none left")));
  EXPECT_EQ(rig.TierOf(kDevice).allocated_bytes, 0u);
}

}  // namespace hoistd::node_slab_making_test
