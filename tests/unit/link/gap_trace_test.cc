// Why a link copied nothing, as a recording is told.
#include "daemon/link/gap_trace.h"

#include <optional>
#include <vector>

#include "daemon/link/copy_queue.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/link/rig.h"

namespace hoistd::testing::gap_trace_test {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using Events = std::vector<TraceEvent>;

constexpr absl::Duration kMs = absl::Milliseconds(1);

Events GapsOf(TraceRecording& recording, bool open) {
  Events all = recording.Take(1000).events;
  std::erase_if(all, [open](const TraceEvent& event) {
    return event.kind != TraceKind::kLinkGap || event.open != open;
  });
  return all;
}

class GapTraceTest : public ::testing::Test {
 protected:
  static constexpr double kRate = 1e6;  // Bytes per second: 1000 in a ms.

  GapTraceTest() { Turn(/*busy=*/false); }
  absl::Time At(int64_t ms) const { return begin_ + ms * kMs; }
  void Pass(int64_t ms) { clock_.Advance(ms * kMs); }
  // A turn begins. The end of what has ended.
  absl::Time Turn(bool busy) {
    gaps_.Woke();
    return Did(TraceWhy::kDriver, busy);
  }
  absl::Time Did(TraceWhy what, bool busy) {
    return gaps_.Did(what, busy, clock_.Now());
  }
  void Began(uint64_t bytes = 1000) { gaps_.Began(bytes, kRate); }
  void ExpectGap(TraceWhy why, int64_t begin_ms, int64_t end_ms) {
    const Events gaps = GapsOf(*recording_, /*open=*/false);
    ASSERT_THAT(gaps, SizeIs(1));
    EXPECT_EQ(gaps[0].why, why);
    EXPECT_EQ(gaps[0].begin, At(begin_ms));
    EXPECT_EQ(gaps[0].end, At(end_ms));
    EXPECT_EQ(gaps[0].device, DeviceIndex(2));
  }

