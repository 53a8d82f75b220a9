#include "daemon/core/supply.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/core/supply_rig.h"

namespace hoistd::supply_test {

using namespace space_rig;

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::SizeIs;
using testing::StatusIs;

using SupplyTest = SupplyRig;

TEST_F(SupplyTest, ADeviceCopyComesOverTheHost) {
  AddModel(1, 1);
  Need& need = Want(DeviceOf(Key(1, 0)), 1);
  EXPECT_EQ(Advance(need), Progress::kNoSpace);  // Its slab is being made.
  MakeAllSlabs();
  EXPECT_EQ(Advance(need), Progress::kComing);
  EXPECT_EQ(End<HostToDevice>(), 0u);
  ASSERT_EQ(End<FilesToHost>(), 1u);
  EXPECT_TRUE(There(HostOf(Key(1, 0))));
  EXPECT_TRUE(supply_.needs().AnyReady());
  EXPECT_EQ(Advance(need), Progress::kComing);
  EXPECT_EQ(copies_.At(HostOf(Key(1, 0))).readers, 1u);
  EXPECT_FALSE(supply_.needs().AnyReady());
  ASSERT_EQ(End<HostToDevice>(), 1u);
  EXPECT_EQ(copies_.At(HostOf(Key(1, 0))).readers, 0u);
  EXPECT_EQ(Advance(need), Progress::kServes);
  EXPECT_EQ(counters_.host_to_device_bytes, kPage);
  EXPECT_TRUE(supply_.transfers().empty());
}

TEST_F(SupplyTest, WhoWaitsForWhatCannotBeReadIsRefused) {
  AddModel(1, 1);
  Need& need = Want(DeviceOf(Key(1, 0)), 1);
  Advance(need);
  MakeAllSlabs();
  Advance(need);
  ASSERT_EQ(End<FilesToHost>(absl::DataLossError("a bad block")), 1u);
  const SupplyWork work = supply_.TakeWork();
  ASSERT_THAT(work.refused, SizeIs(1));
  EXPECT_EQ(work.refused[0].waiter.request, RequestId(1));
  EXPECT_EQ(work.refused[0].copy, DeviceOf(Key(1, 0)));
  EXPECT_THAT(work.refused[0].why, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_TRUE(supply_.needs().empty());
  EXPECT_EQ(space_.device(kDevice).used(), 0u);
  EXPECT_TRUE(supply_.TakeWork().empty());
}

TEST_F(SupplyTest, WhatSomebodyWaitsForIsAPrefetchNoMore) {
  AddModel(1, 1);
  Need& need = supply_.NeedFor(HostOf(Key(1, 0)), /*urgent=*/false, effects_);
  EXPECT_EQ(Advance(need), Progress::kComing);
  ASSERT_THAT(effects_.transfers, SizeIs(1));
  EXPECT_FALSE(effects_.transfers[0].urgent);
  Want(HostOf(Key(1, 0)), 1);
  EXPECT_THAT(effects_.urgent, ElementsAre(effects_.transfers[0].id));
}

TEST_F(SupplyTest, WhatIsPublishedIsWrittenBeforeItMakesRoom) {
  Receive(1);
  const GroupKey second = Receive(2);
  AddModel(3, 1);
  Need& need = Want(HostOf(Key(3, 0)), 1);
  EXPECT_EQ(Advance(need), Progress::kNoSpace);
  EXPECT_THAT(need.blocked.why, StatusIs(absl::StatusCode::kUnavailable));
  ASSERT_EQ(End<HostToSpill>(), 1u);
  EXPECT_EQ(quota_.Of(kAnn).Of(Quota::kPublishedBytes), kPage);
  EXPECT_EQ(Advance(need), Progress::kComing);
  EXPECT_EQ(End<FilesToHost>(), 1u);
  EXPECT_EQ(Advance(need), Progress::kServes);
  EXPECT_TRUE(There(HostOf(second)));
  EXPECT_EQ(counters_.host_evictions, 1u);
}

TEST_F(SupplyTest, AFullDiskIsToldOnceAndItsModelsMakeRoom) {
  Receive(1);
  Receive(2);
  AddModel(3, 1);
  Need& need = Want(HostOf(Key(3, 0)), 1);
  Advance(need);
  ASSERT_EQ(End<HostToSpill>(absl::ResourceExhaustedError("full")), 1u);
  EXPECT_EQ(effects_.events.back().kind, EventKind::kDiskFull);
  EXPECT_EQ(Advance(need), Progress::kComing);
  const SupplyWork work = supply_.TakeWork();
  ASSERT_THAT(work.forgotten, SizeIs(1));
  EXPECT_EQ(work.forgotten[0].unsaved_bytes, kPage);
}

TEST_F(SupplyTest, AModelThatIsForgottenWhileItIsWrittenStaysUntilThen) {
  const GroupKey key = Receive(1);
  supply_.saver().Start(HostOf(key), copies_.At(HostOf(key)), /*urgent=*/true,
                        effects_);
  space_.DropModel(key.model);
  supply_.Forget(key.model, kStart, effects_);
  EXPECT_EQ(space_.UsedOf(OnHost()), kPage);
  ASSERT_EQ(End<HostToSpill>(), 1u);
  EXPECT_EQ(space_.UsedOf(OnHost()), 0u);
  EXPECT_THAT(effects_.unspill, ElementsAre(SpillId(1)));
}

TEST_F(SupplyTest, WhoseDeadlineIsOverIsRefusedInWordsOfThoseAbove) {
  AddModel(1, 1);
  Receive(2);
  Receive(3);
  copies_.At(HostOf(Key(2, 0))).leases = 1;
  copies_.At(HostOf(Key(3, 0))).leases = 1;
  Need& need = Want(HostOf(Key(1, 0)), 1);
  EXPECT_EQ(Advance(need), Progress::kNoSpace);
  const auto text = [](const Waiter&, const Blocked&) { return "no room"; };
  supply_.Expire(kStart, text);
  EXPECT_TRUE(supply_.TakeWork().empty());
  supply_.Expire(kStart + absl::Seconds(2), text);
  const SupplyWork work = supply_.TakeWork();
  ASSERT_THAT(work.refused, SizeIs(1));
  EXPECT_THAT(work.refused[0].why,
              StatusIs(absl::StatusCode::kResourceExhausted, "no room"));
}

TEST_F(SupplyTest, ASessionThatIsOverLeavesNoNeed) {
  AddModel(1, 1);
  Need& need = Want(DeviceOf(Key(1, 0)), 1);
  Advance(need);
  supply_.Leave(SessionId(), kStart);
  EXPECT_TRUE(supply_.needs().empty());
  EXPECT_THAT(supply_.TakeWork().refused, IsEmpty());
}

}  // namespace hoistd::supply_test
