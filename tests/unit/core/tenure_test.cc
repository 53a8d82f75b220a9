#include "daemon/core/tenure.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/core/space_rig.h"

namespace hoistd::tenure_test {

using namespace space_rig;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::Optional;
using ::testing::SizeIs;
using testing::StatusIs;

const User kBob(2);
const SessionId kFirst(11);
const SessionId kSecond(12);

// Over a Space of four device pages.
class TenureTest : public SpaceRig {
 protected:
  TenureTest() {
    Open(kFirst, kAnn);
    Open(kSecond, kBob);
  }

  void Open(SessionId id, User uid, uint64_t budget = 0) {
    OpenSessionArgs args;
    args.peer.uid = uid;
    args.device_budget_bytes = budget;
    tenure_.sessions().Open(id, args, kStart);
    space_.slabs().AddSession(id, uid, /*closes_slabs=*/true);
  }
  void AddSpec(uint64_t id, uint32_t groups) {
    ModelEntry& entry = AddModel(id, groups);
    auto spec = std::make_shared<ModelSpec>();
    for (const GroupEntry& one : entry.groups) {
      spec->groups.push_back(one.group);
    }
    auto model = std::make_shared<Model>(*entry.model);
    model->spec = std::move(spec);
    entry.model = std::move(model);
  }
  static SetPlanArgs Plan(uint64_t model, uint32_t groups, uint64_t budget) {
    SetPlanArgs args;
    args.model = ModelId(model);
    args.device = kDevice;
    args.budget_bytes = budget;
    for (uint32_t g = 0; g < groups; ++g) args.order.push_back(GroupIndex(g));
    return args;
  }
  // Without a ring, since all groups are resident.
  PlanId Stand(uint64_t request, SessionId session, const SetPlanArgs& args) {
    PendingPlan pending;
    pending.session = session;
    pending.uid = tenure_.PeerOf(session)->uid;
    pending.grant = *tenure_.offers().Check({session, args});
    tenure_.plans().Add(RequestId(request), std::move(pending));
    const PlanId id(request);
    EXPECT_TRUE(
        tenure_.AdvancePlan(RequestId(request), id, kStart).has_value());
    return id;
  }
  BringArgs Stage(SessionId session, GroupKey key) {
    BringArgs args;
    args.session = session;
    args.copy = DeviceOf(key);
    args.lease = true;
    return args;
  }
  LeaseId Lease(uint64_t id, SessionId session, const CopyRef& ref) {
    tenure_.sessions().Claim(session, ref, kPage);
    Waiter waiter;
    waiter.session = session;
    waiter.lease = true;
    tenure_.Grant(LeaseId(id), waiter, ref, copies_.At(ref), kStart);
    return LeaseId(id);
  }

