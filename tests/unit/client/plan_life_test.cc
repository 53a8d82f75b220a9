// How plans change and end: learned orders, budgets, faults, hoistd's death.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
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

namespace hoist_test::plan_life_test {

using Code = hoist::Code;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace lane = hoist::lane;

// Refuses plans that replace others, with `code`, while it is not 0.
FakeDaemon::Script RefuseReplacements(const std::atomic<int>& code) {
  return [&code](Peer& peer, const pb::ClientMessage& message,
                 const std::vector<int>&) {
    if (!message.has_set_plan() || message.set_plan().replaces() == 0 ||
        code.load() == 0) {
      return false;
    }
    pb::DaemonMessage reply;
    reply.set_request_id(message.request_id());
    reply.set_code(code.load());
    reply.set_message("give 12288 bytes");
    peer.Send(reply);
    return true;
  };
}

TEST(PlanLearning, TheModelsOwnOrderServesUntilAPassWasSeen) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {});
  EXPECT_THAT(daemon.plans().at(0).order(), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(worker.plan.info().learning, 1);
  daemon.lane().ReadyForAll();
  for (uint32_t group : {3, 1, 6, 5}) ASSERT_TRUE(worker.Use(group).ok());
  auto changed = worker.plan.EndPass();
  ASSERT_TRUE(changed.ok()) << changed.status().ToString();
  EXPECT_TRUE(*changed);
  const pb::SetPlanRequest learned = daemon.plans().at(1);
  EXPECT_THAT(learned.order(), ElementsAre(3, 1, 5));  // 6 is empty.
  EXPECT_EQ(learned.replaces(), 501u);
  EXPECT_EQ(worker.plan.info().learning, 0);
  EXPECT_EQ(worker.plan.kind(0), hoist::Planned::kNot);
  daemon.lane(1).ReadyForAll();
  for (uint32_t group : {3, 1, 5}) ASSERT_TRUE(worker.Use(group).ok());
  EXPECT_EQ(daemon.lane(1).header().head.load(), 0u);  // No skip.
  EXPECT_FALSE(*worker.plan.EndPass());
}

TEST(PlanLearning, AnOrderThatWasRightIsKept) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {});
  daemon.lane().ReadyForAll();
  for (uint32_t group = 0; group < 6; ++group) {
    ASSERT_TRUE(worker.Use(group).ok());
  }
  auto changed = worker.plan.EndPass();
  ASSERT_TRUE(changed.ok());
  EXPECT_FALSE(*changed);
  EXPECT_EQ(worker.plan.info().learning, 0);
  EXPECT_EQ(daemon.plans().size(), 1u);
}

TEST(PlanLearning, TheFirstGroupComingAgainEndsThePass) {
  std::atomic<FakeDaemon*> self{nullptr};
  FakeDaemon daemon([&](Peer& peer, const pb::ClientMessage& message,
                        const std::vector<int>&) {
    if (!message.has_set_plan()) return false;
    FakeDaemon& on = *self.load();
    const auto reply = on.PlanReply(message.request_id(), message.set_plan());
    on.lane(on.lanes() - 1).ReadyForAll();
    peer.Send(reply, on.PlanFds());
    return true;
  });
  self = &daemon;
  PlanWorker worker(daemon, {});
  for (uint32_t group : {2, 2, 4}) ASSERT_TRUE(worker.Use(group).ok());
  // The second 2 was no end: a pass has two stages at least. The third one is.
  EXPECT_EQ(daemon.plans().size(), 1u);
  ASSERT_TRUE(worker.Use(2).ok());
  ASSERT_EQ(daemon.plans().size(), 2u);
  EXPECT_THAT(daemon.plans().at(1).order(), ElementsAre(2, 2, 4));
  EXPECT_EQ(worker.plan.info().learning, 0);
  EXPECT_EQ(daemon.lane(1).header().cursor.load(), 1u);
}

TEST(PlanLearning, AnOrderToBeginWithServesUntilEndPassAlone) {
  FakeDaemon daemon;
  PlanWorker worker(daemon,
                    hoist::PlanOptions{.order = {0, 1, 2}, .learn = true});
  EXPECT_THAT(daemon.plans().at(0).order(), ElementsAre(0u, 1u, 2u));
  EXPECT_EQ(worker.plan.info().learning, 1);
  daemon.lane().ReadyForAll();
  // The first group's return ends no pass: it is used twice in each.
  for (uint32_t group : {0u, 1u, 0u}) ASSERT_TRUE(worker.Use(group).ok());
  EXPECT_EQ(daemon.plans().size(), 1u);
  ASSERT_TRUE(*worker.plan.EndPass());
  EXPECT_THAT(daemon.plans().at(1).order(), ElementsAre(0u, 1u, 0u));
  EXPECT_EQ(worker.plan.info().learning, 0);
}

