// Plans through hoist.h, against a lane whose other side the test plays.
#include <atomic>
#include <cstdint>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"
#include "tests/unit/client/plan_worker.h"

namespace hoist_test::plan_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace lane = hoist::lane;

constexpr auto kSkip = static_cast<uint32_t>(lane::RequestKind::kSkip);

TEST(Plan, StagesInOrderWithoutMessages) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1, 2});
  FakeLane& lane = daemon.lane();
  lane.ReadyForAll();
  for (uint64_t position = 0; position < 9; ++position) {
    const auto group = static_cast<uint32_t>(position % 3);
    ASSERT_TRUE(worker.plan.Stage(group).ok());
    EXPECT_EQ(lane.header().cursor.load(), position + 1);
    ASSERT_TRUE(worker.plan.Done(group).ok());
    EXPECT_EQ(lane.group(group).done.load(), lane::WordOf(position));
  }
  EXPECT_EQ(lane.header().head.load(), 0u);
  const hoist_plan_stats stats = worker.plan.stats();
  EXPECT_EQ(stats.stages, 9u);
  EXPECT_EQ(stats.ready_stages, 9u);
  EXPECT_EQ(stats.skipped + stats.host_waits + stats.wake_ups, 0u);
}

TEST(Plan, AnAddressIsTheSlotsForAsLongAsThePlanStands) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1, 2});
  daemon.lane().ReadyForAll();
  std::vector<const void*> first;
  for (int pass = 0; pass < 2; ++pass) {
    for (uint32_t group = 0; group < 3; ++group) {
      auto data = worker.plan.Stage(group);
      ASSERT_TRUE(data.ok());
      if (pass == 0) first.push_back(*data);
      EXPECT_EQ(*data, first[group]);
      auto tensor = worker.plan.tensor(group, 0);
      ASSERT_TRUE(tensor.ok());
      EXPECT_EQ(tensor->raw(), *data);
      ASSERT_TRUE(worker.plan.Done(group).ok());
    }
  }
  EXPECT_EQ(first[0], first[2]);  // Two slots, in turns.
  EXPECT_NE(first[0], first[1]);
}

TEST(Plan, ItsTensorsAreFoundByName) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {2, 0});
  daemon.lane().ReadyForAll();
  auto found = worker.plan.tensor(2, "w");
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(found->raw(), *worker.plan.Stage(2));
  EXPECT_EQ(found->shape(), std::vector<int64_t>{1024});
  const auto code = [&](uint32_t group, const char* name) {
    auto info = hoist::internal::Sized<hoist_tensor_info>();
    return hoist_plan_find_tensor(worker.plan.get(), group, name, &info,
                                  nullptr);
  };
  EXPECT_EQ(code(2, "w"), HOIST_OK);
  EXPECT_EQ(code(2, "x"), HOIST_NOT_FOUND);
  EXPECT_EQ(code(1, "w"), HOIST_FAILED_PRECONDITION);  // Not in the plan.
  EXPECT_EQ(code(99, "w"), HOIST_OUT_OF_RANGE);
  EXPECT_EQ(code(2, nullptr), HOIST_INVALID_ARGUMENT);
}

TEST(Plan, AStageWaitsUntilTheBytesAreThere) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  auto staged =
      std::async(std::launch::async, [&] { return worker.plan.Stage(0); });
  daemon.lane().AwaitCursor(1);
  EXPECT_EQ(staged.wait_for(std::chrono::seconds(0)),
            std::future_status::timeout);
  daemon.lane().Ready(0, 0);
  EXPECT_TRUE(staged.get().ok());
  const hoist_plan_stats stats = worker.plan.stats();
  EXPECT_EQ(stats.host_waits, 1u);
  EXPECT_EQ(stats.ready_stages, 0u);
}

