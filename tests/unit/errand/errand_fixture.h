#ifndef HOIST_TESTS_UNIT_ERRAND_ERRAND_FIXTURE_H_
#define HOIST_TESTS_UNIT_ERRAND_ERRAND_FIXTURE_H_

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "daemon/errand/errands.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing {

// Errands of one test, with a deadline that no test reaches.
class ErrandFixture : public ::testing::Test {
 protected:
  // Here, since it forks: no test has begun a thread.
  static void SetUpTestSuite() {
    auto spawner = ErrandSpawner::Start();
    ASSERT_THAT(spawner, IsOk());
    spawner_ = spawner->release();
  }
  static void TearDownTestSuite() { delete std::exchange(spawner_, nullptr); }

  void SetUp() override {
    auto errands = Errands::Create(*spawner_, {.deadline = absl::Hours(1)});
    ASSERT_THAT(errands, IsOk());
    errands_ = *std::move(errands);
  }

  // Does `task` as `owner`, and returns when it is done.
  void Do(absl::AnyInvocable<void(absl::StatusOr<ErrandRun*>)> task,
          User owner = User(1), ErrandKind kind = ErrandKind::kOpen) {
    absl::Notification done;
    errands_->Post(owner, kind, [&](absl::StatusOr<ErrandRun*> run) {
      task(run);
      done.Notify();
    });
    done.WaitForNotification();
  }

  static inline ErrandSpawner* spawner_ = nullptr;
  std::unique_ptr<Errands> errands_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_UNIT_ERRAND_ERRAND_FIXTURE_H_