TEST(PlanLearning, WhatIsStagedPutsTheChangeOff) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {});
  daemon.lane().ReadyForAll();
  ASSERT_TRUE(worker.Use(1).ok());
  ASSERT_TRUE(worker.plan.Stage(2).ok());
  ASSERT_TRUE(worker.Use(1).ok());  // A new pass, but 2 is staged.
  EXPECT_EQ(daemon.plans().size(), 1u);
  EXPECT_EQ(worker.plan.EndPass().status().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(worker.plan.Done(2).ok());
  EXPECT_EQ(worker.plan.info().learning, 1);
  ASSERT_TRUE(worker.Use(3).ok());
  ASSERT_TRUE(*worker.plan.EndPass());
  EXPECT_THAT(daemon.plans().at(1).order(), ElementsAre(1, 3));
}

TEST(PlanLearning, ARefusedOrderLeavesThePlanAsItWas) {
  std::atomic<int> code{8};
  FakeDaemon daemon(RefuseReplacements(code));
  PlanWorker worker(daemon, {});
  daemon.lane().ReadyForAll();
  ASSERT_TRUE(worker.Use(4).ok());
  EXPECT_EQ(worker.plan.EndPass().status().code(), Code::kResourceExhausted);
  EXPECT_EQ(worker.plan.info().learning, 0);
  EXPECT_TRUE(worker.Use(5).ok());
  EXPECT_TRUE(worker.plan.Check().ok());
}

TEST(PlanOrder, AnotherOrderTakesThePlansPlaceWithTheSameTerms) {
  FakeDaemon daemon;
  PlanWorker worker(
      daemon,
      hoist::PlanOptions{.budget_bytes = 12288,
                         .order = {0, 1},
                         .stage_deadline = std::chrono::milliseconds(2500),
                         .weight = 3,
                         .max_bytes_per_second = 7,
                         .learn = true});
  daemon.lane().ReadyForAll();
  ASSERT_TRUE(worker.Use(0).ok());
  ASSERT_TRUE(worker.plan.SetOrder({2, 0, 2}).ok());
  ASSERT_EQ(daemon.plans().size(), 2u);
  const auto made = daemon.plans().at(1);
  EXPECT_EQ(made.replaces(), 501u);
  EXPECT_THAT(made.order(), ElementsAre(2, 0, 2));
  EXPECT_EQ(made.budget_bytes(), 12288u);
  EXPECT_EQ(made.stage_deadline_ms(), 2500u);
  EXPECT_EQ(made.share().weight(), 3u);
  EXPECT_EQ(made.share().max_bytes_per_second(), 7u);
  // What was recorded so far is no order to learn.
  EXPECT_EQ(worker.plan.info().learning, 0);
  EXPECT_FALSE(*worker.plan.EndPass());
  daemon.lane(1).ReadyForAll();
  for (uint32_t group : {2u, 0u, 2u}) ASSERT_TRUE(worker.Use(group).ok());
  EXPECT_EQ(worker.plan.stats().unplanned, 0u);
  // A budget that is set later keeps the order.
  ASSERT_TRUE(worker.plan.SetBudget(16384).ok());
  EXPECT_THAT(daemon.plans().at(2).order(), ElementsAre(2, 0, 2));
}

TEST(PlanOrder, TheOrderInForceIsNotSentAgain) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  ASSERT_TRUE(worker.plan.SetOrder({0, 1}).ok());
  EXPECT_EQ(daemon.plans().size(), 1u);
}

