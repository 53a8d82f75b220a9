// Every call to the disk and to the device of a small life fails once, in turn.
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_rig.h"
#include "tests/support/lane_client.h"

namespace hoistd::engine_fault_test {

using testing::Damage;
using testing::DeviceCall;
using testing::EngineRig;
using testing::FaultyDevice;
using testing::IsOk;
using testing::LaneClient;

const TierAt kDevice = OnDevice(DeviceIndex(0));

// Asks until nothing is being spilled; a spill ends, well or not.
void AwaitSpills(EngineRig& rig) {
  bool spilling = true;
  while (spilling) {
    std::this_thread::yield();
    spilling = rig.Look([](const NodeView& view) {
      for (const auto& [id, model] : view.node.copies().models()) {
        for (const GroupEntry& group : model->groups) {
          for (const auto& [place, copy] : group.copies) {
            if (copy.spilling()) return true;
          }
        }
      }
      return false;
    });
  }
}

// One worker's life: two groups from files, one published, spilled and read
// again. Returns the first error; what failed is not gone on with.
absl::Status Live(EngineRig& rig, SessionId session) {
  HOIST_ASSIGN_OR_RETURN(const ModelPtr model, rig.Register(session, "m"));
  for (uint32_t g = 0; g < 2; ++g) {
    HOIST_ASSIGN_OR_RETURN(const LeaseGrant lease,
                           rig.Stage(session, {model->id, GroupIndex(g)}));
    rig.ExpectRight(*model, lease);
    HOIST_RETURN_IF_ERROR(rig.Release(session, lease.id));
  }
  HOIST_ASSIGN_OR_RETURN(const ModelPtr published,
                         rig.Publish(session, "p", "a"));
  HOIST_RETURN_IF_ERROR(rig.Evict("p").status());
  AwaitSpills(rig);  // One that failed leaves the host copy to serve.
  HOIST_ASSIGN_OR_RETURN(const LeaseGrant lease,
                         rig.Stage(session, {published->id, GroupIndex(0)}));
  rig.ExpectRight(*published, lease);
  HOIST_RETURN_IF_ERROR(rig.Release(session, lease.id));
  return rig.Evict("m").status();
}

// The codes that callers know what to do about.
bool Typed(const absl::Status& status) {
  return !absl::IsUnknown(status) && !status.message().empty();
}

// Everything is given back: to the byte.
void ExpectNothingLeaks(EngineRig& rig, SessionId session) {
  rig.engine().CloseSession(session);
  rig.clock.Advance(20);  // A failed spill may be tried again.
  for (int round = 0; round < 2; ++round) {
    // Not there if it could not be published or registered.
    rig.Evict("p").IgnoreError();
    rig.Evict("m").IgnoreError();
    AwaitSpills(rig);
  }
  EXPECT_EQ(rig.sessions(), 0u);
  const std::vector<TierUse> tiers = rig.Look(
      [](const NodeView& view) { return view.node.picture().Tiers(view.now); });
  for (const TierUse& tier : tiers) {
    EXPECT_EQ(tier.leased_bytes, 0u) << ToString(tier.at);
    if (tier.at.tier == Tier::kDisk) continue;
    EXPECT_EQ(tier.used_bytes, 0u) << ToString(tier.at);
  }
}

// `arm` makes one call fail; false: the life has fewer calls than that.
bool LiveWithFault(const std::function<void(EngineRig&)>& arm,
                   const std::function<bool(EngineRig&)>& reached) {
  EngineRig rig;
  const absl::Status started = rig.Start();
  EXPECT_OK(started);
  if (!started.ok()) return false;
  arm(rig);
  const SessionId session = rig.Open();
  const absl::Status lived = Live(rig, session);
  EXPECT_TRUE(Typed(lived) || lived.ok()) << lived;
  const bool failed = reached(rig);
  rig.faulty_io->FailCall(0, absl::OkStatus());
  for (const DeviceCall call : {DeviceCall::kCreateSlab, DeviceCall::kCopyIn,
                                DeviceCall::kWriteWords}) {
    rig.faulty_device->FailNth(call, 0, absl::OkStatus());
  }
  // The fault is over, and so is its effect.
  rig.clock.Advance(20);
  EXPECT_OK(Live(rig, session));
  ExpectNothingLeaks(rig, session);
  return failed;
}

class EngineIoFault : public ::testing::TestWithParam<Damage> {};

TEST_P(EngineIoFault, EachFailureIsToldAndARetrySucceeds) {
  uint64_t n = 1;
  bool reached = true;
  while (reached && !HasFailure()) {
    SCOPED_TRACE(absl::StrCat("call ", n));
    uint64_t before = 0;
    reached = LiveWithFault(
        [&](EngineRig& rig) {
          before = rig.faulty_io->calls();
          rig.faulty_io->FailCall(
              before + n, absl::UnavailableError("injected"), GetParam());
        },
        [&](EngineRig& rig) { return rig.faulty_io->calls() >= before + n; });
    ++n;
  }
  EXPECT_GE(n, 5u);  // It did read, write and read again.
}

INSTANTIATE_TEST_SUITE_P(All, EngineIoFault,
                         ::testing::Values(Damage::kNothing, Damage::kHalf));

class EngineDeviceFault : public ::testing::TestWithParam<DeviceCall> {};

TEST_P(EngineDeviceFault, EachFailureIsToldAndARetrySucceeds) {
  int n = 1;
  bool reached = true;
  while (reached && !HasFailure()) {
    SCOPED_TRACE(absl::StrCat("call ", n));
    int before = 0;
    reached = LiveWithFault(
        [&](EngineRig& rig) {
          before = rig.faulty_device->calls(GetParam());
          rig.faulty_device->FailNth(GetParam(), n,
                                     absl::ResourceExhaustedError("injected"));
        },
        [&](EngineRig& rig) {
          return rig.faulty_device->calls(GetParam()) >= before + n;
        });
    ++n;
  }
  EXPECT_GE(n, 3);  // It did meet one.
}

INSTANTIATE_TEST_SUITE_P(All, EngineDeviceFault,
                         ::testing::Values(DeviceCall::kCreateSlab,
                                           DeviceCall::kCopyIn,
                                           DeviceCall::kWriteWords));

// An error that stays, as CUDA's sticky ones do: no copy to the device ends any
// more. Who waits is told, and so is who comes; what needs no device goes on.
TEST(EngineSticky, ALostDeviceIsToldAndTheRestGoesOn) {
  EngineRig rig;
  ASSERT_OK(rig.Start());
  const SessionId holder = rig.Open();
  const SessionId waiter = rig.Open();
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig.Register(holder, "m"));
  ASSERT_OK_AND_ASSIGN(const LeaseGrant held,
                       rig.Stage(holder, {model->id, GroupIndex(0)}));
  const int copies = rig.faulty_device->calls(DeviceCall::kCopyIn);
  rig.faulty_device->HoldCopies();
  testing::Answer<absl::StatusOr<LeaseGrant>> waits;
  rig.engine().Ask(
      waiter,
      StageArgs{{model->id, GroupIndex(1)}, DeviceIndex(0), absl::Seconds(100)},
      waits.done());
  rig.faulty_device->WaitForCopies(copies + 1);
  rig.faulty_device->FailAll(DeviceCall::kHealth,
                             absl::InternalError("sticky"));
  const auto lost = testing::StatusIs(absl::StatusCode::kInternal,
                                      ::testing::HasSubstr("sticky"));
  EXPECT_THAT(waits.Wait(), lost);
  rig.faulty_device->LetCopiesGo();
  for (const SessionId session : {holder, waiter}) {
    EXPECT_THAT(rig.Stage(session, {model->id, GroupIndex(2)}), lost);
  }
  // Publishing, reading from disk and spilling need no device.
  ASSERT_OK_AND_ASSIGN(const ModelPtr published, rig.Publish(waiter, "p", "a"));
  EXPECT_OK(rig.Load(model->id, OnHost()));
  EXPECT_OK(rig.Evict("p"));
  AwaitSpills(rig);
  EXPECT_OK(rig.Release(holder, held.id));
  EXPECT_OK(rig.Load(published->id, OnHost()));
  rig.engine().CloseSession(waiter);
  ExpectNothingLeaks(rig, holder);
}

