// What was published before this hoistd began and still lies on the host.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_restored_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr uint8_t kContent = 7;

class NodeRestored : public ::testing::Test {
 protected:
  // Of user 1's model "p"; it lies at the page, as far as the last one knew.
  RestoredGroup At(uint64_t page, std::string name, uint64_t pages,
                   uint8_t content = kContent) {
    RestoredGroup restored;
    restored.group = rig_.Lay(page, std::move(name), pages, content);
    restored.model = "p";
    restored.owner = User(1);
    restored.index = GroupIndex(places_++);
    restored.content = {kContent};
    restored.host_offset = page * kPage;
    return restored;
  }
  GroupKey KeyOf(SessionId session, uint32_t group) {
    return {(*rig_.node().tenure().Find(session, "p"))->id, GroupIndex(group)};
  }
  uint64_t Published() const {
    return rig_.node().quota().Of(User(1)).Of(Quota::kPublishedBytes);
  }

  NodeRig rig_{{.host_ready_pages = 0, .can_spill = true}};
  uint32_t places_ = 0;
};

TEST_F(NodeRestored, IsReadWhereItLiesAndServedOnceItIsFoundRight) {
  ASSERT_OK(rig_.node().registry().Restore(At(3, "a", 2)));
  ASSERT_OK(rig_.node().registry().Restore(At(7, "b", 1)));
  rig_.GrowHost(16);
  ASSERT_THAT(rig_.Moving<CheckOnHost>(), SizeIs(2));
  EXPECT_EQ(rig_.TheWay<CheckOnHost>().host_offset, 3 * kPage);
  EXPECT_EQ(Published(), 0u);
  const SessionId session = rig_.Open(1);
  const RequestId stage = rig_.Stage(session, KeyOf(session, 1));
  // Who is waited for goes first.
  EXPECT_THAT(rig_.hurried(), ElementsAre(rig_.Moving<CheckOnHost>()[1]));
  rig_.FinishAll();
  rig_.LeaseOf(stage);
  EXPECT_EQ(Published(), 3 * kPage);
  EXPECT_EQ(rig_.counters().file_read_bytes, 0u);
  EXPECT_EQ(rig_.counters().spill_read_bytes, 0u);
  EXPECT_EQ(rig_.TierOf(OnHost()).used_bytes, 3 * kPage);
  rig_.StageNow(session, KeyOf(session, 0));
}

// A hoistd that is told to stop at once would leave them to nobody.
TEST_F(NodeRestored, IsUnsavedBeforeItIsLookedAtToo) {
  ASSERT_OK(rig_.node().registry().Restore(At(3, "a", 2)));
  Effects effects;
  EXPECT_EQ(rig_.node().supply().SaveAll(rig_.now, effects), 2 * kPage);
  rig_.GrowHost(16);
  EXPECT_EQ(rig_.node().supply().SaveAll(rig_.now, effects), 2 * kPage);
  EXPECT_THAT(effects.transfers, IsEmpty());
  rig_.FinishAll();
  EXPECT_EQ(rig_.node().supply().SaveAll(rig_.now, effects), 2 * kPage);
  EXPECT_THAT(effects.transfers, SizeIs(1));
}

TEST_F(NodeRestored, WhatIsWrongIsLostIfItIsNowhereElse) {
  ASSERT_OK(rig_.node().registry().Restore(At(3, "a", 2, kContent + 1)));
  rig_.GrowHost(16);
  const SessionId session = rig_.Open(1);
  const RequestId stage = rig_.Stage(session, KeyOf(session, 0));
  rig_.FinishAll();
  EXPECT_THAT(rig_.AnswerTo(stage)->status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("is lost")));
  EXPECT_THAT(rig_.kept(), IsEmpty());
  EXPECT_EQ(rig_.TierOf(OnHost()).used_bytes, 0u);
  EXPECT_EQ(Published(), 0u);
}

TEST_F(NodeRestored, WhatIsWrongIsReadFromTheDisk) {
  RestoredGroup both = At(3, "a", 2, kContent + 1);
  both.spill = SpillId(5);
  rig_.Store(SpillId(5), both.group);
  ASSERT_OK(rig_.node().registry().Restore(both));
  rig_.GrowHost(16);
  const SessionId session = rig_.Open(1);
  const RequestId stage = rig_.Stage(session, KeyOf(session, 0));
  rig_.FinishAll();
  rig_.LeaseOf(stage);
  EXPECT_EQ(rig_.counters().spill_read_bytes, 2 * kPage);
  EXPECT_EQ(Published(), 0u);
}