  StepClock clock_;
  const absl::Time begin_ = clock_.Now();
  TraceRecorder recorder_{clock_};
  std::unique_ptr<TraceRecording> recording_ = recorder_.Start().value();
  GapTrace gaps_{&recorder_, DeviceIndex(2)};
};

TEST_F(GapTraceTest, ItsCauseIsWhatHadMostOfIt) {
  gaps_.Rests(TraceWhy::kNotDue, 2 * kMs);
  Pass(2);
  Turn(/*busy=*/false);
  gaps_.Rests(TraceWhy::kPlaceInUse, 5 * kMs);
  Pass(5);
  Turn(/*busy=*/false);
  gaps_.Rests(TraceWhy::kNotOnHost, 4 * kMs);
  Pass(4);
  Turn(/*busy=*/false);
  Began();
  ExpectGap(TraceWhy::kPlaceInUse, 0, 11);
}

TEST_F(GapTraceTest, AShortOneIsNotRecorded) {
  gaps_.Rests(TraceWhy::kNotDue, absl::ZeroDuration());
  clock_.Advance(GapTrace::kLeast - absl::Nanoseconds(1));
  Turn(/*busy=*/false);
  Began();
  EXPECT_THAT(recording_->Take(1000).events, IsEmpty());
}

TEST_F(GapTraceTest, AThreadThatIsLateForACopyIsTheCause) {
  gaps_.Rests(TraceWhy::kNotDue, 2 * kMs);
  Pass(20);
  Turn(/*busy=*/false);
  Began();
  ExpectGap(TraceWhy::kThread, 0, 20);
}

TEST_F(GapTraceTest, AThreadThatIsLateForNothingIsNot) {
  gaps_.Rests(TraceWhy::kPlaceInUse, kMs);
  Pass(20);
  Turn(/*busy=*/false);
  gaps_.Rests(TraceWhy::kPlaceInUse, kMs);
  Pass(1);
  Turn(/*busy=*/false);
  Began();
  ExpectGap(TraceWhy::kPlaceInUse, 0, 21);
}

TEST_F(GapTraceTest, AThreadThatIsWokenEarlyIsNotLate) {
  gaps_.Rests(TraceWhy::kNotDue, absl::InfiniteDuration());
  Pass(20);
  Turn(/*busy=*/false);
  Began();
  ExpectGap(TraceWhy::kNotDue, 0, 20);
}

TEST_F(GapTraceTest, CopiesThatEndedUnseenEndedByTheLinksRate) {
  Began(4000);
  Began(6000);
  Pass(30);
  EXPECT_EQ(Turn(/*busy=*/false), At(10));
  Began();
  ExpectGap(TraceWhy::kThread, 10, 30);
}

TEST_F(GapTraceTest, CopiesSeenInFlightEndedLater) {
  Began(1000);
  Pass(20);
  EXPECT_EQ(Turn(/*busy=*/true), At(20));
  Pass(5);
  EXPECT_EQ(Turn(/*busy=*/false), At(20));
}

TEST_F(GapTraceTest, WhatTheThreadDoesMeanwhileIsTheCause) {
  Pass(5);
  Did(TraceWhy::kPinning, /*busy=*/false);
  Pass(2);
  Did(TraceWhy::kDriver, /*busy=*/false);
  Began();
  ExpectGap(TraceWhy::kPinning, 0, 7);
  Pass(1);
  Turn(/*busy=*/false);
  Pass(3);
  Did(TraceWhy::kDriver, /*busy=*/false);
  Began();
  ExpectGap(TraceWhy::kDriver, 8, 11);
}

TEST_F(GapTraceTest, CopiesMayEndWhileTheNextIsPinned) {
  Began(10'000);
  Turn(/*busy=*/true);
  Pass(15);
  EXPECT_EQ(Did(TraceWhy::kPinning, /*busy=*/false), At(10));
  Began();
  ExpectGap(TraceWhy::kPinning, 10, 15);
}

TEST_F(GapTraceTest, OneThatLastsIsToldAtOnceAndWhenItsCauseChanges) {
  gaps_.Rests(TraceWhy::kNotDue, 2 * kMs);
  Events open = GapsOf(*recording_, /*open=*/true);
  ASSERT_THAT(open, SizeIs(1));
  EXPECT_EQ(open[0].why, TraceWhy::kNotDue);
  EXPECT_EQ(open[0].begin, At(0));
  Pass(2);
  Turn(/*busy=*/false);
  gaps_.Rests(TraceWhy::kPlaceInUse, 2 * kMs);
  EXPECT_THAT(GapsOf(*recording_, /*open=*/true), IsEmpty());
  Pass(3);
  Turn(/*busy=*/false);
  gaps_.Rests(TraceWhy::kPlaceInUse, 2 * kMs);
  open = GapsOf(*recording_, /*open=*/true);
  ASSERT_THAT(open, SizeIs(1));
  EXPECT_EQ(open[0].why, TraceWhy::kPlaceInUse);
}

TEST_F(GapTraceTest, EachRecordingBeginsAnew) {
  gaps_.Rests(TraceWhy::kNotDue, kMs);
  recording_.reset();
  EXPECT_FALSE(gaps_.on());
  Pass(20);
  Turn(/*busy=*/false);
  EXPECT_FALSE(gaps_.idle());
  recording_ = recorder_.Start().value();
  EXPECT_FALSE(gaps_.on());  // It has not seen a turn begin.
  Turn(/*busy=*/false);
  EXPECT_TRUE(gaps_.idle());
  Pass(5);
  Did(TraceWhy::kDriver, /*busy=*/false);
  Began();
  ExpectGap(TraceWhy::kDriver, 20, 25);
}

TEST(CopyQueue, APieceBeforeANotedOneHasEndedByThen) {
  const auto device = EmulatedDevice::Create({.total_bytes = 4 * kMiB}).value();
  ASSERT_OK(device->CreateSlab({SlabId(1), 0, 4 * kMiB}));
  const auto queue = CopyQueue::Create(*device).value();
  const std::vector<std::byte> from(kMiB);
  const absl::Time time = absl::UnixEpoch();
  for (int i = 1; i <= 2; ++i) {
    LinkPiece piece;
    piece.Add(0, from);
    ASSERT_OK(queue->Add(LinkParty::Leases(), std::move(piece), time));
    ASSERT_TRUE(Until([&] { return queue->running() == 0; }));
    EXPECT_EQ(queue->under_way(), i);
  }
  queue->Note(time + 1 * kMs, time + 3 * kMs);
  const auto ended = queue->Ended();
  ASSERT_THAT(ended, SizeIs(2));
  EXPECT_EQ(ended[0].ended, time + 1 * kMs);
  EXPECT_EQ(ended[1].queued, time + 3 * kMs);
  EXPECT_EQ(ended[1].ended, absl::InfiniteFuture());
}

// The link's gaps while its clock advances only in the thread.
class LinkGap : public ::testing::Test {
 protected:
  void Start(const LinkOptions& options = {}) {
    rig_.emplace(options);
    recording_ = rig_->recorder().Start().value();
    rig_->Settle();  // A whole turn.
  }
  void ExpectOne(TraceWhy why) {
    const Events gaps = GapsOf(*recording_, /*open=*/false);
    ASSERT_THAT(gaps, SizeIs(1));
    EXPECT_EQ(gaps[0].why, why);
    EXPECT_EQ(gaps[0].end - gaps[0].begin, 5 * kMs);
  }

  std::optional<LinkRig> rig_;
  std::unique_ptr<TraceRecording> recording_;
};

TEST_F(LinkGap, ASourceIsPinnedFirst) {
  Start({.before_copy = [this](std::span<const std::byte>) {
    rig_->clock().Advance(5 * kMs);
  }});
  ASSERT_OK(rig_->WaitFor(rig_->Copy(0, kMiB, /*urgent=*/true)));
  ExpectOne(TraceWhy::kPinning);
}

TEST_F(LinkGap, ACallHoldsUpTheThread) {
  Start();
  rig_->link().Post([this] { rig_->clock().Advance(5 * kMs); });
  ASSERT_OK(rig_->WaitFor(rig_->Copy(0, kMiB, /*urgent=*/true)));
  ExpectOne(TraceWhy::kDriver);
}

TEST_F(LinkGap, ACapHoldsBackTheCopies) {
  Start({.load_bytes_per_second = 1});
  ASSERT_OK(rig_->WaitFor(rig_->Copy(0, 65 * kMiB, /*urgent=*/false)));
  const TransferId held = rig_->Copy(0, kMiB, /*urgent=*/false);
  Events gaps;
  ASSERT_TRUE(Until([&] {
    rig_->clock().Advance(kMs);
    rig_->Settle();
    for (const TraceEvent& gap : GapsOf(*recording_, /*open=*/true)) {
      gaps.push_back(gap);
    }
    return !gaps.empty() && gaps.back().why == TraceWhy::kTurn;
  }));
  EXPECT_FALSE(rig_->end(held).has_value());
}

}  // namespace hoistd::testing::gap_trace_test