TEST(PlanOrder, ABadOrRefusedOrderLeavesThePlanAsItWas) {
  std::atomic<int> code{8};
  FakeDaemon daemon(RefuseReplacements(code));
  PlanWorker worker(daemon, {0, 1});
  daemon.lane().ReadyForAll();
  EXPECT_EQ(worker.plan.SetOrder({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(worker.plan.SetOrder({0, 99}).code(), Code::kOutOfRange);
  ASSERT_TRUE(worker.plan.Stage(0).ok());
  EXPECT_EQ(worker.plan.SetOrder({1, 0}).code(), Code::kFailedPrecondition);
  ASSERT_TRUE(worker.plan.Done(0).ok());
  EXPECT_EQ(worker.plan.SetOrder({1, 0}).code(), Code::kResourceExhausted);
  EXPECT_TRUE(worker.plan.Check().ok());
  EXPECT_TRUE(worker.Use(1).ok());
}

TEST(PlanBudget, AnotherBudgetKeepsLeasesOfWhatStaysResident) {
  FakeDaemon daemon;
  daemon.PlanAs({.residents = {0, 1}});
  PlanWorker worker(daemon, {0, 1, 2});
  for (uint32_t group : {0, 1}) ASSERT_TRUE(worker.Use(group).ok());
  daemon.PlanAs({.residents = {1}});
  ASSERT_TRUE(worker.plan.SetBudget(12288).ok());
  EXPECT_EQ(daemon.plans().at(1).replaces(), 501u);
  EXPECT_EQ(daemon.plans().at(1).budget_bytes(), 12288u);
  EXPECT_THAT(daemon.plans().at(1).order(), ElementsAre(0, 1, 2));
  ASSERT_TRUE(worker.session.DescribeModel("m").ok());
  EXPECT_EQ(daemon.released().size(), 1u);
  EXPECT_EQ(worker.plan.kind(0), hoist::Planned::kStreamed);
  EXPECT_EQ(worker.plan.info().budget_bytes, 12288u);
  daemon.lane(1).ReadyForAll();
  for (uint32_t group = 0; group < 3; ++group) {
    ASSERT_TRUE(worker.Use(group).ok());
  }
  EXPECT_EQ(daemon.lane(1).header().cursor.load(), 2u);
}

TEST(PlanBudget, ARefusedBudgetLeavesThePlanAsItWas) {
  for (const int refusal : {8, 3}) {
    std::atomic<int> code{refusal};
    FakeDaemon daemon(RefuseReplacements(code));
    PlanWorker worker(daemon, {0, 1});
    daemon.lane().ReadyForAll();
    ASSERT_TRUE(worker.Use(0).ok());
    const hoist::Status refused = worker.plan.SetBudget(1);
    EXPECT_EQ(static_cast<int>(refused.code()), refusal);
    EXPECT_EQ(refused.message(), "give 12288 bytes");
    EXPECT_TRUE(worker.plan.Check().ok());
    EXPECT_TRUE(worker.Use(1).ok());
    EXPECT_EQ(daemon.lane().header().cursor.load(), 2u);
  }
}

TEST(PlanBudget, AnyOtherFailureEndsThePlan) {
  std::atomic<int> code{13};
  FakeDaemon daemon(RefuseReplacements(code));
  PlanWorker worker(daemon, {0, 1});
  EXPECT_EQ(worker.plan.SetBudget(1).code(), Code::kInternal);
  EXPECT_EQ(worker.plan.Check().code(), Code::kInternal);
  EXPECT_EQ(worker.plan.Stage(0).status().code(), Code::kInternal);
  EXPECT_TRUE(worker.session.Check().ok());
}

TEST(PlanBudget, IsRefusedWhileAGroupIsStaged) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  daemon.lane().ReadyForAll();
  ASSERT_TRUE(worker.plan.Stage(0).ok());
  EXPECT_EQ(worker.plan.SetBudget(1).code(), Code::kFailedPrecondition);
  EXPECT_EQ(daemon.plans().size(), 1u);
}

bool IsReadable(int fd) {
  pollfd one = {fd, POLLIN, 0};
  return poll(&one, 1, 0) == 1;
}
// Whether it was told since it was asked last.
bool TakeNotice(int fd) {
  eventfd_t count = 0;
  return eventfd_read(fd, &count) == 0;
}

TEST(PlanNotice, ComesWithEachNewPlanAndItsGeneration) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1, 2});
  const auto fd = worker.plan.event_fd();
  ASSERT_TRUE(fd.ok()) << fd.status().ToString();
  EXPECT_EQ(*worker.plan.event_fd(), *fd);
  EXPECT_EQ(worker.plan.info().generation, 1u);
  EXPECT_FALSE(IsReadable(*fd));
  ASSERT_TRUE(worker.plan.SetOrder({2, 1, 0}).ok());
  EXPECT_EQ(worker.plan.info().generation, 2u);
  EXPECT_TRUE(IsReadable(*fd));
  EXPECT_TRUE(TakeNotice(*fd));
  EXPECT_FALSE(IsReadable(*fd));
  ASSERT_TRUE(worker.plan.SetOrder({2, 1, 0}).ok());  // As it is.
  EXPECT_EQ(worker.plan.info().generation, 2u);
  EXPECT_FALSE(IsReadable(*fd));
  ASSERT_TRUE(worker.plan.SetBudget(1 << 20).ok());
  EXPECT_TRUE(TakeNotice(*fd));
  EXPECT_EQ(worker.plan.info().generation, 3u);
  EXPECT_TRUE(worker.plan.Check().ok());
}