// Of two devices one is lost. Who uses the other never notices; who used this
// one is told, and can go there.
class OneOfTwo : public ::testing::Test {
 protected:
  static constexpr uint32_t kGroups = 4;
  static constexpr uint64_t kGroupBytes = 64 * 4096;

  // A plan that streams, and how its worker takes part.
  struct Stream {
    PlanGrant grant;
    LaneClient lane;
    uint64_t next = 0;
  };

  void SetUp() override {
    ASSERT_OK(rig_.Start());
    here_ = rig_.Open();
    there_ = rig_.Open();
    for (const char* group : kNames) {
      ASSERT_OK_AND_ASSIGN(const ModelPtr model,
                           rig_.Publish(here_, "p", group));
      model_ = model->id;
    }
  }
  absl::StatusOr<Stream> SetPlan(SessionId session, uint32_t device) {
    SetPlanArgs args;
    args.model = model_;
    args.device = DeviceIndex(device);
    args.budget_bytes = 2 * kGroupBytes;
    for (uint32_t g = 0; g < kGroups; ++g) args.order.push_back(GroupIndex(g));
    testing::Answer<absl::StatusOr<OpenedPlan>> answer;
    rig_.engine().Ask(session, args, answer.done());
    HOIST_ASSIGN_OR_RETURN(OpenedPlan opened, answer.Wait());
    LaneShare share;
    share.memory = std::move(opened.lane);
    share.wake = std::move(opened.wake);
    std::vector<uint32_t> order = opened.grant.lane_order;
    return Stream{std::move(opened.grant),
                  LaneClient(std::move(share), std::move(order))};
  }
  // The first that cannot be staged ends it.
  absl::Status Pass(Stream& plan) {
    for (uint32_t i = 0; i < kGroups; ++i) {
      const uint64_t at = plan.next++;
      HOIST_RETURN_IF_ERROR(plan.lane.Stage(at));
      const PlannedGroup& group = plan.grant.groups[plan.lane.GroupAt(at)];
      EXPECT_TRUE(
          rig_.BytesAt(plan.grant.device,
                       plan.grant.ring_offset + group.slot.offset,
                       group.image_bytes) ==
          EngineRig::PublishedBytes(kNames[group.group.number()], kGroupBytes))
          << "position " << at;
      plan.lane.Done(at);
    }
    return absl::OkStatus();
  }
  // Answered once its ring is back.
  absl::Status Clear(SessionId session, const Stream& plan) {
    testing::Answer<absl::Status> answer;
    rig_.engine().Ask(session, ClearPlanArgs{plan.grant.id}, answer.done());
    return answer.Wait();
  }
  absl::Status StageOn(SessionId session, uint32_t device, uint32_t group) {
    HOIST_ASSIGN_OR_RETURN(
        const LeaseGrant lease,
        rig_.Stage(session, {model_, GroupIndex(group)}, device));
    EXPECT_TRUE(rig_.BytesOf(lease) ==
                EngineRig::PublishedBytes(kNames[group], kGroupBytes));
    return rig_.Release(session, lease.id);
  }

