#include "daemon/rpc/work_queue.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::work_queue_test {

TEST(WorkQueue, StopRunsWhatWasPosted) {
  std::atomic<int> ran = 0;
  WorkQueue queue;
  ASSERT_OK(queue.Start(2));
  for (int i = 0; i < 1000; ++i) queue.Post([&ran] { ++ran; });
  queue.Stop();
  EXPECT_EQ(ran, 1000);
}

TEST(WorkQueue, AfterStopWorkRunsWhereItIsPosted) {
  WorkQueue queue;
  ASSERT_OK(queue.Start(1));
  queue.Stop();
  std::thread::id where;
  queue.Post([&where] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
}

}  // namespace hoistd::work_queue_test
