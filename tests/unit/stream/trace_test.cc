// What a recording is told of lanes.
#include <algorithm>
#include <vector>

#include "daemon/stream/streamer.h"
#include "daemon/trace/recorder.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/stream/rig.h"

namespace hoistd::testing::trace_test {

using Events = std::vector<TraceEvent>;

const ModelId kModel(7);
const SessionId kSession(12);

class StreamTrace : public ::testing::Test {
 protected:
  TestLane Make(const std::vector<uint64_t>& sizes, size_t slots) {
    TestLane lane = rig_.Make(sizes, slots);
    lane.spec.model = kModel;
    lane.spec.session = kSession;
    for (uint32_t i = 0; i < lane.spec.groups.size(); ++i) {
      lane.spec.groups[i].group = GroupIndex(100 + i);
    }
    return lane;
  }
  void Start() { recording_ = recorder_.Start().value(); }
  // What there is by now is added to all_.
  void Take() {
    const Events more = recording_->Take(SIZE_MAX).events;
    all_.insert(all_.end(), more.begin(), more.end());
  }
  Events Of(TraceKind kind, bool open) {
    Take();
    Events found;
    std::ranges::copy_if(all_, std::back_inserter(found), [&](auto& event) {
      return event.kind == kind && event.open == open;
    });
    return found;
  }
  // A gap of the link that lasts comes to have this cause.
  bool LinkIdles(TraceWhy why) {
    absl::Time looked;
    return Until([&] {
      // It looks; seldom, as it has to rest for most of the time.
      if (clock_.Now() - looked > absl::Milliseconds(20)) {
        looked = clock_.Now();
        rig_.link().Post([] {});
      }
      const Events gaps = Of(TraceKind::kLinkGap, /*open=*/true);
      return !gaps.empty() && gaps.back().why == why;
    });
  }
  bool Comes(TraceKind kind, bool open) {
    return Until([&] { return !Of(kind, open).empty(); });
  }

