#include "daemon/trace/recorder.h"

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::recorder_test {

using ::testing::HasSubstr;

class HandClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::Microseconds(us_.load());
  }
  void Advance(int64_t us) { us_ += us; }

 private:
  std::atomic<int64_t> us_ = 1000;
};

class RecorderTest : public ::testing::Test {
 protected:
  std::unique_ptr<TraceRecording> Start() { return recorder_.Start().value(); }
  TraceEvent Event(int64_t begin_us, int64_t end_us) const {
    TraceEvent event;
    event.begin = absl::UnixEpoch() + absl::Microseconds(begin_us);
    event.end = absl::UnixEpoch() + absl::Microseconds(end_us);
    return event;
  }

  HandClock clock_;
  TraceRecorder recorder_{clock_};
};

TEST_F(RecorderTest, OffItTakesNothing) {
  EXPECT_FALSE(recorder_.on());
  EXPECT_FALSE(Traces(nullptr));
  recorder_.Add(Event(1, 2));
  recorder_.Name(TraceSession{});
  recorder_.Name({ModelId(1), GroupIndex(0)}, "m", "g");
  const auto recording = Start();
  EXPECT_TRUE(Traces(&recorder_));
  const TraceBatch batch = recording->Take(10);
  EXPECT_TRUE(batch.events.empty());
  EXPECT_TRUE(batch.sessions.empty());
  EXPECT_TRUE(batch.groups.empty());
  EXPECT_EQ(batch.dropped, 0u);
}

TEST_F(RecorderTest, ThereIsOneAtATime) {
  auto first = Start();
  const auto second = recorder_.Start();
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("another `hoistctl trace record` runs"));
  first->Stop();
  // What it has recorded is not taken yet.
  EXPECT_FALSE(recorder_.Start().ok());
  first.reset();
  EXPECT_FALSE(recorder_.on());
  EXPECT_OK(recorder_.Start());
}

TEST_F(RecorderTest, EventsLieInTheRecording) {
  auto recording = Start();  // At 1000 us.
  recorder_.Add(Event(100, 999));
  recorder_.Add(Event(900, 1200));
  TraceEvent open = Event(0, 0);
  open.begin = open.end = absl::InfinitePast();
  open.open = true;
  recorder_.Add(open);
  clock_.Advance(500);
  EXPECT_EQ(recording->ended() - recording->started(), absl::Microseconds(500));
  recording->Stop();
  clock_.Advance(500);
  EXPECT_EQ(recording->ended() - recording->started(), absl::Microseconds(500));
  recorder_.Add(Event(1600, 1700));
  const TraceBatch batch = recording->Take(10);
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.events[0].begin, recording->started());
  EXPECT_EQ(batch.events[0].end,
            recording->started() + absl::Microseconds(200));
  EXPECT_TRUE(batch.events[1].open);
  EXPECT_EQ(batch.events[1].begin, recording->started());
  EXPECT_EQ(batch.dropped, 0u);
}

TEST_F(RecorderTest, WhatDoesNotFitIsCounted) {
  auto recording = Start();
  for (size_t i = 0; i < TraceRecorder::kMostEvents + 7; ++i) {
    recorder_.Add(Event(1000, 1001));
  }
  EXPECT_EQ(recording->Take(10).events.size(), 10u);
  EXPECT_EQ(recording->Take(0).dropped, 7u);
  for (int i = 0; i < 11; ++i) recorder_.Add(Event(1000, 1001));
  const TraceBatch rest = recording->Take(2 * TraceRecorder::kMostEvents);
  EXPECT_EQ(rest.events.size(), TraceRecorder::kMostEvents);
  EXPECT_EQ(rest.dropped, 8u);
  recording.reset();
  EXPECT_EQ(Start()->Take(1).dropped, 0u);
}

TEST_F(RecorderTest, NamesAreToldOnce) {
  auto recording = Start();
  const GroupKey a = {ModelId(7), GroupIndex(0)};
  const GroupKey b = {ModelId(7), GroupIndex(1)};
  recorder_.Name(a, "m", "a");
  recorder_.Name(a, "m", "a");
  recorder_.Name(TracePlan{PlanId(3), SessionId(2), ModelId(7), {}});
  TraceBatch batch = recording->Take(1);
  ASSERT_EQ(batch.groups.size(), 1u);
  EXPECT_EQ(batch.groups[0].name, "a");
  ASSERT_EQ(batch.models.size(), 1u);
  EXPECT_EQ(batch.models[0].name, "m");
  ASSERT_EQ(batch.plans.size(), 1u);
  recorder_.Name(a, "m", "a");
  recorder_.Name(b, "m", "b");
  batch = recording->Take(1);
  ASSERT_EQ(batch.groups.size(), 1u);
  EXPECT_EQ(batch.groups[0].name, "b");
  EXPECT_TRUE(batch.models.empty());
  EXPECT_TRUE(batch.plans.empty());
  // The next recording knows nothing of them.
  recording.reset();
  recording = Start();
  recorder_.Name(a, "m", "a");
  EXPECT_EQ(recording->Take(1).groups.size(), 1u);
}

TEST_F(RecorderTest, NamesAreBounded) {
  auto recording = Start();
  for (uint32_t i = 0; i < TraceRecorder::kMostGroups + 3; ++i) {
    recorder_.Name({ModelId(1), GroupIndex(i)}, "m", "g");
  }
  const TraceBatch batch = recording->Take(1);
  EXPECT_EQ(batch.groups.size(), TraceRecorder::kMostGroups);
  EXPECT_EQ(batch.unnamed, 3u);
}

// For TSan: threads tell while recordings come and go.
TEST_F(RecorderTest, ItMayEndWhileOthersTell) {
  std::atomic<bool> over = false;
  std::vector<std::thread> tellers;
  for (int i = 0; i < 3; ++i) {
    tellers.emplace_back([&] {
      while (!over) {
        if (!Traces(&recorder_)) continue;
        recorder_.Add(Event(1000, 1001));
        recorder_.Name({ModelId(1), GroupIndex(1)}, "m", "g");
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    auto recording = Start();
    EXPECT_EQ(recorder_.number(), static_cast<uint64_t>(i + 1));
    while (recording->Take(100).events.empty()) std::this_thread::yield();
    if (i % 2 == 0) recording->Stop();
    recording->Take(100);
  }
  over = true;
  for (std::thread& teller : tellers) teller.join();
  EXPECT_FALSE(recorder_.on());
}

}  // namespace hoistd::recorder_test
