#ifndef HOIST_TESTS_UNIT_IO_HELPER_IO_HELPER_FIXTURE_H_
#define HOIST_TESTS_UNIT_IO_HELPER_IO_HELPER_FIXTURE_H_

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "daemon/io_helper/io_helpers.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing {

// I/O helpers for one test, with a deadline that no test reaches.
class IoHelperFixture : public ::testing::Test {
 protected:
  // Forks here, before any test has started a thread.
  static void SetUpTestSuite() {
    auto spawner = HelperSpawner::Start();
    ASSERT_THAT(spawner, IsOk());
    spawner_ = spawner->release();
  }
  static void TearDownTestSuite() { delete std::exchange(spawner_, nullptr); }

  void SetUp() override {
    auto io_helpers =
        IoHelpers::Create(*spawner_, {.deadline = absl::Hours(1)});
    ASSERT_THAT(io_helpers, IsOk());
    io_helpers_ = *std::move(io_helpers);
  }

  // Runs `task` as `owner`, and returns when it is done.
  void Do(absl::AnyInvocable<void(absl::StatusOr<IoHelper*>)> task,
          User owner = User(1), HelperCallKind kind = HelperCallKind::kOpen) {
    absl::Notification done;
    io_helpers_->Post(owner, kind, [&](absl::StatusOr<IoHelper*> run) {
      task(run);
      done.Notify();
    });
    done.WaitForNotification();
  }

  static inline HelperSpawner* spawner_ = nullptr;
  std::unique_ptr<IoHelpers> io_helpers_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_UNIT_IO_HELPER_IO_HELPER_FIXTURE_H_
