// What lies on devices, of published groups: read, loaded again where it lies,
// or put aside.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::node_check_device_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kPage;
using testing::NodeRig;
using testing::NodeRigOptions;
using ::testing::Not;
using ::testing::SizeIs;
using testing::StatusIs;

const TierAt kDevice = NodeRig::FirstDevice();

class NodeCheckDevice : public ::testing::Test {
 protected:
  explicit NodeCheckDevice(NodeRigOptions options = {.can_spill = true,
                                                     .saves_at_once = true})
      : rig_(std::move(options)) {
    rig_.FinishAll();  // It is on the disk too.
  }
  // All that the check starts ends well.
  const CheckedGroup& Check(bool repair, GroupKey key) {
    const RequestId request = rig_.CheckGroup(key, repair);
    rig_.FinishAll();
    EXPECT_OK(rig_.AnswerTo(request)->status);
    return rig_.AnswerTo(request)->checked;
  }
  const CheckedGroup& Check(bool repair = false) { return Check(repair, key_); }
  // Nothing is wrong any more.
  void ExpectRight() { EXPECT_THAT(Check().findings, IsEmpty()); }

  NodeRig rig_;
  const SessionId session_ = rig_.Open();
  const GroupKey key_ = rig_.Published(session_, "p", "a", 2);
};

TEST_F(NodeCheckDevice, WhatIsRightStaysWhereItIs) {
  const LeaseId lease = rig_.StageNow(session_, key_);
  const RequestId request = rig_.CheckGroup(key_);
  ASSERT_THAT(rig_.Moving<CheckOnDevice>(), SizeIs(1));
  rig_.FinishAll();
  const CheckedGroup& checked = rig_.AnswerTo(request)->checked;
  EXPECT_EQ(checked.bytes, 6 * kPage);  // Disk, host and device.
  EXPECT_EQ(rig_.counters().device_to_host_bytes, 2 * kPage);
  EXPECT_THAT(checked.findings, IsEmpty());
  ASSERT_OK(rig_.Release(session_, lease));
  EXPECT_TRUE(rig_.Has(key_, kDevice));
}

TEST_F(NodeCheckDevice, NobodyGetsItsPlaceWhileItIsRead) {
  ASSERT_OK(rig_.Release(session_, rig_.StageNow(session_, key_)));
  const RequestId request = rig_.CheckGroup(key_);
  EXPECT_EQ(rig_.Evict("p", kDevice).kept, 1u);
  // All of the device.
  const ModelId files = rig_.AddModel(session_, "m", {8});
  const RequestId all = rig_.Stage(session_, {files, GroupIndex(0)});
  EXPECT_TRUE(rig_.waiting(all));
  EXPECT_THAT(rig_.Moving<FilesToHost>(), IsEmpty());
  rig_.FinishAll();
  EXPECT_OK(rig_.AnswerTo(request)->status);
  rig_.LeaseOf(all);
}

TEST_F(NodeCheckDevice, WhatIsIdleAndWrongIsPutAside) {
  ASSERT_OK(rig_.Release(session_, rig_.StageNow(session_, key_)));
  rig_.ChangeOnDevice(key_);
  const CheckedGroup& checked = Check();
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_EQ(checked.findings[0].group, "p/a");
  EXPECT_EQ(checked.findings[0].at, kDevice);
  EXPECT_THAT(checked.findings[0].what,
              AllOf(HasSubstr("its bytes changed"), HasSubstr("put aside")));
  EXPECT_FALSE(rig_.Has(key_, kDevice));
  rig_.StageNow(session_, key_);
  ExpectRight();
}

TEST_F(NodeCheckDevice, WhatIsIdleIsLoadedAgainWithRepair) {
  ASSERT_OK(rig_.Release(session_, rig_.StageNow(session_, key_)));
  rig_.ChangeOnDevice(key_);
  const CheckedGroup& checked = Check(/*repair=*/true);
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_THAT(checked.findings[0].what,
              AllOf(HasSubstr("loaded again where it lies, and is right"),
                    Not(HasSubstr("session"))));
  EXPECT_TRUE(rig_.Has(key_, kDevice));
  ExpectRight();
}

