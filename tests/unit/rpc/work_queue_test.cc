#include "daemon/rpc/work_queue.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace hoistd {
namespace {

TEST(WorkQueue, StopRunsWhatWasPosted) {
  std::atomic<int> ran = 0;
  WorkQueue queue(2);
  for (int i = 0; i < 1000; ++i) queue.Post([&ran] { ++ran; });
  queue.Stop();
  EXPECT_EQ(ran, 1000);
}

TEST(WorkQueue, AfterStopWorkRunsWhereItIsPosted) {
  WorkQueue queue(1);
  queue.Stop();
  std::thread::id where;
  queue.Post([&where] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
}

}  // namespace
}  // namespace hoistd
