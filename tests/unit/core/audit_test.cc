#include "daemon/core/audit.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/core/supply_rig.h"

namespace hoistd::audit_test {

using namespace space_rig;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::StatusIs;

// A published group on the host; some also have it on the device.
class AuditTest : public SupplyRig {
 protected:
  void Done(const Transfer& transfer, const absl::Status& status) override {
    const bool device = transfer.by<CheckOnDevice>() != nullptr;
    const Content content =
        (device ? device_wrong_ : host_wrong_) ? Content{8} : kContent;
    if (audit_.Done(transfer, status, content, kStart, effects_)) return;
    SupplyRig::Done(transfer, status);
  }
  // To the device, from the host.
  Copy& BringToDevice() {
    Need& need = Want(device_, 9);
    Advance(need);
    MakeAllSlabs();
    Advance(need);
    EXPECT_EQ(End<HostToDevice>(), 1u);
    EXPECT_EQ(Advance(need), Progress::kServes);
    supply_.needs().Erase(supply_.needs().AgeOf(device_));
    return copies_.At(device_);
  }
  void Check(bool repair) {
    audit_.Check(RequestId(1), key_, repair, effects_);
  }
  const Answer& TheAnswer() {
    EXPECT_THAT(effects_.answers, SizeIs(1));
    return effects_.answers.at(0);
  }
  const std::vector<CheckFinding>& Findings() {
    return TheAnswer().checked.findings;
  }

  Tenure tenure_{options_, devices_, names_, copies_,  models_,
                 quota_,   space_,   kept_,  counters_};
  Audit audit_{names_, copies_, quota_, space_, supply_, tenure_};
  const GroupKey key_ = Receive(1);
  const CopyRef host_ = HostOf(key_);
  const CopyRef device_ = DeviceOf(key_);
  bool host_wrong_ = false;
  bool device_wrong_ = false;
};

TEST_F(AuditTest, WhatIsRightStays) {
  BringToDevice();
  Check(/*repair=*/false);
  EXPECT_TRUE(audit_.Checks(key_));
  EXPECT_EQ(copies_.At(host_).readers, 1u);
  EXPECT_EQ(End<CheckOnHost>(), 1u);
  EXPECT_THAT(effects_.answers, IsEmpty());
  EXPECT_EQ(End<CheckOnDevice>(), 1u);
  EXPECT_EQ(TheAnswer().checked.bytes, 2 * kPage);
  EXPECT_THAT(Findings(), IsEmpty());
  EXPECT_FALSE(audit_.Checks(key_));
  EXPECT_EQ(copies_.At(host_).readers, 0u);
  EXPECT_TRUE(There(host_));
  EXPECT_TRUE(There(device_));
}

TEST_F(AuditTest, AGroupIsCheckedOnceAtATime) {
  Check(/*repair=*/false);
  Check(/*repair=*/false);
  EXPECT_THAT(TheAnswer().status, StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(AuditTest, TheOnlyCopyIsLostIfItIsWrong) {
  host_wrong_ = true;
  Check(/*repair=*/true);
  EXPECT_EQ(End<CheckOnHost>(), 1u);
  ASSERT_THAT(Findings(), SizeIs(1));
  EXPECT_THAT(Findings()[0].what, HasSubstr("it is lost: publish it again"));
  EXPECT_FALSE(There(host_));
  EXPECT_THAT(copies_.FindGroup(key_)->lost,
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(quota_.Of(kAnn).Of(Quota::kPublishedBytes), 0u);
}

TEST_F(AuditTest, AnIdleCopyThatIsWrongGoes) {
  BringToDevice();
  device_wrong_ = true;
  Check(/*repair=*/false);
  End<CheckOnHost>();
  EXPECT_EQ(End<CheckOnDevice>(), 1u);
  ASSERT_THAT(Findings(), SizeIs(1));
  EXPECT_THAT(Findings()[0].what, HasSubstr("it is put aside"));
  EXPECT_FALSE(There(device_));
  EXPECT_TRUE(There(host_));
}

TEST_F(AuditTest, WhatIsLeasedIsLoadedAgainWhereItLies) {
  Copy& copy = BringToDevice();
  copy.leases = 1;
  device_wrong_ = true;
  Check(/*repair=*/true);
  End<CheckOnHost>();
  End<CheckOnDevice>();
  EXPECT_TRUE(copy.damaged);
  EXPECT_EQ(copies_.At(host_).readers, 1u);
  device_wrong_ = false;
  EXPECT_EQ(End<HostToDevice>(), 1u);
  EXPECT_THAT(effects_.answers, IsEmpty());  // It is read once more.
  EXPECT_EQ(End<CheckOnDevice>(), 1u);
  ASSERT_THAT(Findings(), SizeIs(1));
  EXPECT_THAT(Findings()[0].what,
              AllOf(HasSubstr("damaged"), HasSubstr("and is right")));
  EXPECT_FALSE(copy.damaged);
  EXPECT_EQ(copy.readers, 0u);
  EXPECT_EQ(copies_.At(host_).readers, 0u);
  copy.leases = 0;
}

TEST_F(AuditTest, WhatCannotBeLoadedAgainGoesWithItsLastLease) {
  Copy& copy = BringToDevice();
  copy.leases = 1;
  device_wrong_ = true;
  Check(/*repair=*/true);
  End<CheckOnHost>();
  End<CheckOnDevice>();
  EXPECT_EQ(End<HostToDevice>(absl::InternalError("it fell off")), 1u);
  ASSERT_THAT(Findings(), SizeIs(1));
  EXPECT_THAT(Findings()[0].what, HasSubstr("could not be loaded again"));
  EXPECT_FALSE(audit_.DropDamaged(device_, copy));
  copy.leases = 0;
  EXPECT_TRUE(audit_.DropDamaged(device_, copy));
  EXPECT_FALSE(There(device_));
}

}  // namespace hoistd::audit_test