// Its address stays, and it is said who computed with it.
TEST_F(NodeCheckDevice, WhatIsLeasedIsLoadedAgainWhereItLies) {
  const LeaseId lease = rig_.StageNow(session_, key_);
  const uint64_t offset = rig_.leases().at(lease).second.offset;
  rig_.ChangeOnDevice(key_);
  const RequestId check = rig_.CheckGroup(key_, /*repair=*/true);
  for (const TransferId id : rig_.Moving()) rig_.Finish(id);
  ASSERT_THAT(rig_.Moving<HostToDevice>(), SizeIs(1));
  EXPECT_EQ(rig_.TheWay<HostToDevice>().device_offset, offset);
  EXPECT_TRUE(rig_.TransferOf(rig_.Moving<HostToDevice>()[0]).urgent);
  // Who comes now waits until it is right.
  const SessionId other = rig_.Open();
  const RequestId stage = rig_.Stage(other, key_);
  EXPECT_TRUE(rig_.waiting(stage));
  rig_.Finish<HostToDevice>();
  EXPECT_TRUE(rig_.waiting(stage));
  EXPECT_TRUE(rig_.waiting(check));
  rig_.Finish<CheckOnDevice>();
  EXPECT_EQ(rig_.leases().at(rig_.LeaseOf(stage)).second.offset, offset);
  const CheckedGroup& checked = rig_.AnswerTo(check)->checked;
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_THAT(checked.findings[0].what,
              AllOf(HasSubstr("loaded again where it lies"),
                    HasSubstr("computed with it by session"),
                    HasSubstr("may be wrong")));
  EXPECT_EQ(checked.bytes, 8 * kPage);  // It was read twice.
  ExpectRight();
}

TEST_F(NodeCheckDevice, ItsBytesComeFromTheDiskWhereTheHostHasNone) {
  rig_.StageNow(session_, key_);
  rig_.Evict("p", OnHost());
  ASSERT_FALSE(rig_.Has(key_, OnHost()));
  rig_.ChangeOnDevice(key_);
  const CheckedGroup& checked = Check(/*repair=*/true);
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_THAT(checked.findings[0].what, HasSubstr("and is right"));
  EXPECT_EQ(rig_.counters().spill_read_bytes, 2 * kPage);
  ExpectRight();
}

TEST_F(NodeCheckDevice, ADamagedHostRepairsNothing) {
  rig_.ChangeOnHost(key_);
  rig_.StageNow(session_, key_);  // Made of it.
  const CheckedGroup& checked = Check(/*repair=*/true);
  ASSERT_THAT(checked.findings, SizeIs(2));
  EXPECT_EQ(checked.findings[0].at, OnHost());
  EXPECT_EQ(checked.findings[1].at, kDevice);
  EXPECT_THAT(checked.findings[1].what, HasSubstr("and is right"));
  EXPECT_EQ(rig_.counters().spill_read_bytes, 2 * kPage);
  ExpectRight();
}

TEST_F(NodeCheckDevice, WithoutRepairNobodyElseGetsWhatIsLeased) {
  const LeaseId lease = rig_.StageNow(session_, key_);
  rig_.ChangeOnDevice(key_);
  const CheckedGroup& checked = Check();
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_THAT(checked.findings[0].what,
              AllOf(HasSubstr("nobody else gets it"), HasSubstr("session"),
                    HasSubstr("--repair")));
  const SessionId other = rig_.Open();
  EXPECT_THAT(rig_.AnswerTo(rig_.Stage(other, key_))->status,
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("hoistctl check --repair")));
  EXPECT_TRUE(rig_.Has(key_, kDevice));
  ASSERT_OK(rig_.Release(session_, lease));
  EXPECT_FALSE(rig_.Has(key_, kDevice));
  rig_.StageNow(other, key_);
  ExpectRight();
}

TEST_F(NodeCheckDevice, WhatWasPutAsideCanStillBeLoadedAgain) {
  rig_.StageNow(session_, key_);
  rig_.ChangeOnDevice(key_);
  Check();
  EXPECT_THAT(Check(/*repair=*/true).findings[0].what,
              HasSubstr("loaded again where it lies"));
  rig_.StageNow(rig_.Open(), key_);
  ExpectRight();
}

