#include "daemon/trace/event_ring.h"

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace hoistd::event_ring_test {

TraceEvent Numbered(uint64_t number, uint64_t writer = 0) {
  TraceEvent event;
  event.bytes = number;
  event.session = SessionId(writer);
  return event;
}

TEST(EventRing, TakesWhatFitsAndNoMore) {
  EventRing ring(4);
  TraceEvent event;
  EXPECT_FALSE(ring.Pop(event));
  for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(ring.Push(Numbered(i)));
  EXPECT_FALSE(ring.Push(Numbered(4)));
  ASSERT_TRUE(ring.Pop(event));
  EXPECT_EQ(event.bytes, 0u);
  EXPECT_TRUE(ring.Push(Numbered(5)));
  EXPECT_FALSE(ring.Push(Numbered(6)));
  for (const uint64_t next : {1, 2, 3, 5}) {
    ASSERT_TRUE(ring.Pop(event));
    EXPECT_EQ(event.bytes, next);
  }
  EXPECT_FALSE(ring.Pop(event));
}

TEST(EventRing, GoesRoundAndRound) {
  EventRing ring(2);
  TraceEvent event;
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_TRUE(ring.Push(Numbered(i)));
    ASSERT_TRUE(ring.Pop(event));
    ASSERT_EQ(event.bytes, i);
  }
}

// Each is there whole, once, and in its writer's order, or was refused.
TEST(EventRing, ManyWritersLoseNothingUntold) {
  constexpr uint64_t kEach = 20'000;
  constexpr uint64_t kWriters = 4;
  EventRing ring(64);
  std::atomic<uint64_t> refused = 0;
  std::atomic<uint64_t> writing = kWriters;
  std::vector<std::thread> writers;
  for (uint64_t writer = 1; writer <= kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      for (uint64_t i = 1; i <= kEach; ++i) {
        if (!ring.Push(Numbered(i, writer))) ++refused;
      }
      --writing;
    });
  }
  std::map<uint64_t, uint64_t> last;
  uint64_t popped = 0;
  TraceEvent event;
  while (true) {
    const bool over = writing == 0;
    if (ring.Pop(event)) {
      ++popped;
      EXPECT_GT(event.bytes, last[event.session.number()]);
      last[event.session.number()] = event.bytes;
    } else if (over) {
      break;
    }
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(popped + refused, kEach * kWriters);
  EXPECT_GT(popped, 0u);
}

}  // namespace hoistd::event_ring_test