TEST(Plan, AWordOfAnEarlierPositionIsNotEnough) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  FakeLane& lane = daemon.lane();
  lane.Ready(0, 0);
  lane.Ready(1, 1);
  ASSERT_TRUE(worker.Use(0).ok());
  ASSERT_TRUE(worker.Use(1).ok());
  auto staged =
      std::async(std::launch::async, [&] { return worker.plan.Stage(0); });
  lane.AwaitCursor(3);
  EXPECT_EQ(staged.wait_for(std::chrono::seconds(0)),
            std::future_status::timeout);
  lane.Ready(0, 2);
  EXPECT_TRUE(staged.get().ok());
}

TEST(Plan, SkippedPositionsAreToldAndCounted) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1, 2, 3});
  FakeLane& lane = daemon.lane();
  lane.ReadyForAll();
  ASSERT_TRUE(worker.Use(2).ok());
  ASSERT_EQ(lane.header().head.load(), 1u);
  EXPECT_EQ(lane.request(0).kind, kSkip);
  EXPECT_EQ(lane.request(0).from, 0u);
  EXPECT_EQ(lane.request(0).to, 2u);
  EXPECT_EQ(lane.group(2).done.load(), lane::WordOf(2));
  // Backwards is forwards round the end.
  ASSERT_TRUE(worker.Use(1).ok());
  EXPECT_EQ(lane.request(1).from, 3u);
  EXPECT_EQ(lane.request(1).to, 5u);
  EXPECT_EQ(lane.header().cursor.load(), 6u);
  EXPECT_EQ(worker.plan.stats().skipped, 4u);
}

TEST(Plan, ARepeatedGroupTakesItsNextPosition) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  FakeLane& lane = daemon.lane();
  lane.ReadyForAll();
  ASSERT_TRUE(worker.Use(0).ok());
  ASSERT_TRUE(worker.Use(0).ok());
  EXPECT_EQ(lane.group(0).done.load(), lane::WordOf(2));
  EXPECT_EQ(worker.plan.stats().skipped, 1u);
}

TEST(Plan, AGroupThatTheOrderNamesTwiceNeedsNoSkip) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1, 0, 2});
  FakeLane& lane = daemon.lane();
  lane.ReadyForAll();
  for (int pass = 0; pass < 2; ++pass) {
    for (uint32_t group : {0, 1, 0, 2}) ASSERT_TRUE(worker.Use(group).ok());
  }
  EXPECT_EQ(worker.plan.stats().skipped, 0u);
  EXPECT_EQ(lane.group(0).done.load(), lane::WordOf(6));
  // From the middle, the nearest of its places is taken.
  ASSERT_TRUE(worker.Use(2).ok());  // Position 11; 8 to 10 are skipped.
  EXPECT_EQ(worker.plan.stats().skipped, 3u);
}

TEST(Plan, AFullRingWaitsForHoistd) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  FakeLane& lane = daemon.lane();
  lane.ReadyForAll();
  for (uint32_t i = 0; i < lane::kRequests; ++i) {
    ASSERT_TRUE(worker.Use(1).ok());  // Each skips group 0.
  }
  EXPECT_EQ(lane.header().head.load(), lane::kRequests);
  lane.header().sleeping.store(1);
  auto used = std::async(std::launch::async, [&] { return worker.Use(1); });
  while (lane.TakeWakeUps() == 0) std::this_thread::yield();
  EXPECT_EQ(lane.header().head.load(), lane::kRequests);
  lane.header().tail.store(1);
  EXPECT_TRUE(used.get().ok());
  EXPECT_EQ(lane.request(lane::kRequests).from, 2u * lane::kRequests);
  EXPECT_EQ(worker.plan.stats().host_waits, 1u);
}

TEST(Plan, AGroupWhosePlaceIsHeldIsRefusedWithWhatWouldDo) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1, 2});
  daemon.lane().ReadyForAll();
  ASSERT_TRUE(worker.plan.Stage(0).ok());
  ASSERT_TRUE(worker.plan.Stage(1).ok());  // The other slot.
  auto refused = worker.plan.Stage(2);
  EXPECT_EQ(refused.status().code(), hoist::Code::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("\"l0\""));
  EXPECT_THAT(refused.status().message(), HasSubstr("\"l2\""));
  EXPECT_THAT(refused.status().message(), HasSubstr("12288 bytes"));
  EXPECT_EQ(daemon.lane().header().cursor.load(), 2u);  // Nothing was taken.
  ASSERT_TRUE(worker.plan.Done(0).ok());
  EXPECT_TRUE(worker.plan.Stage(2).ok());
}