  const MonotonicClock clock_ = {};
  TraceRecorder recorder_{clock_};
  StreamRig rig_{{.clock = &clock_, .trace = &recorder_}};
  std::unique_ptr<TraceRecording> recording_;
  Events all_;
};

TEST_F(StreamTrace, ACopyOfEachGroupIsToldOneAfterTheOther) {
  TestLane lane = Make(std::vector<uint64_t>(8, 96 * kKiB), 3);
  Start();
  rig_.Open(lane);
  for (uint64_t position = 0; position < 40; ++position) {
    ASSERT_OK(rig_.Step(lane, position)) << position;
  }
  ASSERT_TRUE(Until([&] { return rig_.Stats(lane.plan).loads == 43; }));
  const Events copies = Of(TraceKind::kCopyIn, /*open=*/false);
  uint64_t bytes = 0;
  absl::Time last = recording_->started();
  for (const TraceEvent& copy : copies) {
    bytes += copy.bytes;
    EXPECT_GE(copy.begin, last);
    EXPECT_GE(copy.end, copy.begin);
    last = copy.end;
    EXPECT_EQ(copy.plan, lane.plan);
    EXPECT_EQ(copy.session, kSession);
    EXPECT_EQ(copy.model, kModel);
    EXPECT_GE(copy.group.number(), 100u);
    EXPECT_LT(copy.group.number(), 108u);
  }
  EXPECT_LE(last, clock_.Now());
  EXPECT_EQ(bytes, rig_.Stats(lane.plan).copied_bytes);
  EXPECT_EQ(copies.size(), 43u);
}

TEST_F(StreamTrace, AClientThatWaitsForTheHostIsSeenTo) {
  TestLane lane = Make({kMiB, kMiB}, 2);
  Start();
  rig_.Open(lane, /*ready=*/false);
  lane.client->Announce(0);
  ASSERT_TRUE(Comes(TraceKind::kLaneWait, /*open=*/true));
  ASSERT_TRUE(Comes(TraceKind::kHostWait, /*open=*/true));
  ASSERT_TRUE(Until([&] {
    const Events gaps = Of(TraceKind::kLaneGap, /*open=*/true);
    return std::ranges::any_of(gaps, [](const TraceEvent& gap) {
      return gap.why == TraceWhy::kNotOnHost;
    });
  }));
  EXPECT_TRUE(Of(TraceKind::kLaneWait, /*open=*/false).empty());
  rig_.HostReady(lane, 0);
  ASSERT_TRUE(Comes(TraceKind::kLaneWait, /*open=*/false));
  const TraceEvent wait = Of(TraceKind::kLaneWait, false).front();
  EXPECT_EQ(wait.group, GroupIndex(100));
  EXPECT_EQ(wait.session, kSession);
  EXPECT_EQ(wait.plan, lane.plan);
  EXPECT_FALSE(wait.failed);
  const TraceEvent host = Of(TraceKind::kHostWait, false).front();
  EXPECT_EQ(host.group, GroupIndex(100));
  EXPECT_GE(host.end, host.begin);
  // Gaps lie in the wait.
  for (const TraceEvent& gap : Of(TraceKind::kLaneGap, false)) {
    EXPECT_GE(gap.begin, wait.begin);
    EXPECT_LE(gap.end, wait.end);
  }
}

TEST_F(StreamTrace, ALinkIdlesWhileASourceIsNotOnTheHost) {
  TestLane lane = Make({kMiB, kMiB}, 2);
  rig_.Open(lane, /*ready=*/false);
  ASSERT_TRUE(Until([&] { return !rig_.wanted(lane.plan).empty(); }));
  Start();
  EXPECT_TRUE(LinkIdles(TraceWhy::kNotOnHost));
}

TEST_F(StreamTrace, ALinkIdlesWhileNothingIsStaged) {
  TestLane lane = Make(std::vector<uint64_t>(4, kMiB), 2);
  rig_.Open(lane);
  ASSERT_TRUE(Until([&] { return rig_.Stats(lane.plan).loads == 2; }));
  Start();
  EXPECT_TRUE(LinkIdles(TraceWhy::kNotDue));
}

TEST_F(StreamTrace, ALinkIdlesWhileAReaderHasTheSlot) {
  TestLane lane = Make(std::vector<uint64_t>(4, kMiB), 2);
  rig_.Open(lane);
  ASSERT_TRUE(Until([&] { return rig_.Stats(lane.plan).loads == 2; }));
  ASSERT_OK(lane.client->Stage(0));
  Start();
  ASSERT_TRUE(LinkIdles(TraceWhy::kPlaceInUse));
  const absl::Time began = Of(TraceKind::kLinkGap, /*open=*/true).back().begin;
  // The gap ends with the reader. On a busy machine the thread that sees it is
  // late, and the whole gap has that cause.
  lane.client->Done(0);
  ASSERT_TRUE(Until([&] {
    const Events gaps = Of(TraceKind::kLinkGap, /*open=*/false);
    return !gaps.empty() && gaps.front().begin == began;
  }));
}

TEST_F(StreamTrace, WhatWaitsAlreadyIsToldToANewRecording) {
  TestLane lane = Make({kMiB}, 1);
  rig_.Open(lane, /*ready=*/false);
  lane.client->Announce(0);
  ASSERT_TRUE(Until([&] { return !rig_.wanted(lane.plan).empty(); }));
  for (int i = 0; i < 3; ++i) {
    all_.clear();
    recording_.reset();
    Start();
    rig_.link().Post([] {});  // It looks.
    ASSERT_TRUE(Comes(TraceKind::kLaneWait, /*open=*/true));
    ASSERT_TRUE(Comes(TraceKind::kLaneGap, /*open=*/true));
    ASSERT_TRUE(Comes(TraceKind::kHostWait, /*open=*/true));
    if (i == 0) continue;  // Perhaps it was not seen to wait before.
    EXPECT_EQ(Of(TraceKind::kLaneWait, true).front().begin,
              recording_->started());
  }
}

TEST_F(StreamTrace, AWaitEndsWithItsPlan) {
  TestLane lane = Make({kMiB}, 1);
  Start();
  rig_.Open(lane, /*ready=*/false);
  lane.client->Announce(0);
  ASSERT_TRUE(Comes(TraceKind::kLaneGap, /*open=*/true));
  rig_.streamer().Fail(lane.plan, absl::DataLossError("gone"));
  ASSERT_TRUE(Comes(TraceKind::kLaneWait, /*open=*/false));
  EXPECT_TRUE(Of(TraceKind::kLaneWait, false).front().failed);
  EXPECT_TRUE(Comes(TraceKind::kLaneGap, /*open=*/false));
}

}  // namespace hoistd::testing::trace_test
