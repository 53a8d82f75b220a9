// Plans of several processes over a real hoistd: what moves, who dies, who
// waits.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <numeric>
#include <thread>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/component/plans/pattern_model.h"
#include "tests/support/real_hoistd.h"

namespace hoistd::testing {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A process of its own that tells its parent how far it is.
//
// The test's process has no threads when it forks, but for those of its own
// session, which the child leaves alone.
class Worker {
 public:
  // `work` gets a function that tells one character to the parent.
  explicit Worker(const std::function<int(std::function<void(char)>)>& work) {
    int ends[2];
    if (pipe(ends) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      const int code = work([&](char what) {
        if (write(ends[1], &what, 1) != 1) _exit(99);
      });
      _exit(code);
    }
    close(ends[1]);
    told_ = ends[0];
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    Signal(SIGKILL);
    Wait();
    close(told_);
  }

  // The next that it told; 0: it has ended.
  char Next() {
    char what = 0;
    return read(told_, &what, 1) == 1 ? what : 0;
  }
  void Signal(int signal) {
    if (pid_ > 0) kill(pid_, signal);
  }
  int Wait() {
    if (pid_ <= 0) return code_;
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return code_;
  }

 private:
  pid_t pid_ = -1;
  int told_ = -1;
  int code_ = -1;
};

std::vector<uint32_t> OrderOf(const hoist::Model& model) {
  std::vector<uint32_t> order(model.group_count());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// One pass in order; the words that were wrong, or why it failed.
hoist::Result<uint64_t> Pass(hoist::Plan& plan, const hoist::Model& model,
                             uint64_t number, uint64_t bytes) {
  uint64_t wrong = 0;
  for (const uint32_t group : OrderOf(model)) {
    auto data = plan.Stage(group);
    if (!data.ok()) return data.status();
    wrong += WrongWords(*data, number, group, bytes);
    if (hoist::Status s = plan.Done(group); !s.ok()) return s;
  }
  return wrong;
}

// Connects and streams model 1; tells 'p' a pass, for ever if `passes` is 0.
int Stream(const std::string& socket, uint64_t bytes, uint64_t budget,
           int passes, const std::function<void(char)>& tell) {
  hoist::ConnectOptions options;
  options.socket_path = socket;
  auto session = hoist::Session::Connect(options);
  if (!session.ok()) return 2;
  auto model = session->DescribeModel("pattern-1");
  if (!model.ok()) return 3;
  hoist::PlanOptions wish;
  wish.budget_bytes = budget;
  wish.order = OrderOf(*model);
  auto plan = session->SetPlan(*model, wish);
  if (!plan.ok()) return 4;
  for (int pass = 0; passes == 0 || pass < passes; ++pass) {
    auto wrong = Pass(*plan, *model, 1, bytes);
    if (!wrong.ok()) return 5;
    if (*wrong != 0) return 6;
    tell('p');
  }
  return 0;
}

struct Moved {
  uint64_t host_to_device = 0;
  uint64_t device_to_host = 0;
};

class PlanLife : public ::testing::Test {
 protected:
  void Start(RealHoistdOptions options, uint64_t groups, uint64_t bytes) {
    hoistd_ = std::make_unique<RealHoistd>(HOISTD_BINARY, options);
    auto session = hoistd_->Connect();
    ASSERT_TRUE(session.ok()) << session.status().message() << hoistd_->Log();
    session_ = std::make_unique<hoist::Session>(*std::move(session));
    auto model =
        PublishPattern(*session_, 1, std::vector<uint64_t>(groups, bytes));
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::make_unique<hoist::Model>(*std::move(model));
    bytes_ = bytes;
  }

  hoist::Result<hoist::Plan> SetPlan(uint64_t budget, int64_t deadline_s = 0) {
    hoist::PlanOptions options;
    options.budget_bytes = budget;
    options.order = OrderOf(*model_);
    options.deadline = std::chrono::seconds(deadline_s);
    return session_->SetPlan(*model_, options);
  }
  void ExpectPasses(hoist::Plan& plan, int passes) {
    for (int pass = 0; pass < passes; ++pass) {
      auto wrong = Pass(plan, *model_, 1, bytes_);
      ASSERT_TRUE(wrong.ok()) << wrong.status().message() << hoistd_->Log();
      ASSERT_EQ(*wrong, 0u) << "pass " << pass;
    }
  }

  // As an operator sees it.
  nlohmann::json Ctl(const std::string& command) {
    const std::string line = std::string(HOISTCTL_BINARY) +
                             " --json --socket " + hoistd_->grpc_socket() +
                             " " + command;
    FILE* pipe = popen(line.c_str(), "r");
    std::string text;
    for (int c; (c = fgetc(pipe)) != EOF;) text += static_cast<char>(c);
    EXPECT_EQ(pclose(pipe), 0) << line << "\n" << text;
    return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  }
  static uint64_t Number(const nlohmann::json& at, const char* name) {
    // Protobuf's JSON writes 64-bit numbers as strings and leaves out zeros.
    if (!at.contains(name)) return 0;
    return std::stoull(at[name].get<std::string>());
  }
  Moved MovedSoFar() {
    const nlohmann::json counters = Ctl("status")["counters"];
    return {Number(counters, "host_to_device_bytes"),
            Number(counters, "device_to_host_bytes")};
  }

  std::unique_ptr<RealHoistd> hoistd_;
  std::unique_ptr<hoist::Session> session_;
  std::unique_ptr<hoist::Model> model_;
  uint64_t bytes_ = 0;
};

TEST_F(PlanLife, APassMovesTheStreamedGroupsOnceAndNothingElse) {
  Start({}, 12, kMiB);
  auto plan = SetPlan(6 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_GT(plan->info().streamed_count, 0u);
  ASSERT_GT(plan->info().resident_bytes, 0u);
  ExpectPasses(*plan, 2);
  const Moved before = MovedSoFar();
  constexpr int kPasses = 5;
  ExpectPasses(*plan, kPasses);
  const Moved after = MovedSoFar();
  // Loads run ahead of the passes by less than a ring.
  const uint64_t moved = after.host_to_device - before.host_to_device;
  const uint64_t expected = kPasses * plan->info().streamed_bytes;
  EXPECT_LE(moved, expected + plan->info().ring_bytes);
  EXPECT_GE(moved + plan->info().ring_bytes, expected);
  EXPECT_EQ(moved % kMiB, 0u);
  EXPECT_EQ(after.device_to_host, 0u);
  EXPECT_EQ(plan->stats().skipped, 0u);
  EXPECT_EQ(plan->stats().unplanned, 0u);
}

TEST_F(PlanLife, AWorkerThatIsKilledGivesItsMemoryBack) {
  Start({.device_bytes = 8 * kMiB}, 12, kMiB);
  Worker worker([&](auto tell) {
    return Stream(hoistd_->socket(), bytes_, 7 * kMiB, 0, tell);
  });
  ASSERT_EQ(worker.Next(), 'p');
  // Another model could not be promised as much beside it.
  auto second = PublishPattern(*session_, 2, std::vector<uint64_t>(8, kMiB));
  ASSERT_TRUE(second.ok());
  hoist::PlanOptions wish;
  wish.budget_bytes = 6 * kMiB;
  wish.deadline = std::chrono::seconds(30);
  wish.order = OrderOf(*second);
  auto refused = session_->SetPlan(*second, wish);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), hoist::Code::kResourceExhausted);
  worker.Signal(SIGKILL);
  worker.Wait();
  // Its socket's end is what hoistd notices; nothing else tells it.
  while (!Ctl("plans")["plans"].empty()) {
  }
  auto plan = session_->SetPlan(*second, wish);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  for (const uint32_t group : OrderOf(*second)) {
    auto data = plan->Stage(group);
    ASSERT_TRUE(data.ok()) << data.status().message();
    EXPECT_EQ(WrongWords(*data, 2, group, bytes_), 0u);
    ASSERT_TRUE(plan->Done(group).ok());
  }
  EXPECT_EQ(Ctl("plans")["plans"].size(), 1u);
}

TEST_F(PlanLife, AWorkerThatIsStoppedHoldsUpNobody) {
  Start({}, 12, kMiB);
  Worker worker([&](auto tell) {
    return Stream(hoistd_->socket(), bytes_, 3 * kMiB, 6, tell);
  });
  ASSERT_EQ(worker.Next(), 'p');
  worker.Signal(SIGSTOP);
  auto plan = SetPlan(3 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ExpectPasses(*plan, 4);
  worker.Signal(SIGCONT);
  EXPECT_EQ(worker.Wait(), 0);
}

TEST_F(PlanLife, FourWorkersStreamAtOnceAndShareResidents) {
  Start({}, 12, kMiB);
  const auto work = [&](auto tell) {
    return Stream(hoistd_->socket(), bytes_, 7 * kMiB, 5, tell);
  };
  Worker a(work), b(work), c(work), d(work);
  for (Worker* worker : {&a, &b, &c, &d}) ASSERT_EQ(worker->Next(), 'p');
  for (Worker* worker : {&a, &b, &c, &d}) EXPECT_EQ(worker->Wait(), 0);
}

TEST_F(PlanLife, AStageThatWaitsEndsWithHoistd) {
  // A link so slow that a group takes a minute.
  Start({.link = "16KiB/s"}, 6, kMiB);
  auto plan = SetPlan(2 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::thread killer([&] {
    // Whether the stage waits already or comes later: it must end.
    hoistd_->Kill();
  });
  hoist::Result<const void*> data = plan->Stage(5);
  killer.join();
  ASSERT_FALSE(data.ok());
  EXPECT_EQ(data.status().code(), hoist::Code::kUnavailable)
      << data.status().message();
  EXPECT_EQ(plan->Check().code(), hoist::Code::kUnavailable);
}

TEST_F(PlanLife, AStageThatComesTooLateIsToldWhy) {
  // A group takes a minute, however late this process comes to its stage.
  Start({.link = "16KiB/s"}, 6, kMiB);
  hoist::PlanOptions wish;
  wish.budget_bytes = 2 * kMiB;
  wish.order = OrderOf(*model_);
  wish.stage_deadline = std::chrono::milliseconds(50);
  auto plan = session_->SetPlan(*model_, wish);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  uint32_t group = 0;
  while (plan->kind(group) != hoist::Planned::kStreamed) ++group;
  auto data = plan->Stage(group);
  ASSERT_FALSE(data.ok());
  EXPECT_EQ(data.status().code(), hoist::Code::kDeadlineExceeded)
      << data.status().message();
  EXPECT_EQ(plan->Check().code(), hoist::Code::kDeadlineExceeded);
  hoistd_->Kill();  // It would wait for the copy.
}

TEST_F(PlanLife, OperatorsSeeAndChangeWhoGetsWhat) {
  Start({}, 12, kMiB);
  auto plan = SetPlan(4 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ExpectPasses(*plan, 2);
  const std::string id = std::to_string(plan->info().id);
  Ctl("share " + id + " --weight 5 --priority 2");
  const nlohmann::json plans = Ctl("plans")["plans"];
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_EQ(plans[0]["model"], "pattern-1");
  EXPECT_EQ(plans[0]["share"]["weight"], 5);
  EXPECT_EQ(plans[0]["share"]["priority"], 2);
  const nlohmann::json changed = Ctl("share " + id + " --priority -1");
  EXPECT_EQ(changed["before"]["priority"], 2);
  EXPECT_EQ(changed["after"]["priority"], -1);
  EXPECT_EQ(changed["after"]["weight"], 5);
  EXPECT_EQ(Number(plans[0], "resident_bytes"), plan->info().resident_bytes);
  EXPECT_GE(Number(plans[0], "copied_bytes"), plan->info().streamed_bytes);
  ExpectPasses(*plan, 2);
}

// More weights than the host holds: they are read ahead from the disk.
TEST_F(PlanLife, WhatDoesNotFitTheHostIsReadAhead) {
  Start({.host_bytes = 16 * kMiB, .spill = true}, 32, kMiB);
  auto plan = SetPlan(4 * kMiB, 10);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ExpectPasses(*plan, 4);
}

}  // namespace
}  // namespace hoistd::testing