// Three groups in two slots: the third's turn comes when the first is done.
TEST(PlanTurns, AStageMayWaitForItsTurn) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1, 2});
  daemon.lane().ReadyForAll();
  ASSERT_TRUE(worker.plan.Stage(0).ok());
  ASSERT_TRUE(worker.plan.Stage(1).ok());
  auto staged = std::async(std::launch::async, [&] {
    return worker.plan.StageInTurn(2, std::chrono::minutes(1));
  });
  while (worker.plan.stats().host_waits == 0) std::this_thread::yield();
  EXPECT_EQ(daemon.lane().header().cursor.load(), 2u);  // Nothing was taken.
  ASSERT_TRUE(worker.plan.Done(1).ok());                // Not its place.
  EXPECT_EQ(staged.wait_for(std::chrono::seconds(0)),
            std::future_status::timeout);
  ASSERT_TRUE(worker.plan.Done(0).ok());
  auto data = staged.get();
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_TRUE(worker.plan.Done(2).ok());
  // What is free, or staged by itself already, waits for nobody.
  EXPECT_TRUE(worker.plan.StageInTurn(0, std::chrono::minutes(1)).ok());
  EXPECT_TRUE(worker.plan.StageInTurn(0, std::chrono::minutes(1)).ok());
}

TEST(PlanTurns, ATurnThatDoesNotComeIsToldWithWhoHasThePlace) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1, 2});
  daemon.lane().ReadyForAll();
  ASSERT_TRUE(worker.plan.Stage(0).ok());
  auto late = worker.plan.StageInTurn(2, std::chrono::milliseconds(5));
  EXPECT_EQ(late.status().code(), hoist::Code::kDeadlineExceeded);
  EXPECT_THAT(late.status().message(), HasSubstr("\"l0\""));
  EXPECT_EQ(worker.plan.StageInTurn(2, {}).status().code(),
            hoist::Code::kFailedPrecondition);  // As Stage.
}

TEST(PlanTurns, TheEndOfThePlanEndsTheWait) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1, 2});
  daemon.lane().ReadyForAll();
  ASSERT_TRUE(worker.plan.Stage(0).ok());
  auto staged = std::async(std::launch::async, [&] {
    return worker.plan.StageInTurn(2, std::chrono::hours(1));
  });
  while (worker.plan.stats().host_waits == 0) std::this_thread::yield();
  worker.session.Close();
  EXPECT_EQ(staged.get().status().code(), hoist::Code::kFailedPrecondition);
}

TEST(PlanTurns, ThreadsThatWaitAreNeverRefusedAndReadTheirOwn) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1, 2, 3});
  daemon.lane().ReadyForAll();
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint32_t i = 0; i < 60; ++i) {
        const uint32_t group = i % 4;
        if (!worker.plan.StageInTurn(group, std::chrono::minutes(1)).ok()) {
          ++refused;
        } else if (!worker.plan.Done(group).ok()) {
          ++refused;
        }
      }
    });
  }
  std::atomic<bool> stop{false};
  // hoistd's part: what was asked to be skipped has been.
  std::thread hoistd([&] {
    while (!stop) {
      FakeLane& lane = daemon.lane();
      lane.header().tail.store(lane.header().head.load());
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  hoistd.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(worker.plan.stats().stages, 240u);
}

TEST(Plan, StagesNestAndTheLastDoneCounts) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  FakeLane& lane = daemon.lane();
  lane.ReadyForAll();
  ASSERT_TRUE(worker.plan.Stage(0).ok());
  ASSERT_TRUE(worker.plan.Stage(0).ok());
  EXPECT_EQ(lane.header().cursor.load(), 1u);
  ASSERT_TRUE(worker.plan.Done(0).ok());
  EXPECT_EQ(lane.group(0).done.load(), 0u);
  ASSERT_TRUE(worker.plan.Done(0).ok());
  EXPECT_EQ(lane.group(0).done.load(), 1u);
  EXPECT_EQ(worker.plan.Done(0).code(), hoist::Code::kFailedPrecondition);
}

TEST(Plan, HoistdIsWokenOnlyWhileItSleeps) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  FakeLane& lane = daemon.lane();
  lane.ReadyForAll();
  ASSERT_TRUE(worker.Use(0).ok());
  EXPECT_EQ(lane.TakeWakeUps(), 0u);
  lane.header().sleeping.store(1);
  ASSERT_TRUE(worker.plan.Stage(1).ok());
  EXPECT_EQ(lane.TakeWakeUps(), 1u);
  ASSERT_TRUE(worker.plan.Done(1).ok());
  EXPECT_EQ(lane.TakeWakeUps(), 1u);
  EXPECT_EQ(worker.plan.stats().wake_ups, 2u);
}

