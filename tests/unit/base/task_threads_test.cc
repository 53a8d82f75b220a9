#include "daemon/base/task_threads.h"

#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::task_threads_test {

TEST(TaskThreads, RunsEverythingInOrderBeforeItEnds) {
  std::vector<int> ran;
  {
    TaskThreads worker;
    ASSERT_OK(worker.Start(1));
    for (int i = 0; i < 100; ++i) {
      worker.Post([&ran, i] { ran.push_back(i); });
    }
  }
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

TEST(TaskThreads, RunsOnOneThreadOfItsOwn) {
  std::thread::id first, second;
  {
    TaskThreads worker;
    ASSERT_OK(worker.Start(1));
    worker.Post([&] { first = std::this_thread::get_id(); });
    worker.Post([&] { second = std::this_thread::get_id(); });
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first, std::this_thread::get_id());
}

TEST(TaskThreads, ATaskMayPostAnother) {
  std::promise<int> done;
  TaskThreads worker;
  ASSERT_OK(worker.Start(1));
  worker.Post([&] { worker.Post([&] { done.set_value(7); }); });
  EXPECT_EQ(done.get_future().get(), 7);
}

TEST(TaskThreads, TakesFromManyThreads) {
  int ran = 0;  // The worker's.
  {
    TaskThreads worker;
    ASSERT_OK(worker.Start(1));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 250; ++i) worker.Post([&ran] { ++ran; });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(ran, 1000);
}

}  // namespace hoistd::task_threads_test