  const DeviceNames names_{devices_};
  Counters counters_;
  Tenure tenure_{options_, devices_, names_, copies_,  models_,
                 quota_,   space_,   kept_,  counters_};
};

TEST_F(TenureTest, APlanBesideOthersIsToldWhatBudgetWouldBeEnough) {
  AddSpec(1, 2);
  AddSpec(2, 4);
  const PlanId first = Stand(1, kFirst, Plan(1, 2, 2 * kPage));
  EXPECT_THAT(tenure_.offers().Check({kSecond, Plan(2, 4, 4 * kPage)}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("a budget of 8.0 KiB would be enough")));
  // What both stage counts once.
  EXPECT_THAT(tenure_.offers().Check({kSecond, Plan(1, 2, 2 * kPage)}), IsOk());
  EXPECT_THAT(tenure_.EndPlan(kSecond, first, kStart),
              StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(tenure_.EndPlan(kFirst, first, kStart), IsOk());
  EXPECT_THAT(tenure_.offers().Check({kSecond, Plan(2, 4, 4 * kPage)}), IsOk());
  tenure_.FreePlan(first);
  EXPECT_EQ(tenure_.plans().Find(first), nullptr);
}

TEST_F(TenureTest, ASessionLeasesWithinItsBudget) {
  AddSpec(1, 2);
  const SessionId small(13);
  Open(small, kAnn, kPage);
  EXPECT_THAT(tenure_.CheckBring(Stage(small, Key(1, 0)), false), IsOk());
  ASSERT_THAT(Bring(DeviceOf(Key(1, 0))), IsOk());
  const LeaseId lease = Lease(1, small, DeviceOf(Key(1, 0)));
  EXPECT_THAT(tenure_.CheckBring(Stage(small, Key(1, 1)), false),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("may lease 4.0 KiB at once")));
  EXPECT_EQ(tenure_.Release(lease, kStart), DeviceOf(Key(1, 0)));
  EXPECT_THAT(tenure_.CheckBring(Stage(small, Key(1, 1)), false), IsOk());
}

TEST_F(TenureTest, ALeaseKeepsItsCopyAndItsSlabsUntilItIsReleased) {
  AddSpec(1, 1);
  const CopyRef ref = DeviceOf(Key(1, 0));
  ASSERT_THAT(Bring(ref), IsOk());
  kept_.Take();
  const LeaseId lease = Lease(1, kFirst, ref);
  EXPECT_EQ(copies_.At(ref).leases, 1u);
  EXPECT_TRUE(space_.promises(kDevice).IsFirm(ref));
  EXPECT_EQ(space_.slabs().UsedBy(kAnn, kDevice, {}).bytes, kPage);
  EXPECT_THAT(kept_.Take(), SizeIs(1));
  const uint64_t before = space_.epoch();
  tenure_.Release(lease, kStart);
  EXPECT_EQ(copies_.At(ref).leases, 0u);
  EXPECT_FALSE(space_.promises(kDevice).IsFirm(ref));
  EXPECT_EQ(space_.slabs().UsedBy(kAnn, kDevice, {}).bytes, 0u);
  EXPECT_NE(space_.epoch(), before);
  EXPECT_THAT(kept_.Take(), SizeIs(1));
}

TEST_F(TenureTest, WhileItDrainsOnlyWhoUsesAModelGoesOnWithIt) {
  AddSpec(1, 1);
  tenure_.sessions().Use(kFirst, ModelId(1));
  tenure_.SetDraining(true);
  EXPECT_THAT(tenure_.offers().Check({kFirst, Plan(1, 1, kPage)}), IsOk());
  EXPECT_THAT(tenure_.offers().Check({kSecond, Plan(1, 1, kPage)}),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(tenure_.CheckBring(Stage(kSecond, Key(1, 0)), false),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(TenureTest, WhoKeepsIdleSlabsOpenBeyondTheQuotaIsAskedToCloseSome) {
  AddSpec(1, 2);
  QuotaOptions limits;
  limits.each.device_bytes = {kPage};
  quota_.SetOptions(limits);
  ASSERT_THAT(Bring(DeviceOf(Key(1, 0))), IsOk());
  ASSERT_THAT(Bring(DeviceOf(Key(1, 1))), IsOk());
  tenure_.Release(Lease(1, kFirst, DeviceOf(Key(1, 0))), kStart);
  Waiter waiter;
  waiter.session = kFirst;
  waiter.lease = true;
  const CopyRef second = DeviceOf(Key(1, 1));
  tenure_.sessions().Claim(kFirst, second, kPage);
  EXPECT_THAT(tenure_.MayOpen(waiter, second, copies_.At(second), kStart),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(space_.TakeWork().asks,
              ElementsAre(Field(&SlabAsk::session, kFirst)));
  // Another user's session keeps nothing open.
  waiter.session = kSecond;
  tenure_.sessions().Claim(kSecond, second, kPage);
  EXPECT_THAT(tenure_.MayOpen(waiter, second, copies_.At(second), kStart),
              IsOk());
}

TEST_F(TenureTest, WhoWaitsForTheHostMakesRoomItselfIfItHoldsAny) {
  AddSpec(1, 2);
  AddSpec(2, 1);
  const PlanId first = Stand(1, kFirst, Plan(1, 2, 2 * kPage));
  const PlanId second = Stand(2, kSecond, Plan(2, 1, kPage));
  EXPECT_EQ(tenure_.PlanToCrowd({second}, kPage), std::nullopt);
  ASSERT_THAT(Bring(HostOf(Key(1, 0))), IsOk());
  ++copies_.At(HostOf(Key(1, 0))).leases;
  tenure_.plans().Ask(first, GroupIndex(0));
  ASSERT_TRUE(tenure_.plans().Hold(first, GroupIndex(0)));
  EXPECT_EQ(tenure_.held_bytes(), kPage);
  EXPECT_THAT(tenure_.PlanToCrowd({second}, kPage),
              Optional(AllOf(Field(&CrowdedPlan::plan, first),
                             Field(&CrowdedPlan::bytes, kPage))));
  EXPECT_THAT(tenure_.PlanToCrowd({first}, kPage),
              Optional(AllOf(Field(&CrowdedPlan::plan, first),
                             Field(&CrowdedPlan::bytes, 0u))));
  // All that it held and was promised goes with it.
  EXPECT_THAT(tenure_.EndPlansOf(kFirst), SizeIs(1));
  tenure_.FreePlan(first);
  EXPECT_EQ(copies_.At(HostOf(Key(1, 0))).leases, 0u);
  tenure_.EndPlansOf(kSecond);
  tenure_.FreePlan(second);
}

}  // namespace hoistd::tenure_test