TEST(Plan, ResidentsAreLeasesThatGoWithThePlan) {
  FakeDaemon daemon;
  daemon.PlanAs({.residents = {0, 2}});
  {
    PlanWorker worker(daemon, {0, 1, 2});
    EXPECT_EQ(worker.plan.kind(0), hoist::Planned::kResident);
    EXPECT_EQ(worker.plan.kind(1), hoist::Planned::kStreamed);
    EXPECT_EQ(worker.plan.kind(3), hoist::Planned::kNot);
    daemon.lane().ReadyForAll();
    for (uint32_t group = 0; group < 3; ++group) {
      ASSERT_TRUE(worker.Use(group).ok());
    }
    auto data = worker.plan.Stage(2);
    ASSERT_TRUE(data.ok());
    EXPECT_EQ(*static_cast<const uint8_t*>(*data), FakeDaemon::Byte(2));
    EXPECT_EQ(worker.plan.stats().resident_stages, 3u);
    EXPECT_EQ(daemon.lane().header().cursor.load(), 1u);
    EXPECT_TRUE(daemon.released().empty());
    { auto dropped = std::move(worker.plan); }  // Until hoistd has it all.
    EXPECT_EQ(daemon.released().size(), 2u);
    EXPECT_THAT(daemon.cleared_plans(), ElementsAre(501u));
  }
}

TEST(Plan, AResidentThatIsLateIsWaitedFor) {
  std::promise<void> go;
  std::shared_future<void> may_go = go.get_future().share();
  FakeDaemon daemon(
      [&](Peer&, const pb::ClientMessage& message, const std::vector<int>&) {
        if (message.has_stage()) may_go.wait();
        return false;
      });
  daemon.PlanAs({.residents = {0}});
  PlanWorker worker(daemon, {0, 1});
  auto staged =
      std::async(std::launch::async, [&] { return worker.plan.Stage(0); });
  while (worker.plan.stats().host_waits == 0) std::this_thread::yield();
  go.set_value();
  auto data = staged.get();
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(*static_cast<const uint8_t*>(*data), FakeDaemon::Byte(0));
}

TEST(Plan, AResidentThatIsRefusedSaysWhyAndMayBeTriedAgain) {
  std::atomic<bool> refuse{true};
  FakeDaemon daemon([&](Peer& peer, const pb::ClientMessage& message,
                        const std::vector<int>&) {
    if (!message.has_stage() || !refuse.load()) return false;
    pb::DaemonMessage reply;
    reply.set_request_id(message.request_id());
    reply.set_code(15);
    reply.set_message("checksum");
    peer.Send(reply);
    return true;
  });
  daemon.PlanAs({.residents = {0}});
  PlanWorker worker(daemon, {0, 1});
  auto refused = worker.plan.Stage(0);
  EXPECT_EQ(refused.status().code(), hoist::Code::kDataLoss);
  EXPECT_EQ(refused.status().message(), "checksum");
  refuse = false;
  EXPECT_TRUE(worker.plan.Stage(0).ok());
}

