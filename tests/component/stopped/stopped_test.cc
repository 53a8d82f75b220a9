// hoistd is stopped, and alive: calls that give something back wait no longer
// than hoist/c/stage.h and hoist/c/plan.h promise, and other holdings live on.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <functional>
#include <future>
#include <numeric>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "tests/component/plans/pattern_model.h"
#include "tests/support/real_hoistd.h"

namespace hoistd::testing {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGroups = 12;
// Five times what is stated, on a machine that is busy.
constexpr std::chrono::seconds kBound{25};

class Stopped : public ::testing::Test {
 protected:
  void SetUp() override {
    session_ = Connect();
    auto model =
        PublishPattern(*session_, 1, std::vector<uint64_t>(kGroups, kMiB));
    ASSERT_TRUE(model.ok()) << model.status().message() << hoistd_.Log();
    model_ = *std::move(model);
  }
  // Else it could not be ended.
  void TearDown() override { Continue(); }

  // Until all its threads stand still.
  void Stop() {
    int status = 0;
    kill(hoistd_.pid(), SIGSTOP);
    ASSERT_EQ(waitpid(hoistd_.pid(), &status, WUNTRACED), hoistd_.pid());
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  void Continue() { kill(hoistd_.pid(), SIGCONT); }

  std::optional<hoist::Session> Connect() {
    auto session = hoistd_.Connect();
    EXPECT_TRUE(session.ok()) << session.status().message() << hoistd_.Log();
    if (!session.ok()) return std::nullopt;
    return *std::move(session);
  }
  hoist::Result<hoist::Plan> SetPlan(
      hoist::Session& session,
      std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
    hoist::PlanOptions options;
    options.budget_bytes = 6 * kMiB;
    options.order.resize(kGroups);
    std::iota(options.order.begin(), options.order.end(), 0);
    options.deadline = deadline;
    return session.SetPlan(*model_, options);
  }
  void ExpectPass(hoist::Plan& plan) {
    for (uint32_t group = 0; group < kGroups; ++group) {
      auto data = plan.Stage(group);
      ASSERT_TRUE(data.ok()) << data.status().message() << hoistd_.Log();
      ASSERT_EQ(WrongWords(*data, 1, group, kMiB), 0u) << group;
      const hoist::Status done = plan.Done(group);
      ASSERT_TRUE(done.ok()) << done.message();
    }
    EXPECT_TRUE(plan.Check().ok());
  }
  template <typename Do>
  void ExpectBounded(Do act) {
    const steady_clock::time_point begin = steady_clock::now();
    act();
    EXPECT_LT(steady_clock::now() - begin, kBound);
  }

  RealHoistd hoistd_{HOISTD_BINARY};
  std::optional<hoist::Session> session_;
  std::optional<hoist::Model> model_;
};

TEST_F(Stopped, LeasesAndPlansAreGivenBackInABoundedTime) {
  auto plan = SetPlan(*session_);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ExpectPass(*plan);
  auto lease = session_->Stage(*model_, 0, {0, std::chrono::seconds(60)});
  ASSERT_TRUE(lease.ok()) << lease.status().message();
  auto dropped = session_->Stage(*model_, 1, {0, std::chrono::seconds(60)});
  ASSERT_TRUE(dropped.ok());
  Stop();
  ExpectBounded([&] {
    EXPECT_TRUE(lease->Release().ok());
    hoist::Plan last = *std::move(plan);
    hoist::Lease gone = *std::move(dropped);
  });
  Continue();
  // All of it came back: there is room for nothing beside the whole pool.
  auto whole = Connect();
  hoist::PlanOptions options;
  options.budget_bytes = 12 * kMiB;
  options.order.resize(kGroups);
  std::iota(options.order.begin(), options.order.end(), 0);
  options.deadline = std::chrono::seconds(60);
  auto all = whole->SetPlan(*model_, options);
  EXPECT_TRUE(all.ok()) << all.status().message();
  EXPECT_TRUE(session_->Check().ok());
}

TEST_F(Stopped, SeveralSessionsDoNotAddUp) {
  std::vector<hoist::Session> sessions;
  std::vector<hoist::Plan> plans;
  for (int i = 0; i < 6; ++i) {
    sessions.push_back(*Connect());
    auto plan = SetPlan(sessions.back());
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    plans.push_back(*std::move(plan));
  }
  Stop();
  ExpectBounded([&] { plans.clear(); });
  ExpectBounded([&] { sessions.clear(); });
}

TEST_F(Stopped, ASessionClosesAtOnce) {
  auto other = Connect();
  auto plan = SetPlan(*other);
  ASSERT_TRUE(plan.ok());
  Stop();
  ExpectBounded([&] {
    other->Close();
    plan = hoist::Status();
    other.reset();
  });
}

// More messages than a socket holds: the session ends, and gives all back.
TEST_F(Stopped, AFullSocketIsNoWait) {
  std::vector<hoist::Lease> leases;
  for (int i = 0; i < 4'000; ++i) {
    auto lease = session_->Stage(*model_, 0, {0, std::chrono::seconds(60)});
    ASSERT_TRUE(lease.ok()) << lease.status().message();
    leases.push_back(*std::move(lease));
  }
  Stop();
  ExpectBounded([&] { leases.clear(); });
  EXPECT_EQ(session_->Check().code(), hoist::Code::kUnavailable);
  Continue();
  auto other = Connect();
  auto plan = SetPlan(*other);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
}

TEST_F(Stopped, APlanLivesOn) {
  auto plan = SetPlan(*session_);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  for (int turn = 0; turn < 3; ++turn) {
    Stop();
    auto pass = std::async(std::launch::async, [&] { ExpectPass(*plan); });
    // It runs out of what was there already, and waits.
    pass.wait_for(std::chrono::milliseconds(200));
    Continue();
    pass.get();
    ExpectPass(*plan);
  }
}

TEST_F(Stopped, PatienceBoundsWhatWouldWaitLonger) {
  const uint64_t before = hoist_set_patience(100);
  EXPECT_EQ(before, 0u);
  Stop();
  ExpectBounded([&] {
    auto lease = session_->Stage(*model_, 0, {0, std::chrono::seconds(3600)});
    EXPECT_EQ(lease.status().code(), hoist::Code::kDeadlineExceeded);
    EXPECT_NE(lease.status().message().find("no sign of life"),
              std::string::npos)
        << lease.status().message();
  });
  Continue();
  EXPECT_EQ(hoist_set_patience(before), 100u);
  auto lease = session_->Stage(*model_, 0, {0, std::chrono::seconds(60)});
  EXPECT_TRUE(lease.ok()) << lease.status().message();
}

TEST_F(Stopped, CallsWithADeadlineEndAtIt) {
  constexpr std::chrono::milliseconds kDeadline{6'000};
  auto image = session_->ReserveHostImage(*model_, 0);
  ASSERT_TRUE(image.ok()) << image.status().message();
  const std::vector<std::function<hoist::Status()>> calls = {
      [&] {
        hoist::PublishOptions options = {.model = "late", .group = "g"};
        options.deadline = kDeadline;
        return session_->Publish(options).status();
      },
      [&] {
        return session_->Stage(*model_, 0, {0, kDeadline}).status();
      },
      // At once, if it were not for hoistd.
      [&] { return session_->Stage(*model_, 1).status(); },
      [&] { return SetPlan(*session_, kDeadline).status(); },
      [&] { return image->Load(kDeadline); },
  };
  Stop();
  ExpectBounded([&] {
    std::vector<std::future<hoist::Status>> ended;
    for (const auto& call : calls) {
      ended.push_back(std::async(std::launch::async, call));
    }
    for (size_t i = 0; i < ended.size(); ++i) {
      const hoist::Status status = ended[i].get();
      EXPECT_EQ(status.code(), hoist::Code::kDeadlineExceeded)
          << i << ": " << status.message();
    }
  });
  Continue();
  auto lease = session_->Stage(*model_, 0, {0, std::chrono::seconds(60)});
  EXPECT_TRUE(lease.ok()) << lease.status().message();
}

// It answers, though not yet what was asked for.
TEST(StoppedNot, PatienceLetsALivingHoistdTakeItsTime) {
  RealHoistdOptions sizes;
  sizes.device_bytes = 2 * kMiB;
  RealHoistd hoistd(HOISTD_BINARY, sizes);
  auto session = hoistd.Connect();
  ASSERT_TRUE(session.ok()) << hoistd.Log();
  auto model = PublishPattern(*session, 1, {2 * kMiB, 2 * kMiB});
  ASSERT_TRUE(model.ok()) << model.status().message();
  auto first = session->Stage(*model, 0, {0, std::chrono::seconds(60)});
  ASSERT_TRUE(first.ok()) << first.status().message();
  // It must be scheduled in between, and what reads its answers here, too.
  hoist_set_patience(1000);
  auto second = session->Stage(*model, 1, {0, std::chrono::seconds(3)});
  hoist_set_patience(0);
  EXPECT_EQ(second.status().code(), hoist::Code::kResourceExhausted)
      << second.status().message();
}

}  // namespace
}  // namespace hoistd::testing
