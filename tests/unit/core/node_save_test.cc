// What is published is on the disk soon, and what was lost can come again.
#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_save_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kPage;
using testing::NodeRig;
using ::testing::SizeIs;
using testing::StatusIs;

class NodeSave : public ::testing::Test {
 protected:
  uint64_t Unsaved() { return rig_.TierOf(OnHost()).unsaved_bytes; }

  NodeRig rig_{{.can_spill = true, .saves_at_once = true}};
  const SessionId session_ = rig_.Open();
};

TEST_F(NodeSave, WhatIsPublishedIsWrittenAndStays) {
  const GroupKey key = rig_.Published(session_, "p", "a", 2);
  EXPECT_EQ(Unsaved(), 2 * kPage);
  ASSERT_THAT(rig_.Moving<HostToSpill>(), SizeIs(1));
  EXPECT_FALSE(rig_.TransferOf(rig_.Moving()[0]).urgent);
  rig_.FinishAll();
  EXPECT_EQ(Unsaved(), 0u);
  EXPECT_TRUE(rig_.Has(key, OnHost()));
  EXPECT_THAT(rig_.spills(), SizeIs(1));
}

TEST_F(NodeSave, TwoAreWrittenAtATimeInTheirOrder) {
  for (const char* group : {"a", "b", "c", "d"}) {
    rig_.Published(session_, "p", group, 1);
  }
  EXPECT_THAT(rig_.Moving<HostToSpill>(), SizeIs(2));
  rig_.Finish<HostToSpill>();
  EXPECT_THAT(rig_.Moving<HostToSpill>(), SizeIs(2));
  rig_.FinishAll();
  EXPECT_EQ(Unsaved(), 0u);
  EXPECT_THAT(rig_.spills(), SizeIs(4));
}

TEST_F(NodeSave, ADiskThatIsFullIsTriedAgainLater) {
  rig_.Published(session_, "p", "a", 2);
  rig_.Finish<HostToSpill>(absl::ResourceExhaustedError("the disk is full"));
  EXPECT_THAT(rig_.Moving(), IsEmpty());
  EXPECT_EQ(Unsaved(), 2 * kPage);
  EXPECT_EQ(rig_.node().NextDeadline(), rig_.now + absl::Seconds(10));
  rig_.Advance(absl::Seconds(10));
  rig_.Finish<HostToSpill>();
  EXPECT_EQ(Unsaved(), 0u);
  EXPECT_EQ(rig_.node().NextDeadline(), absl::InfiniteFuture());
}

// Who published it has been answered, so nobody else would know.
TEST_F(NodeSave, ADiskThatFailsIsToldOfAndOneThatIsFullIsNot) {
  const auto told = [&] {
    return std::count_if(
        rig_.events().begin(), rig_.events().end(), [](const NodeEvent& event) {
          return event.kind == EventKind::kCopyFailed && event.at == OnDisk() &&
                 event.detail == "the disk says no";
        });
  };
  rig_.Published(session_, "p", "a", 2);
  rig_.Finish<HostToSpill>(absl::ResourceExhaustedError("the disk says no"));
  EXPECT_EQ(told(), 0);
  rig_.Advance(absl::Seconds(10));
  rig_.Finish<HostToSpill>(absl::DataLossError("the disk says no"));
  EXPECT_EQ(told(), 1);
  rig_.Advance(absl::Seconds(10));
  rig_.FinishAll();
  EXPECT_EQ(Unsaved(), 0u);
  EXPECT_EQ(told(), 1);
}

TEST_F(NodeSave, WhoMeetsTheLossFirstIsToldWhatToDo) {
  const GroupKey key = rig_.Published(session_, "p", "a", 2);
  rig_.FinishAll();
  rig_.Evict("p");
  const RequestId first = rig_.Stage(session_, key);
  rig_.Finish<SpillToHost>(absl::DataLossError("the disk says no"));
  ASSERT_NE(rig_.AnswerTo(first), nullptr);
  EXPECT_THAT(rig_.AnswerTo(first)->status,
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("the disk says no"),
                             HasSubstr("publish it again"))));
}

TEST_F(NodeSave, AModelIsForgottenWhileItIsWritten) {
  const GroupKey key = rig_.Published(session_, "p", "a", 2);
  const ModelId files = rig_.AddModel(session_, "m", {16});
  ASSERT_OK(rig_.Forget(session_, key.model));
  EXPECT_THAT(rig_.node().copies().models(), SizeIs(1));
  // Nobody gets its memory meanwhile.
  EXPECT_EQ(rig_.TierOf(OnHost()).used_bytes, 2 * kPage);
  const RequestId all =
      rig_.Bring({files, GroupIndex(0)}, OnHost(), /*pin=*/false);
  EXPECT_TRUE(rig_.waiting(all));
  rig_.Finish<HostToSpill>();
  EXPECT_THAT(rig_.spills(), IsEmpty());
  rig_.FinishAll();
  ASSERT_OK(rig_.AnswerTo(all)->status);
}

TEST_F(NodeSave, AnAdminsEvictionWaitsForWhatIsBeingWritten) {
  const GroupKey key = rig_.Published(session_, "p", "a", 2);
  const TransferId save = rig_.Moving<HostToSpill>().at(0);
  EXPECT_EQ(rig_.Evict("p", OnHost()).groups, 1u);
  EXPECT_THAT(rig_.hurried(), ::testing::ElementsAre(save));
  rig_.Finish(save);
  EXPECT_FALSE(rig_.Has(key, OnHost()));
  rig_.StageNow(session_, key);
}

TEST_F(NodeSave, WhoNeedsTheSpaceHurriesTheWriting) {
  const GroupKey key = rig_.Published(session_, "p", "a", 2);
  const TransferId save = rig_.Moving<HostToSpill>().at(0);
  const ModelId files = rig_.AddModel(session_, "m", {16});
  const RequestId all =
      rig_.Bring({files, GroupIndex(0)}, OnHost(), /*pin=*/false);
  EXPECT_THAT(rig_.hurried(), ::testing::ElementsAre(save));
  rig_.FinishAll();
  ASSERT_OK(rig_.AnswerTo(all)->status);
  EXPECT_FALSE(rig_.Has(key, OnHost()));
}

TEST_F(NodeSave, WhatWasLostIsThereOncePublishedAgain) {
  const GroupKey key = rig_.Published(session_, "p", "a", 2);
  rig_.FinishAll();
  rig_.Evict("p", OnHost());
  const RequestId stage = rig_.Stage(session_, key);
  rig_.Finish<SpillToHost>(absl::DataLossError("block 3 is damaged"));
  EXPECT_THAT(rig_.AnswerTo(stage)->status,
              StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_EQ(rig_.StateOf(key, OnDisk()), Residency::kLost);
  // Other bytes are refused, as ever.
  const RequestId other = rig_.Publish(session_, "p", "a", 2, /*content=*/7);
  rig_.Finish<ClientToHost>();
  EXPECT_THAT(rig_.AnswerTo(other)->status,
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(rig_.StateOf(key, OnDisk()), Residency::kLost);
  EXPECT_EQ(rig_.Published(session_, "p", "a", 2), key);
  EXPECT_TRUE(rig_.Has(key, OnHost()));
  rig_.FinishAll();
  EXPECT_THAT(rig_.spills(), SizeIs(1));  // What was put aside is gone.
  rig_.StageNow(session_, key);
}

}  // namespace hoistd::node_save_test