TEST(Plan, AGroupOutsideThePlanIsStagedByMessage) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  daemon.lane().ReadyForAll();
  auto data = worker.plan.Stage(4);
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(*static_cast<const uint8_t*>(*data), FakeDaemon::Byte(4));
  EXPECT_EQ(worker.plan.tensor(4, 0).status().code(),
            hoist::Code::kFailedPrecondition);
  ASSERT_TRUE(worker.plan.Stage(4).ok());
  ASSERT_TRUE(worker.plan.Done(4).ok());
  EXPECT_TRUE(daemon.released().empty());
  ASSERT_TRUE(worker.plan.Done(4).ok());
  EXPECT_EQ(daemon.released().size(), 1u);
  EXPECT_EQ(worker.plan.stats().unplanned, 2u);
  EXPECT_EQ(worker.plan.stats().stages, 0u);
}

TEST(Plan, AnEmptyGroupNeedsNoPlan) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 6, 1});
  EXPECT_THAT(daemon.plans().at(0).order(), ElementsAre(0u, 1u));
  auto data = worker.plan.Stage(6);
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(*data, nullptr);
  EXPECT_TRUE(worker.plan.Done(6).ok());
}

TEST(Plan, SaysWhatItIs) {
  FakeDaemon daemon;
  daemon.PlanAs({.residents = {0}});
  PlanWorker worker(daemon, {0, 1, 2});
  const hoist_plan_info info = worker.plan.info();
  EXPECT_EQ(info.id, 501u);
  EXPECT_EQ(info.group_count, 3u);
  EXPECT_EQ(info.streamed_count, 2u);
  EXPECT_EQ(info.resident_bytes, 4096u);
  EXPECT_EQ(info.ring_bytes, 8192u);
  EXPECT_EQ(info.streamed_bytes, 8192u);
  EXPECT_EQ(info.learning, 0);
}

TEST(Plan, WrongNumbersAreRefused) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  EXPECT_EQ(worker.plan.Stage(7).status().code(), hoist::Code::kOutOfRange);
  EXPECT_EQ(worker.plan.Done(7).code(), hoist::Code::kOutOfRange);
  EXPECT_EQ(worker.plan.tensor(0, 1).status().code(), hoist::Code::kOutOfRange);
  const auto code = [&](const hoist::PlanOptions& options) {
    return worker.session.SetPlan(worker.model, options).status().code();
  };
  EXPECT_EQ(code({.order = {7}}), hoist::Code::kOutOfRange);
  EXPECT_EQ(code({.order = {6}}), hoist::Code::kInvalidArgument);
  EXPECT_EQ(code({.device = 5}), hoist::Code::kNotFound);
  EXPECT_EQ(code({.weight = 1001}), hoist::Code::kInvalidArgument);
  EXPECT_EQ(code({.priority = -11}), hoist::Code::kInvalidArgument);
  EXPECT_EQ(daemon.plans().size(), 1u);
}

TEST(Plan, ItsTermsReachHoistd) {
  FakeDaemon daemon;
  hoist::PlanOptions options;
  options.budget_bytes = 123;
  options.order = {2, 1};
  options.deadline = std::chrono::milliseconds(7);
  options.stage_deadline = std::chrono::milliseconds(8);
  options.weight = 9;
  options.priority = -10;
  options.max_bytes_per_second = 11;
  PlanWorker worker(daemon, options);
  const pb::SetPlanRequest sent = daemon.plans().at(0);
  EXPECT_EQ(sent.model_id(), 8u);
  EXPECT_EQ(sent.budget_bytes(), 123u);
  EXPECT_THAT(sent.order(), ElementsAre(2u, 1u));
  EXPECT_EQ(sent.deadline_ms(), 7u);
  EXPECT_EQ(sent.stage_deadline_ms(), 8u);
  EXPECT_EQ(sent.share().weight(), 9u);
  EXPECT_EQ(sent.share().priority(), -10);
  EXPECT_EQ(sent.share().max_bytes_per_second(), 11u);
  EXPECT_EQ(sent.replaces(), 0u);
}

}  // namespace hoist_test::plan_test
