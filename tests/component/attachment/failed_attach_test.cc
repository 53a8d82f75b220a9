// An attach that fails leaves no model that hoistd lacked before it.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hoist/hoist_attachment.h"
#include "tests/component/attachment/attachment_rig.h"

namespace hoistd::testing::attachment_test {
namespace {

class FailedAttachTest : public AttachmentTest {
 protected:
  void Start(const char* keeper = nullptr) {
    StartHoistd({.device_bytes = kPool, .slab_bytes = kPool, .keeper = keeper});
    session_.emplace(hoistd_->Connect().value());
  }
  std::string Ctl(const std::string& words) {
    const std::string line = std::string(HOISTCTL_BINARY) + " --socket " +
                             hoistd_->grpc_socket() + " " + words;
    FILE* const out = popen(line.c_str(), "r");
    std::string said;
    char part[4096];
    while (fgets(part, sizeof(part), out) != nullptr) said += part;
    return pclose(out) == 0 ? said : "";
  }
  // The files' model, in a list that makes nobody use it.
  bool IsThere() {
    return Ctl("models --json").find("\"files\"") != std::string::npos;
  }
  void AwaitItsEnd() {
    while (Ctl("models --json").empty() || IsThere()) {
    }
  }
  // One whose resident waits for room that leases have, and gets none.
  void FailWhileItWaits(const std::function<void()>& act) {
    auto model = PublishAs(*session_, "other", 2, Ascending(), kPool / kGroups);
    ASSERT_TRUE(model.ok()) << model.status().message();
    std::vector<hoist::Lease> leases;
    for (const uint32_t group : Ascending()) {
      auto lease = session_->Stage(*model, group);
      ASSERT_TRUE(lease.ok()) << lease.status().message();
      leases.push_back(std::move(*lease));
    }
    hoist::AttachmentOptions waits = Options();
    waits.residents = {0};
    waits.plan.deadline = std::chrono::seconds(2);
    FailMeanwhile(waits, act);
  }
  // `act` comes while it waits.
  void FailMeanwhile(const hoist::AttachmentOptions& options,
                     const std::function<void()>& act) {
    std::atomic<bool> failed{false};
    std::thread waiter([&] {
      EXPECT_FALSE(Attach(options).ok());
      failed = true;
    });
    while (!IsThere() && !failed) {
    }
    act();
    waiter.join();
  }

  std::optional<hoist::Session> session_;
};

TEST_F(FailedAttachTest, LeavesNoModelWhicheverOptionIsRefused) {
  Start();
  const std::vector<std::function<void(hoist::AttachmentOptions&)>> faults = {
      [](auto& options) { options.plan.budget_bytes = 1; },
      [](auto& options) {
        options.plan.blocks = {0, 0};
      },
      [](auto& options) { options.plan.order = {kGroups}; },
      [](auto& options) { options.plan.device = 9; },
      [](auto& options) { options.plan.weight = 100'000; },
      [](auto& options) { options.residents = {kGroups}; },
      [](auto& options) {
        options.residents = {0, 1};
        options.plan.budget_bytes = 2 * kBytes;
      },
      [](auto& options) {
        options.residents = {0, 1};
        options.plan.order = {0, 1};
      }};
  for (size_t i = 0; i < faults.size(); ++i) {
    SCOPED_TRACE(i);
    hoist::AttachmentOptions options = Options();
    faults[i](options);
    ASSERT_FALSE(Attach(options).ok());
    AwaitItsEnd();
  }
  ASSERT_TRUE(Attach().ok());
  ExpectPass();
  attachment_.reset();
  EXPECT_TRUE(IsThere());  // For the next worker.
}

TEST_F(FailedAttachTest, LeavesWhatWasThere) {
  Start();
  const auto files = std::get<hoist::RegisterOptions>(Options().source);
  ASSERT_TRUE(session_->RegisterModel(files).ok());
  hoist::AttachmentOptions options = Options();
  options.plan.budget_bytes = 1;
  EXPECT_EQ(Attach(options).code(), Code::kResourceExhausted);
  session_.reset();  // Nobody uses it now.
  EXPECT_EQ(Attach(options).code(), Code::kResourceExhausted);
  EXPECT_TRUE(IsThere());
}

TEST_F(FailedAttachTest, LeavesNoModelInAFullHoistd) {
  Start();
  FailWhileItWaits([] {});
  AwaitItsEnd();
}

TEST_F(FailedAttachTest, LeavesNoModelInADrainingHoistd) {
  Start();
  FailWhileItWaits([&] { Ctl("drain --deadline 0"); });
  AwaitItsEnd();
}

TEST_F(FailedAttachTest, LeavesWhatAnotherSessionAskedForMeanwhile) {
  Start();
  hoist::Session user = hoistd_->Connect().value();
  FailWhileItWaits(
      [&] { EXPECT_TRUE(user.DescribeModel("files").ok()) << "too late"; });
  EXPECT_TRUE(user.DescribeModel("files").ok());
  EXPECT_TRUE(IsThere());
}

TEST_F(FailedAttachTest, LeavesNoModelInTheNextHoistd) {
  Start();
  FailWhileItWaits([&] { hoistd_->Kill(); });
  hoistd_->Start();
  ASSERT_TRUE(hoistd_->Connect().ok());
  EXPECT_FALSE(IsThere());
}

// Which takes the session over, and the model with it. Other sessions would
// count as its users there. The resident comes slowly, and leaves the plan
// none.
TEST_F(FailedAttachTest, LeavesNoModelInTheNextHoistdUnderAKeeper) {
  StartHoistd({.link = "64KiB/s", .keeper = KEEPER_BINARY});
  hoist::AttachmentOptions options = Options();
  options.residents = {0};
  options.plan.order = {0};
  FailMeanwhile(options, [&] { kill(hoistd_->kept(), SIGKILL); });
  AwaitItsEnd();
}

}  // namespace
}  // namespace hoistd::testing::attachment_test