TEST(PlanNotice, ComesWithTheEndThoughNobodyCalls) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  const auto fd = worker.plan.event_fd();
  ASSERT_TRUE(fd.ok());
  worker.session.Close();
  pollfd one = {*fd, POLLIN, 0};
  EXPECT_EQ(poll(&one, 1, 60'000), 1);
  EXPECT_FALSE(worker.plan.Check().ok());
}

TEST(PlanNotice, OfAnEndThatWasBeforeComesAtOnce) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  worker.session.Close();
  while (worker.plan.Check().ok()) std::this_thread::yield();
  const auto fd = worker.plan.event_fd();
  ASSERT_TRUE(fd.ok());
  EXPECT_TRUE(IsReadable(*fd));
}

// Asks for a plan with its answer, and for the latest one with each model.
FakeDaemon::Script AsksForPlans(FakeDaemon*& daemon) {
  return [&daemon](Peer& peer, const pb::ClientMessage& message,
                   const std::vector<int>&) {
    pb::DaemonMessage ask;
    if (message.has_set_plan()) {
      const pb::DaemonMessage reply =
          daemon->PlanReply(message.request_id(), message.set_plan());
      ask.mutable_give_way()->set_id(reply.plan().id());
      ask.mutable_give_way()->set_idle_ms(30);
      peer.Send(reply, daemon->PlanFds());
      peer.Send(ask);
      return true;
    }
    if (!message.has_describe_model()) return false;
    ask.mutable_give_way()->set_id(501);
    peer.Send(ask);
    return false;
  };
}

TEST(PlanNotice, ComesWithAnAskToGiveWayAlsoIfThatWasBefore) {
  FakeDaemon* asking = nullptr;
  FakeDaemon daemon(AsksForPlans(asking));
  asking = &daemon;
  PlanWorker worker(daemon, {.order = {0, 1}, .gives_way = true});
  while (worker.plan.info().asked_to_give_way == 0) std::this_thread::yield();
  EXPECT_EQ(worker.plan.info().idle_ms, 30u);
  const auto fd = worker.plan.event_fd();
  ASSERT_TRUE(fd.ok());
  EXPECT_TRUE(TakeNotice(*fd));
  EXPECT_FALSE(IsReadable(*fd));
  ASSERT_TRUE(worker.session.DescribeModel("m").ok());
  pollfd one = {*fd, POLLIN, 0};
  EXPECT_EQ(poll(&one, 1, 60'000), 1);
  EXPECT_EQ(worker.plan.info().idle_ms, 0u);
  EXPECT_TRUE(worker.plan.Check().ok());
}

TEST(PlanEnd, AFaultIsToldByEveryCall) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  auto staged =
      std::async(std::launch::async, [&] { return worker.plan.Stage(0); });
  daemon.lane().AwaitCursor(1);
  daemon.lane().Fault(15, "l0 has another checksum");
  EXPECT_EQ(staged.get().status().code(), Code::kDataLoss);
  const auto is_fault = [](const hoist::Status& status) {
    return status.code() == Code::kDataLoss &&
           status.message() == "l0 has another checksum";
  };
  EXPECT_TRUE(is_fault(worker.plan.Check()));
  EXPECT_TRUE(is_fault(worker.plan.Stage(1).status()));
  EXPECT_TRUE(is_fault(worker.plan.Done(0)));
  EXPECT_TRUE(is_fault(worker.plan.EndPass().status()));
  EXPECT_TRUE(is_fault(worker.plan.SetBudget(1)));
  EXPECT_TRUE(is_fault(worker.plan.tensor(0, 0).status()));
  EXPECT_TRUE(worker.session.Check().ok());
}

TEST(PlanEnd, AFaultThatCameBeforeTheStageLetsItThrough) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  daemon.lane().Fault(99, std::string(1000, 'x'));
  auto staged = worker.plan.Stage(0);
  EXPECT_EQ(staged.status().code(), Code::kUnknown);
  EXPECT_EQ(staged.status().message().size(), lane::kMaxFaultText - 1);
}

