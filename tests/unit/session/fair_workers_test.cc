#include "daemon/session/fair_workers.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::fair_workers_test {

using ::testing::ElementsAre;

TEST(FairWorkers, UsersHaveTheirTurnsAndEachHasAnOrder) {
  absl::Mutex mu;
  std::vector<std::string> done;
  absl::Notification go;
  FairWorkers workers;
  ASSERT_OK(workers.Start(1));
  const auto post = [&](uint32_t uid, const std::string& what) {
    workers.Post(User(uid), [&, what] {
      absl::MutexLock lock(&mu);
      done.push_back(what);
    });
  };
  workers.Post(User(9), [&] { go.WaitForNotification(); });
  for (const char* what : {"a1", "a2", "a3"}) post(1, what);
  for (const char* what : {"b1", "b2"}) post(2, what);
  post(3, "c1");
  go.Notify();
  absl::MutexLock lock(&mu);
  const auto all = [&done] { return done.size() == 6; };
  mu.Await(absl::Condition(&all));
  EXPECT_THAT(done, ElementsAre("a1", "b1", "c1", "a2", "b2", "a3"));
}

TEST(FairWorkers, AUserHasOneThreadAtATimeAndAnotherIsServedMeanwhile) {
  FairWorkers workers;
  ASSERT_OK(workers.Start(2));
  absl::Notification go, second_ran, other_ran;
  workers.Post(User(1), [&] { go.WaitForNotification(); });
  workers.Post(User(1), [&] { second_ran.Notify(); });
  workers.Post(User(2), [&] { other_ran.Notify(); });
  other_ran.WaitForNotification();
  EXPECT_FALSE(second_ran.HasBeenNotified());
  go.Notify();
  second_ran.WaitForNotification();
}

TEST(FairWorkers, StopWaitsForWhatHasBegunAndDropsTheRest) {
  absl::Notification began;
  bool ended = false, ran = false;
  FairWorkers workers;
  ASSERT_OK(workers.Start(1));
  auto held = std::make_shared<int>(7);
  const std::weak_ptr<int> dropped = held;
  // Posts what then waits, so that Stop cannot come too early.
  workers.Post(User(1), [&, held = std::move(held)]() mutable {
    workers.Post(User(1), [&ran, held = std::move(held)] { ran = true; });
    began.Notify();
    // Until Stop has dropped it.
    while (!dropped.expired()) std::this_thread::yield();
    ended = true;
  });
  began.WaitForNotification();
  workers.Stop();
  EXPECT_TRUE(ended);
  workers.Post(User(1), [&ran] { ran = true; });
  workers.Stop();
  EXPECT_FALSE(ran);
}

}  // namespace hoistd::fair_workers_test