TEST_F(NodeCheckDevice, MemoryThatDoesNotKeepBytesIsPutAside) {
  const LeaseId lease = rig_.StageNow(session_, key_);
  rig_.ChangeOnDevice(key_);
  const RequestId check = rig_.CheckGroup(key_, /*repair=*/true);
  for (const TransferId id : rig_.Moving()) rig_.Finish(id);
  const RequestId stage = rig_.Stage(rig_.Open(), key_);
  rig_.Finish<HostToDevice>();
  rig_.ChangeOnDevice(key_);
  rig_.Finish<CheckOnDevice>();
  EXPECT_THAT(rig_.AnswerTo(check)->checked.findings[0].what,
              AllOf(HasSubstr("could not be loaded again: its bytes changed"),
                    HasSubstr("nobody else gets it")));
  EXPECT_THAT(rig_.AnswerTo(stage)->status,
              StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_OK(rig_.Release(session_, lease));
  EXPECT_FALSE(rig_.Has(key_, kDevice));
}

TEST_F(NodeCheckDevice, ACopyThatFailsLeavesItPutAside) {
  rig_.StageNow(session_, key_);
  rig_.ChangeOnDevice(key_);
  const RequestId check = rig_.CheckGroup(key_, /*repair=*/true);
  for (const TransferId id : rig_.Moving()) rig_.Finish(id);
  rig_.Finish<HostToDevice>(absl::InternalError("as told"));
  EXPECT_THAT(rig_.AnswerTo(check)->checked.findings[0].what,
              HasSubstr("could not be loaded again: as told"));
  EXPECT_THAT(rig_.AnswerTo(rig_.Stage(rig_.Open(), key_))->status,
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(NodeCheckDevice, ALeaseThatEndsMeanwhileChangesNothing) {
  const LeaseId lease = rig_.StageNow(session_, key_);
  rig_.ChangeOnDevice(key_);
  const RequestId check = rig_.CheckGroup(key_, /*repair=*/true);
  for (const TransferId id : rig_.Moving()) rig_.Finish(id);
  ASSERT_OK(rig_.Release(session_, lease));
  rig_.Close(session_);
  rig_.FinishAll();
  EXPECT_THAT(rig_.AnswerTo(check)->checked.findings, SizeIs(1));
  EXPECT_TRUE(rig_.Has(key_, kDevice));
  ExpectRight();
}

TEST_F(NodeCheckDevice, WhatCannotBeReadIsNoDamage) {
  rig_.StageNow(session_, key_);
  const RequestId check = rig_.CheckGroup(key_, /*repair=*/true);
  rig_.Finish<CheckOnDevice>(absl::InternalError("ECC"));
  rig_.FinishAll();
  EXPECT_THAT(rig_.AnswerTo(check)->checked.findings[0].what,
              HasSubstr("cannot be read: ECC"));
  rig_.StageNow(rig_.Open(), key_);
}

// A lease would else be in memory that is somebody else's.
TEST_F(NodeCheckDevice, ASuccessorGivesItToNobodyElseEither) {
  const LeaseId lease = rig_.StageNow(session_, key_);
  rig_.ChangeOnDevice(key_);
  Check();
  ASSERT_TRUE(rig_.Die());
  rig_.FinishAll();
  const SessionId other = rig_.Open();
  EXPECT_THAT(rig_.AnswerTo(rig_.Stage(other, key_))->status,
              StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_OK(rig_.Release(session_, lease));
  EXPECT_FALSE(rig_.Has(key_, kDevice));
  rig_.StageNow(other, key_);
  ExpectRight();
}

// hoistd dies while right bytes are being copied over wrong ones.
TEST_F(NodeCheckDevice, ASuccessorKnowsWhatWasNotLoadedAgain) {
  ASSERT_OK(rig_.Release(session_, rig_.StageNow(session_, key_)));
  rig_.ChangeOnDevice(key_);
  rig_.CheckGroup(key_, /*repair=*/true);
  for (const TransferId id : rig_.Moving()) rig_.Finish(id);
  ASSERT_THAT(rig_.Moving<HostToDevice>(), SizeIs(1));
  ASSERT_TRUE(rig_.Die());
  rig_.FinishAll();
  EXPECT_TRUE(rig_.Has(key_, kDevice));
  rig_.StageNow(session_, key_);  // Loaded anew.
  EXPECT_GT(rig_.counters().host_to_device_bytes, 0u);
  ExpectRight();
}

class NodeCheckNoDisk : public NodeCheckDevice {
 protected:
  NodeCheckNoDisk() : NodeCheckDevice(NodeRigOptions{}) {}
};

TEST_F(NodeCheckNoDisk, WithoutARightCopyItIsPutAsideAndLost) {
  const LeaseId lease = rig_.StageNow(session_, key_);
  rig_.ChangeOnHost(key_);
  rig_.ChangeOnDevice(key_);
  const CheckedGroup& checked = Check(/*repair=*/true);
  ASSERT_THAT(checked.findings, SizeIs(2));
  EXPECT_THAT(checked.findings[0].what, HasSubstr("it is lost"));
  EXPECT_THAT(
      checked.findings[1].what,
      AllOf(HasSubstr("neither the host nor the disk has its bytes"),
            HasSubstr("nobody else gets it"), Not(HasSubstr("--repair"))));
  EXPECT_THAT(rig_.AnswerTo(rig_.Stage(rig_.Open(), key_))->status,
              StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_OK(rig_.Release(session_, lease));
  EXPECT_FALSE(rig_.Has(key_, kDevice));
}

// The last right bytes there are.
TEST_F(NodeCheckNoDisk, ARightCopyOutlivesADamagedHost) {
  const LeaseId lease = rig_.StageNow(session_, key_);
  rig_.ChangeOnHost(key_);
  const CheckedGroup& checked = Check();
  ASSERT_THAT(checked.findings, SizeIs(1));
  EXPECT_EQ(checked.findings[0].at, OnHost());
  ASSERT_OK(rig_.Release(session_, lease));
  EXPECT_TRUE(rig_.Has(key_, kDevice));
  rig_.StageNow(session_, key_);
}

}  // namespace hoistd::node_check_device_test
