// Plans from a daemon that sends what it must not: typed errors, no crash, no
// descriptor left over.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"
#include "tests/unit/client/plan_worker.h"

namespace hoist_test::hostile_plan_test {

using Code = hoist::Code;

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

using Spoil = std::function<void(pb::Plan&, FakeLane&, std::vector<int>&)>;

// What a plan over l0, l1, l0, l2 gives, spoilt; and that hoistd got it back.
Code PlanAgainst(const Spoil& spoil, FakePlan answer = {}) {
  const size_t before = OpenDescriptors();
  Code code;
  {
    FakeDaemon* self = nullptr;
    FakeDaemon daemon([&](Peer& peer, const pb::ClientMessage& message,
                          const std::vector<int>&) {
      if (!message.has_set_plan()) return false;
      pb::DaemonMessage reply =
          self->PlanReply(message.request_id(), message.set_plan());
      std::vector<int> fds = self->PlanFds();
      spoil(*reply.mutable_plan(), self->lane(), fds);
      peer.Send(reply, fds);
      return true;
    });
    self = &daemon;
    daemon.PlanAs(std::move(answer));
    hoist::Session session = ConnectTo(daemon);
    const hoist::Model model = *session.DescribeModel("deep");
    auto plan = session.SetPlan(model, {.order = {0, 1, 0, 2}});
    code = plan.status().code();
    if (session.DescribeModel("m").ok() && !plan.ok()) {
      EXPECT_EQ(daemon.cleared_plans().size(), 1u);
    }
  }
  EXPECT_EQ(OpenDescriptors(), before);
  return code;
}

using Fds = std::vector<int>;

TEST(HostilePlan, AGoodOneIsTaken) {
  EXPECT_EQ(PlanAgainst([](pb::Plan&, FakeLane&, Fds&) {}), Code::kOk);
}

TEST(HostilePlan, ALaneThatIsNoneIsInternal) {
  const auto with = [](const std::function<void(hoist::lane::Header&)>& spoil) {
    return PlanAgainst(
        [&](pb::Plan&, FakeLane& lane, Fds&) { spoil(lane.header()); });
  };
  EXPECT_EQ(with([](auto& header) { header.magic ^= 1; }), Code::kInternal);
  EXPECT_EQ(with([](auto& header) { ++header.version; }),
            Code::kFailedPrecondition);
  EXPECT_EQ(with([](auto& header) { ++header.bytes; }), Code::kInternal);
  EXPECT_EQ(with([](auto& header) { ++header.groups; }), Code::kInternal);
  EXPECT_EQ(with([](auto& header) { --header.order_length; }), Code::kInternal);
}

TEST(HostilePlan, ALaneThatIsTooSmallOrCouldShrinkIsInternal) {
  const FakeLane other(1, 1);
  EXPECT_EQ(PlanAgainst([&](pb::Plan&, FakeLane&, Fds& fds) {
              fds[1] = fds[0];  // The slab: large enough, but no lane.
            }),
            Code::kInternal);
  const FakeLane unsealed(3, 4, false);
  EXPECT_EQ(PlanAgainst([&](pb::Plan&, FakeLane&, Fds& fds) {
              fds[1] = unsealed.memory_fd();
            }),
            Code::kInternal);
  const int empty = memfd_create("empty", 0);
  EXPECT_EQ(
      PlanAgainst([&](pb::Plan&, FakeLane&, Fds& fds) { fds[1] = empty; }),
      Code::kInternal);
  close(empty);
}

TEST(HostilePlan, ADescriptorThatIsMissingOrNoEventFdIsInternal) {
  EXPECT_EQ(PlanAgainst([](pb::Plan& plan, FakeLane&, Fds&) {
              plan.set_lane_fd_index(9);
            }),
            Code::kInternal);
  EXPECT_EQ(PlanAgainst([](pb::Plan& plan, FakeLane&, Fds&) {
              plan.set_wake_fd_index(plan.lane_fd_index());
            }),
            Code::kInternal);
  int pipe_fds[2] = {};
  ASSERT_EQ(pipe(pipe_fds), 0);
  EXPECT_EQ(PlanAgainst(
                [&](pb::Plan&, FakeLane&, Fds& fds) { fds[2] = pipe_fds[1]; }),
            Code::kInternal);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST(HostilePlan, GroupsThatAreNotTheOrdersAreInternal) {
  EXPECT_EQ(PlanAgainst([](pb::Plan& plan, FakeLane&, Fds&) {
              plan.mutable_groups(1)->set_group(5);
            }),
            Code::kInternal);
  EXPECT_EQ(PlanAgainst([](pb::Plan& plan, FakeLane&, Fds&) {
              plan.mutable_groups(1)->set_group(4'000'000'000);
            }),
            Code::kInternal);
  EXPECT_EQ(PlanAgainst([](pb::Plan& plan, FakeLane&, Fds&) {
              plan.mutable_groups()->RemoveLast();
            }),
            Code::kInternal);
  EXPECT_EQ(PlanAgainst([](pb::Plan& plan, FakeLane&, Fds&) {
              *plan.add_groups() = plan.groups(0);
            }),
            Code::kInternal);
  EXPECT_EQ(PlanAgainst([](pb::Plan& plan, FakeLane&, Fds&) {
              plan.mutable_groups()->SwapElements(0, 1);
            }),
            Code::kInternal);
}

TEST(HostilePlan, SlotsThatDoNotHoldTheirGroupAreInternal) {
  const auto with =
      [](const std::function<void(pb::Plan::PlannedGroup&)>& spoil) {
        return PlanAgainst([&](pb::Plan& plan, FakeLane&, Fds&) {
          spoil(*plan.mutable_groups(2));
        });
      };
  EXPECT_EQ(with([](auto& group) { group.set_slot_bytes(4095); }),
            Code::kInternal);
  EXPECT_EQ(with([](auto& group) { group.set_slot_bytes(0); }),
            Code::kInternal);
  EXPECT_EQ(with([](auto& group) { group.set_offset_bytes(1 << 20); }),
            Code::kInternal);  // Past all slabs.
  EXPECT_EQ(with([](auto& group) { group.set_offset_bytes(64 * 1024 - 1); }),
            Code::kInternal);  // Out of the slab.
  EXPECT_EQ(with([](auto& group) { group.set_resident(true); }),
            Code::kInternal);  // The lane then has too many groups.
}

TEST(HostilePlan, NumbersThatOverflowEndTheSession) {
  EXPECT_EQ(PlanAgainst([](pb::Plan& plan, FakeLane&, Fds&) {
              plan.mutable_groups(2)->set_offset_bytes(~uint64_t{0});
            }),
            Code::kInternal);
  EXPECT_EQ(PlanAgainst([](pb::Plan& plan, FakeLane&, Fds&) {
              plan.mutable_groups(2)->set_slot_bytes(~uint64_t{0});
            }),
            Code::kInternal);
}

TEST(HostilePlan, SlabsOfAnotherDeviceAreInternal) {
  EXPECT_EQ(PlanAgainst([](pb::Plan& plan, FakeLane&, Fds&) {
              plan.mutable_slabs(0)->set_device(3);
            }),
            Code::kInternal);
}

TEST(HostilePlan, AnAnswerToAnotherQuestionIsInternal) {
  FakeDaemon daemon([](Peer& peer, const pb::ClientMessage& message,
                       const std::vector<int>&) {
    if (!message.has_set_plan()) return false;
    pb::DaemonMessage nothing;
    nothing.set_request_id(message.request_id());
    peer.Send(nothing);
    return true;
  });
  hoist::Session session = ConnectTo(daemon);
  const hoist::Model model = *session.DescribeModel("deep");
  EXPECT_EQ(session.SetPlan(model).status().code(), Code::kInternal);
}

TEST(HostilePlan, WordsThatHoistdScribblesOverDoNotLetTheClientHang) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  FakeLane& lane = daemon.lane();
  lane.header().groups = 1'000'000;
  lane.header().order_length = 0;
  lane.header().cursor.store(77);
  lane.header().tail.store(12345);  // Requests that were never made.
  auto staged = std::async(std::launch::async, [&] { return worker.Use(1); });
  worker.session.Close();
  EXPECT_FALSE(staged.get().ok());
}

}  // namespace hoist_test::hostile_plan_test