TEST(PlanEnd, HoistdsDeathReleasesAStageThatWaits) {
  std::atomic<Peer*> connection{nullptr};
  FakeDaemon daemon(
      [&](Peer& peer, const pb::ClientMessage&, const std::vector<int>&) {
        connection = &peer;
        return false;
      });
  PlanWorker worker(daemon, {0, 1});
  auto staged =
      std::async(std::launch::async, [&] { return worker.plan.Stage(0); });
  daemon.lane().AwaitCursor(1);
  connection.load()->HangUp();
  EXPECT_EQ(staged.get().status().code(), Code::kUnavailable);
  EXPECT_EQ(worker.plan.Check().code(), Code::kUnavailable);
  // What a GPU would still wait for, it waits for no more.
  EXPECT_TRUE(lane::Reached(daemon.lane().group(1).ready.load(), 1));
}

// Its stage's deadline is a minute.
TEST(PlanEnd, AResidentThatGetsNoSpaceHoldsUpNothing) {
  std::promise<void> asked;
  FakeDaemon daemon(
      [&](Peer&, const pb::ClientMessage& message, const std::vector<int>&) {
        if (message.has_stage()) asked.set_value();
        return message.has_stage();  // And never answers.
      });
  daemon.PlanAs({.residents = {0}});
  {
    PlanWorker worker(daemon, {0, 1});
    asked.get_future().wait();
  }
  EXPECT_THAT(daemon.cleared_plans(), ElementsAre(501));
}

TEST(PlanEnd, AClosedSessionEndsItsPlans) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  auto staged =
      std::async(std::launch::async, [&] { return worker.plan.Stage(0); });
  daemon.lane().AwaitCursor(1);
  worker.session.Close();
  EXPECT_EQ(staged.get().status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(worker.plan.Check().message(), HasSubstr("closed"));
}

TEST(PlanEnd, APlanMayOutliveItsSession) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  { auto gone = std::move(worker.session); }
  EXPECT_EQ(worker.plan.Stage(0).status().code(), Code::kFailedPrecondition);
}

TEST(PlanEnd, TheChildOfAForkIsRefusedAndTheParentGoesOn) {
  FakeDaemon daemon;
  PlanWorker worker(daemon, {0, 1});
  daemon.lane().ReadyForAll();
  const pid_t child = fork();
  if (child == 0) {
    const auto refused = [](const hoist::Status& status) {
      return status.code() == Code::kFailedPrecondition;
    };
    const bool all = refused(worker.plan.Stage(0).status()) &&
                     refused(worker.plan.Done(0)) &&
                     refused(worker.plan.Check()) &&
                     refused(worker.plan.EndPass().status()) &&
                     refused(worker.plan.SetBudget(1)) &&
                     refused(worker.plan.tensor(0, 0).status()) &&
                     worker.plan.info().id == 0;
    { auto dropped = std::move(worker.plan); }
    _exit(all ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(worker.Use(0).ok());
  EXPECT_EQ(daemon.lane().header().cursor.load(), 1u);
  EXPECT_TRUE(daemon.cleared_plans().empty());
}

TEST(PlanEnd, ThreadsThatStageDifferentGroupsEachGetTheirOwn) {
  FakeDaemon daemon;
  daemon.PlanAs({.slots = 6});
  PlanWorker worker(daemon, {0, 1, 2, 3, 4, 5});
  daemon.lane().ReadyForAll();
  std::vector<std::future<bool>> threads;
  for (uint32_t group = 0; group < 4; ++group) {
    threads.push_back(std::async(std::launch::async, [&worker, &daemon, group] {
      for (int i = 0; i < 50; ++i) {
        if (!worker.Use(group).ok()) return false;
        // hoistd takes what the others skip.
        lane::Header& header = daemon.lane().header();
        header.tail.store(header.head.load());
      }
      return true;
    }));
  }
  for (auto& thread : threads) EXPECT_TRUE(thread.get());
  const hoist_plan_stats stats = worker.plan.stats();
  EXPECT_EQ(stats.stages, 200u);
  EXPECT_EQ(stats.stages + stats.skipped,
            uint64_t{daemon.lane().header().cursor.load()});
}

}  // namespace hoist_test::plan_life_test