  static constexpr const char* kNames[kGroups] = {"a", "b", "c", "d"};
  EngineRig rig_{{.devices = 2}};
  SessionId here_;
  SessionId there_;
  ModelId model_;
};

TEST_F(OneOfTwo, TheOthersSessionsAndPlansGoOn) {
  ASSERT_OK_AND_ASSIGN(Stream lost, SetPlan(here_, 0));
  ASSERT_OK_AND_ASSIGN(Stream good, SetPlan(there_, 1));
  ASSERT_OK(Pass(lost));
  ASSERT_OK(Pass(good));
  ASSERT_OK_AND_ASSIGN(const LeaseGrant held,
                       rig_.Stage(there_, {model_, GroupIndex(3)}, 1));
  // Lost with a copy on its way, of bytes that the other wants too.
  FaultyDevice& device = *rig_.faulty_devices[0];
  const int copies = device.calls(DeviceCall::kCopyIn);
  device.HoldCopies();
  testing::Answer<absl::StatusOr<LeaseGrant>> waits;
  rig_.engine().Ask(
      here_,
      StageArgs{{model_, GroupIndex(0)}, DeviceIndex(0), absl::Seconds(100)},
      waits.done());
  device.WaitForCopies(copies + 1);
  device.FailAll(DeviceCall::kHealth, absl::InternalError("sticky"));
  const auto is_lost = testing::StatusIs(absl::StatusCode::kInternal,
                                         ::testing::HasSubstr("sticky"));
  EXPECT_THAT(waits.Wait(), is_lost);
  EXPECT_THAT(Pass(lost), is_lost);
  EXPECT_THAT(SetPlan(here_, 0), is_lost);
  EXPECT_THAT(StageOn(there_, 0, 1), is_lost);
  EXPECT_THAT(rig_.Load(model_, OnDevice(DeviceIndex(0))), is_lost);
  for (int pass = 0; pass < 3; ++pass) ASSERT_OK(Pass(good));
  EXPECT_OK(StageOn(there_, 1, 0));
  EXPECT_OK(rig_.Load(model_, OnDevice(DeviceIndex(1))));
  // Whose device is gone goes to the other.
  EXPECT_OK(StageOn(here_, 1, 2));
  ASSERT_OK_AND_ASSIGN(Stream moved, SetPlan(here_, 1));
  EXPECT_OK(Pass(moved));
  ASSERT_OK(Pass(good));
  device.LetCopiesGo();
  EXPECT_OK(Clear(here_, lost));
  EXPECT_OK(Clear(here_, moved));
  EXPECT_OK(Clear(there_, good));
  EXPECT_OK(rig_.Release(there_, held.id));
  rig_.engine().CloseSession(there_);
  ExpectNothingLeaks(rig_, here_);
}

// Stopped with copies on their way, again and again, at ever other moments.
TEST(EngineStop, EndsCleanlyWithWorkUnderWay) {
  for (int held = 0; held <= Link::kPiecesUnderWay; ++held) {
    SCOPED_TRACE(held);
    EngineRig rig;
    ASSERT_OK(rig.Start());
    const SessionId session = rig.Open();
    ASSERT_OK_AND_ASSIGN(const ModelPtr model, rig.Register(session, "m"));
    rig.faulty_device->HoldCopies();
    std::atomic<size_t> answered = 0;
    const size_t groups = model->spec->groups.size();
    for (uint32_t g = 0; g < groups; ++g) {
      rig.engine().Ask(
          session,
          StageArgs{
              {model->id, GroupIndex(g)}, DeviceIndex(0), absl::Seconds(100)},
          [&](absl::StatusOr<LeaseGrant>) { ++answered; });
    }
    rig.faulty_device->WaitForCopies(held);
    std::thread stop([&] { rig.Stop(); });
    rig.faulty_device->LetCopiesGo();
    stop.join();
    EXPECT_EQ(answered, groups);
  }
}

}  // namespace hoistd::engine_fault_test
