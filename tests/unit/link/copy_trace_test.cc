// What a recording is told of a link's copies.
#include "daemon/link/copy_trace.h"

#include <vector>

#include "daemon/link/copy_queue.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/link/rig.h"

namespace hoistd::testing::copy_trace_test {

using Events = std::vector<TraceEvent>;
using Pieces = std::vector<CopyQueue::Queued>;

const GroupKey kA = {ModelId(1), GroupIndex(0)};
const GroupKey kB = {ModelId(1), GroupIndex(1)};

class CopyTraceTest : public ::testing::Test {
 protected:
  absl::Time At(int64_t ms) const { return begin_ + absl::Milliseconds(ms); }
  CopyQueue::Queued Piece(int64_t queued_ms, std::vector<TracedPart> parts) {
    CopyQueue::Queued piece;
    piece.party = LinkParty::Of(PlanId(3));
    piece.queued = At(queued_ms);
    for (const TracedPart& part : parts) piece.bytes += part.bytes;
    piece.parts = std::move(parts);
    return piece;
  }
  Events Take() { return recording_->Take(1000).events; }
  void ExpectAt(const TraceEvent& event, int64_t begin_ms, int64_t end_ms) {
    EXPECT_EQ(event.begin, At(begin_ms));
    EXPECT_EQ(event.end, At(end_ms));
  }

  StepClock clock_;
  const absl::Time begin_ = clock_.Now();
  TraceRecorder recorder_{clock_};
  std::unique_ptr<TraceRecording> recording_ = recorder_.Start().value();
  CopyTrace trace_{&recorder_, DeviceIndex(2)};
};

TEST_F(CopyTraceTest, APieceBeginsWhenTheOneBeforeItHasEnded) {
  trace_.Ended(Pieces{Piece(10, {{kA, SessionId(5), 100}})}, false, At(20));
  trace_.Ended(Pieces{Piece(11, {{kB, SessionId(5), 100}})}, false, At(30));
  trace_.Ended(Pieces{Piece(50, {{kA, SessionId(5), 100}})}, false, At(60));
  const Events events = Take();
  ASSERT_EQ(events.size(), 3u);
  ExpectAt(events[0], 10, 20);
  ExpectAt(events[1], 20, 30);
  ExpectAt(events[2], 50, 60);
  EXPECT_EQ(events[1].group, kB.group);
  EXPECT_EQ(events[1].session, SessionId(5));
  EXPECT_EQ(events[1].plan, PlanId(3));
  EXPECT_EQ(events[1].device, DeviceIndex(2));
  EXPECT_EQ(events[1].kind, TraceKind::kCopyIn);
}

TEST_F(CopyTraceTest, WhatEndsAtOnceSharesTheTimeByBytes) {
  trace_.Ended(Pieces{Piece(0, {{kA, {}, 100}, {kB, {}, 300}}),
                      Piece(0, {{kA, {}, 400}})},
               false, At(80));
  const Events events = Take();
  ASSERT_EQ(events.size(), 3u);
  ExpectAt(events[0], 0, 10);
  ExpectAt(events[1], 10, 40);
  ExpectAt(events[2], 40, 80);
}

TEST_F(CopyTraceTest, APieceKnownToHaveEndedTakesNoMoreTime) {
  CopyQueue::Queued first = Piece(0, {{kA, {}, 100}});
  first.ended = At(10);
  trace_.Ended(Pieces{first, Piece(40, {{kB, {}, 100}})}, false, At(60));
  const Events events = Take();
  ASSERT_EQ(events.size(), 2u);
  ExpectAt(events[0], 0, 10);
  ExpectAt(events[1], 40, 60);
}

TEST_F(CopyTraceTest, WhatWasQueuedBeforeHasNoName) {
  CopyQueue::Queued piece = Piece(0, {});
  piece.bytes = 7;
  piece.party = LinkParty::Reads();
  trace_.Ended(Pieces{piece}, true, At(1));
  const Events events = Take();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].model, ModelId());
  EXPECT_EQ(events[0].bytes, 7u);
  EXPECT_EQ(events[0].kind, TraceKind::kCopyOut);
  EXPECT_TRUE(events[0].failed);
  EXPECT_TRUE(events[0].background);
}

TEST_F(CopyTraceTest, PartsOfOneGroupAreOne) {
  std::vector<TracedPart> parts;
  AddPart(kA, {}, 1, parts);
  AddPart(kA, {}, 2, parts);
  AddPart(kB, {}, 4, parts);
  AddPart(kA, {}, 8, parts);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].bytes, 3u);
  EXPECT_EQ(parts[2].bytes, 8u);
}

TEST(LinkTrace, AllBytesAreTold) {
  LinkRig rig;
  // Not of this one.
  ASSERT_OK(rig.WaitFor(rig.Copy(0, kMiB, /*urgent=*/true)));
  const auto recording = rig.recorder().Start().value();
  const uint64_t bytes = 2 * Link::kPieceBytes + 5;
  ASSERT_OK(rig.WaitFor(rig.Copy(0, bytes, /*urgent=*/true)));
  ASSERT_OK(rig.WaitFor(rig.Copy(4096, 3 * kMiB, /*urgent=*/true)));
  uint64_t told = 0;
  for (const TraceEvent& event : recording->Take(1000).events) {
    EXPECT_FALSE(event.background);
    told += event.bytes;
  }
  EXPECT_EQ(told, bytes + 3 * kMiB);
  EXPECT_EQ(rig.link().copied_bytes(LinkClass::kLeases), told + kMiB);
}

}  // namespace hoistd::testing::copy_trace_test