TEST_F(NodeRestored, NobodyElseIsGivenWhereItLiesWhileThePoolComesUp) {
  ASSERT_OK(rig_.node().registry().Restore(At(3, "a", 4)));
  rig_.GrowHost(5);  // In the middle of it.
  EXPECT_THAT(rig_.Moving(), IsEmpty());
  const SessionId session = rig_.Open(1);
  const RequestId stage = rig_.Stage(session, KeyOf(session, 0));
  rig_.Published(session, "q", "fits", 3);
  const RequestId more = rig_.Publish(session, "q", "does not", 2);
  EXPECT_TRUE(rig_.waiting(more));
  EXPECT_THAT(rig_.Moving<ClientToHost>(), IsEmpty());
  rig_.GrowHost(16);
  rig_.FinishAll();
  rig_.LeaseOf(stage);
  EXPECT_OK(rig_.AnswerTo(more)->status);
}

TEST_F(NodeRestored, IsNotForgottenBeforeItIsThere) {
  ASSERT_OK(rig_.node().registry().Restore(At(3, "a", 2)));
  const SessionId session = rig_.Open(1);
  const ModelId model = KeyOf(session, 0).model;
  const auto in_use = StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("being copied"));
  EXPECT_THAT(rig_.Forget(model), in_use);
  EXPECT_EQ(rig_.Evict("p").kept, 1u);
  rig_.GrowHost(4);
  EXPECT_THAT(rig_.Forget(model), in_use);
  rig_.GrowHost(16);
  EXPECT_THAT(rig_.Forget(model), in_use);
  rig_.FinishAll();
  ASSERT_OK(rig_.Forget(model));
  EXPECT_THAT(rig_.kept(), IsEmpty());
  EXPECT_EQ(rig_.TierOf(OnHost()).used_bytes, 0u);
}

// It will count for its owner once it is found right.
TEST_F(NodeRestored, WhatIsNotLookedAtYetLeavesLessToPublish) {
  NodeRigOptions options = {.host_ready_pages = 0};
  options.quota.each.published_bytes = 4 * kPage;
  NodeRig rig(options);
  RestoredGroup restored;
  restored.group = rig.Lay(3, "a", 3, kContent);
  restored.model = "p";
  restored.owner = User(1);
  restored.content = {kContent};
  restored.host_offset = 3 * kPage;
  ASSERT_OK(rig.node().registry().Restore(restored));
  rig.GrowHost(32);
  const SessionId session = rig.Open(1);
  ASSERT_OK(
      rig.node().tenure().Find(session, "p"));  // Unused, it would make room.
  const RequestId more = rig.Publish(session, "q", "b", 2);
  EXPECT_EQ(rig.AnswerTo(more), nullptr);
  EXPECT_THAT(rig.Moving<ClientToHost>(), IsEmpty());
  rig.Published(rig.Open(2), "q", "b", 2);  // Another's quota.
  rig.FinishAll();
  ASSERT_NE(rig.AnswerTo(more), nullptr);
  EXPECT_THAT(rig.AnswerTo(more)->status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("quota.published_bytes")));
  rig.Published(session, "q", "b", 1);
}

TEST_F(NodeRestored, WhatCannotLieThereIsRefused) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ASSERT_OK(rig_.node().registry().Restore(At(3, "a", 2)));
  const auto refused = [&](const std::string& name, uint64_t offset,
                           uint64_t pages) {
    auto group = std::make_shared<Group>();
    group->name = name;
    group->image_bytes = pages * kPage;
    RestoredGroup restored;
    restored.model = "p";
    restored.owner = User(1);
    restored.group = std::move(group);
    restored.host_offset = offset;
    EXPECT_THAT(rig_.node().registry().Restore(restored), StatusIs(kInvalid))
        << offset << ", " << pages;
  };
  refused("b", 4 * kPage, 1);
  refused("c", 2 * kPage, 2);
  refused("d", 0, 16);
  refused("e", 15 * kPage, 2);
  refused("f", 16 * kPage, 1);
  refused("g", kPage + 1, 1);
  refused("h", ~uint64_t{4095}, 2);
  ASSERT_OK(rig_.node().registry().Restore(At(0, "i", 3)));
  ASSERT_OK(rig_.node().registry().Restore(At(5, "j", 1)));
}

TEST_F(NodeRestored, WhatIsPublishedIsKeptUntilItsPlaceIsAnothers) {
  rig_.GrowHost(16);
  const SessionId session = rig_.Open(1);
  const GroupKey key = rig_.Published(session, "p", "a", 2);
  ASSERT_THAT(rig_.kept(), SizeIs(1));
  EXPECT_EQ(rig_.TierOf(OnHost()).unsaved_bytes, 2 * kPage);
  // Written, then left: it is on the disk alone.
  rig_.Evict("p", OnHost());
  rig_.FinishAll();
  EXPECT_EQ(rig_.TierOf(OnHost()).unsaved_bytes, 0u);
  rig_.Evict("p", OnHost());
  EXPECT_THAT(rig_.kept(), IsEmpty());
  rig_.StageNow(session, key);
  EXPECT_THAT(rig_.kept(), SizeIs(1));
  ASSERT_THAT(rig_.Forget(key.model),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  rig_.Close(session);
  ASSERT_OK(rig_.Forget(key.model));
  EXPECT_THAT(rig_.kept(), IsEmpty());
}

}  // namespace hoistd::node_restored_test
