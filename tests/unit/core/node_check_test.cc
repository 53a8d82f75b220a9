// Whether published bytes are still right, and what is done if they are not.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_check_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kPage;
using testing::NodeRig;
using ::testing::SizeIs;
using testing::StatusIs;

const absl::Status kDamaged = absl::DataLossError("block 3 is damaged");

class NodeCheck : public ::testing::Test {
 protected:
  NodeCheck() {
    rig_.FinishAll();  // It is on the disk too.
  }
  // What the check says, once its transfers have ended: the host's well.
  const CheckedGroup& Checked(RequestId request,
                              absl::Status disk = absl::OkStatus()) {
    if (!rig_.Moving<CheckOnDisk>().empty()) rig_.Finish<CheckOnDisk>(disk);
    if (!rig_.Moving<CheckOnHost>().empty()) rig_.Finish<CheckOnHost>();
    if (!rig_.Moving<CheckOnDevice>().empty()) rig_.Finish<CheckOnDevice>();
    EXPECT_OK(rig_.AnswerTo(request)->status);
    return rig_.AnswerTo(request)->checked;
  }
  uint64_t Unsaved() { return rig_.TierOf(OnHost()).unsaved_bytes; }

  NodeRig rig_{{.can_spill = true, .saves_at_once = true}};
  const SessionId session_ = rig_.Open();
  const GroupKey key_ = rig_.Published(session_, "p", "a", 2);
};

TEST_F(NodeCheck, WhatIsRightStaysAsItIs) {
  const RequestId check = rig_.CheckGroup(key_);
  EXPECT_TRUE(rig_.waiting(check));
  const CheckedGroup& checked = Checked(check);
  EXPECT_EQ(checked.bytes, 4 * kPage);
  EXPECT_THAT(checked.findings, IsEmpty());
  EXPECT_TRUE(rig_.Has(key_, OnHost()));
  rig_.StageNow(session_, key_);
}

TEST_F(NodeCheck, ADamagedDiskIsWrittenAgainFromTheHost) {
  const CheckedGroup& checked =
      Checked(rig_.CheckGroup(key_, /*repair=*/true), kDamaged);
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_EQ(checked.findings[0].group, "p/a");
  EXPECT_EQ(checked.findings[0].at, OnDisk());
  EXPECT_THAT(checked.findings[0].what,
              AllOf(HasSubstr("block 3"), HasSubstr("written again")));
  EXPECT_EQ(Unsaved(), 2 * kPage);
  rig_.FinishAll();
  EXPECT_EQ(Unsaved(), 0u);
  rig_.Evict("p");
  rig_.StageNow(session_, key_);
}

TEST_F(NodeCheck, WithoutRepairNothingIsWritten) {
  const CheckedGroup& checked = Checked(rig_.CheckGroup(key_), kDamaged);
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_THAT(checked.findings[0].what, HasSubstr("--repair"));
  EXPECT_THAT(rig_.Moving(), IsEmpty());
  EXPECT_EQ(Unsaved(), 2 * kPage);
  rig_.StageNow(session_, key_);
}

TEST_F(NodeCheck, ADamagedHostIsReadFromTheDisk) {
  rig_.ChangeOnHost(key_);
  ASSERT_OK(rig_.Release(session_, rig_.StageNow(session_, key_)));
  const CheckedGroup& checked = Checked(rig_.CheckGroup(key_));
  ASSERT_THAT(checked.findings, SizeIs(2));
  EXPECT_EQ(checked.findings[0].at, OnHost());
  EXPECT_THAT(checked.findings[0].what, HasSubstr("read from the disk again"));
  // What was made of it is gone with it.
  EXPECT_EQ(checked.findings[1].at, NodeRig::FirstDevice());
  EXPECT_FALSE(rig_.Has(key_, OnHost()));
  EXPECT_FALSE(rig_.Has(key_, NodeRig::FirstDevice()));
  rig_.StageNow(session_, key_);
  EXPECT_EQ(rig_.counters().spill_read_bytes, 2 * kPage);
}

TEST_F(NodeCheck, ACopyOfADamagedHostThatIsOnItsWayIsSaid) {
  rig_.ChangeOnHost(key_);
  const RequestId stage = rig_.Stage(session_, key_);
  ASSERT_THAT(rig_.Moving<HostToDevice>(), SizeIs(1));
  const CheckedGroup& checked = Checked(rig_.CheckGroup(key_));
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_THAT(checked.findings[0].what, HasSubstr("are in use"));
  rig_.FinishAll();
  rig_.LeaseOf(stage);
  EXPECT_TRUE(rig_.Has(key_, NodeRig::FirstDevice()));
}

TEST_F(NodeCheck, WhatIsDamagedEverywhereIsLost) {
  rig_.ChangeOnHost(key_);
  const CheckedGroup& checked =
      Checked(rig_.CheckGroup(key_, /*repair=*/true), kDamaged);
  EXPECT_THAT(checked.findings, SizeIs(2));
  EXPECT_EQ(rig_.StateOf(key_, OnDisk()), Residency::kLost);
  EXPECT_THAT(rig_.Moving(), IsEmpty());
  EXPECT_THAT(rig_.AnswerTo(rig_.Stage(session_, key_))->status,
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(NodeCheck, ADamageThatAStageFindsMeanwhileIsSaidOnce) {
  rig_.Evict("p");
  const RequestId check = rig_.CheckGroup(key_);
  const RequestId stage = rig_.Stage(session_, key_);
  rig_.Finish<SpillToHost>(kDamaged);
  EXPECT_THAT(rig_.AnswerTo(stage)->status,
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(Checked(check, kDamaged).findings, SizeIs(1));
  EXPECT_EQ(rig_.StateOf(key_, OnDisk()), Residency::kLost);
  rig_.Close(session_);
  ASSERT_OK(rig_.Forget(key_.model));
  EXPECT_THAT(rig_.spills(), IsEmpty());
}

TEST_F(NodeCheck, ADiskThatDoesNotAnswerIsNoDamage) {
  const CheckedGroup& checked = Checked(rig_.CheckGroup(key_, /*repair=*/true),
                                        absl::InternalError("EIO"));
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_THAT(checked.findings[0].what, HasSubstr("cannot be read: EIO"));
  EXPECT_EQ(Unsaved(), 0u);
  rig_.Evict("p");
  rig_.StageNow(session_, key_);
}

TEST_F(NodeCheck, MeanwhileTheModelCannotGo) {
  const RequestId check = rig_.CheckGroup(key_);
  EXPECT_THAT(rig_.Forget(key_.model),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("being checked")));
  EXPECT_EQ(rig_.Evict("p", OnHost()).kept, 1u);
  EXPECT_THAT(rig_.AnswerTo(rig_.CheckGroup(key_))->status,
              StatusIs(absl::StatusCode::kUnavailable));
  Checked(check);
  ASSERT_OK(rig_.Forget(key_.model));
}

TEST_F(NodeCheck, WhatIsOfFilesIsRefused) {
  const ModelId files = rig_.AddModel(session_, "m", {1});
  EXPECT_THAT(rig_.AnswerTo(rig_.CheckGroup({files, GroupIndex(0)}))->status,
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(rig_.node().audit().Select(NodeRig::kAdmin, "m"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(*rig_.node().audit().Select(NodeRig::kAdmin, ""), SizeIs(1));
}

}  // namespace hoistd::node_check_test
