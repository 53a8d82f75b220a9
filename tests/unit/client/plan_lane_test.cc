// The client's side of a lane, over an order that writes down what it is told.
#include "client/src/plan/plan_lane.h"

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/src/plan/plan_life.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_lane.h"

namespace hoist_test::plan_lane_test {

using hoist::Code;
using hoist::PlanLane;
using hoist::PlanLife;
using hoist::Status;
using hoist::WordOp;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
namespace lane = hoist::lane;

hoist::cuda::Stream Stream(uintptr_t number) {
  return reinterpret_cast<hoist::cuda::Stream>(number);
}

// "2: wait ready0 1, write want 3", and "3 after 2".
class WrittenOrder final : public hoist::StreamOrder {
 public:
  explicit WrittenOrder(const FakeLane& lane) : lane_(lane) {}

  Status Register(std::span<std::byte> memory) override {
    base_ = memory.data();
    return Status();
  }
  void Unregister(std::span<std::byte>) override { base_ = nullptr; }
  bool on_cpu() const override { return false; }
  bool one_at_a_time() const override { return one_at_a_time_; }
  hoist::Result<bool> IsCapturing(hoist::cuda::Stream stream) override {
    return capturing_.count(stream) > 0;
  }
  Status Put(hoist::cuda::Stream stream, std::span<const WordOp> ops) override {
    if (fail_) return Status(Code::kInternal, "no");
    std::string line = Number(stream) + ":";
    for (const WordOp& op : ops) {
      line +=
          std::string(op.kind == WordOp::Kind::kWait ? " wait " : " write ");
      line += NameOf(op.word) + " " + std::to_string(op.value);
      if (&op != &ops.back()) line += ",";
    }
    written_.push_back(std::move(line));
    return Status();
  }
  Status After(hoist::cuda::Stream later,
               hoist::cuda::Stream earlier) override {
    written_.push_back(Number(later) + " after " + Number(earlier));
    return Status();
  }
  Status Synchronize(hoist::cuda::Stream) override { return Status(); }
  Status SynchronizeAll() override { return Status(); }

  std::vector<std::string> Take() { return std::exchange(written_, {}); }
  bool registered() const { return base_ != nullptr; }

  std::set<hoist::cuda::Stream> capturing_;
  bool one_at_a_time_ = false;
  bool fail_ = false;

 private:
  static std::string Number(hoist::cuda::Stream stream) {
    return std::to_string(reinterpret_cast<uintptr_t>(stream));
  }
  // Both mappings are of one memory.
  std::string NameOf(const lane::Word* word) const {
    const auto offset = reinterpret_cast<const std::byte*>(word) - base_;
    const auto is = [&](const lane::Word& one) {
      return reinterpret_cast<const std::byte*>(&one) -
                 reinterpret_cast<const std::byte*>(&lane_.header()) ==
             offset;
    };
    if (is(lane_.header().want)) return "want";
    for (uint32_t g = 0; g < lane_.header().groups; ++g) {
      const std::string number = std::to_string(g);
      if (is(lane_.group(g).ready)) return "ready" + number;
      if (is(lane_.group(g).flag)) return "flag" + number;
      if (is(lane_.group(g).done)) return "done" + number;
      if (is(lane_.group(g).done_flag)) return "done_flag" + number;
    }
    return "?";
  }

  const FakeLane& lane_;
  std::byte* base_ = nullptr;
  std::vector<std::string> written_;
};

// A lane over order 0, 1, 0, 2.
struct Client {
  Client() : fake(3, 4), order(fake) {
    PlanLane::Options options;
    options.groups = 3;
    options.order = {0, 1, 0, 2};
    options.ring_limit = std::chrono::milliseconds(1);
    auto made = PlanLane::Create(hoist::UniqueFd(dup(fake.memory_fd())),
                                 hoist::UniqueFd(dup(fake.wake_fd())),
                                 std::move(options), &order);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    plan_lane = std::move(made).value();
  }

  PlanLane::Turn Take(uint32_t group, hoist::cuda::Stream stream) {
    auto turn = plan_lane->Take(group, stream);
    EXPECT_TRUE(turn.ok()) << turn.status().ToString();
    return turn.value();
  }

  FakeLane fake;
  WrittenOrder order;
  std::unique_ptr<PlanLane> plan_lane;
};

TEST(PlanLane, AStreamWaitsForThePositionAndWritesThatItIsDone) {
  Client client;
  const auto turn = client.Take(0, Stream(2));
  EXPECT_THAT(client.order.Take(), ElementsAre("2: wait ready0 1"));
  ASSERT_TRUE(client.plan_lane->Finish(0, turn, Stream(2)).ok());
  EXPECT_THAT(client.order.Take(), ElementsAre("2: write done0 1"));
  EXPECT_EQ(client.fake.header().cursor.load(), 1u);
}

TEST(PlanLane, WhatIsReadyNeedsNoWait) {
  Client client;
  client.fake.Ready(0, 0);
  const auto turn = client.Take(0, Stream(2));
  EXPECT_TRUE(turn.ready);
  EXPECT_THAT(client.order.Take(), IsEmpty());
}

TEST(PlanLane, AnotherStreamMayJoinATurn) {
  Client client;
  const auto turn = client.Take(0, Stream(2));
  client.order.Take();
  ASSERT_TRUE(client.plan_lane->Join(0, turn, Stream(3)).ok());
  EXPECT_THAT(client.order.Take(), ElementsAre("3: wait ready0 1"));
}

TEST(PlanLane, StreamsHaveNoOrderUnlessTheyShareAThread) {
  for (const bool shared : {false, true}) {
    Client client;
    client.order.one_at_a_time_ = shared;
    const auto first = client.Take(0, Stream(2));
    client.Take(1, Stream(3));
    ASSERT_TRUE(client.plan_lane->Finish(0, first, Stream(2)).ok());
    if (shared) {
      EXPECT_THAT(
          client.order.Take(),
          ElementsAre("2: wait ready0 1", "3 after 2", "3: wait ready1 2",
                      "2 after 3", "2: write done0 1"));
    } else {
      EXPECT_THAT(client.order.Take(),
                  ElementsAre("2: wait ready0 1", "3: wait ready1 2",
                              "2: write done0 1"));
    }
  }
}

TEST(PlanLane, APositionThatCouldNotBePutOnAStreamIsNotTaken) {
  Client client;
  client.order.fail_ = true;
  EXPECT_EQ(client.plan_lane->Take(1, Stream(2)).status().code(),
            Code::kInternal);
  EXPECT_EQ(client.fake.header().cursor.load(), 1u);  // What was skipped is.
  client.order.fail_ = false;
  EXPECT_EQ(client.Take(1, Stream(2)).position, 1u);
  EXPECT_EQ(client.fake.header().head.load(), 1u);
}

TEST(PlanLane, ACaptureIsToldOnceAndHoldsFromThenOn) {
  Client client;
  client.order.capturing_ = {Stream(2)};
  ASSERT_TRUE(client.plan_lane->FollowCapture(Stream(3), true).ok());
  EXPECT_FALSE(client.plan_lane->captured());
  client.Take(0, Stream(3));
  client.Take(1, Stream(3));
  EXPECT_EQ(client.plan_lane->FollowCapture(Stream(2), false).code(),
            Code::kFailedPrecondition);
  ASSERT_TRUE(client.plan_lane->FollowCapture(Stream(2), true).ok());
  ASSERT_TRUE(client.plan_lane->FollowCapture(Stream(2), true).ok());
  EXPECT_TRUE(client.plan_lane->captured());
  ASSERT_EQ(client.fake.header().head.load(), 1u);
  EXPECT_EQ(client.fake.request(0).kind,
            static_cast<uint32_t>(lane::RequestKind::kCapture));
  EXPECT_EQ(client.fake.request(0).from, 2u);
}

TEST(PlanLane, TheCapturedFormNamesPlacesAndNothingThatGrows) {
  Client client;
  client.order.capturing_ = {Stream(2)};
  ASSERT_TRUE(client.plan_lane->FollowCapture(Stream(2), true).ok());
  client.fake.ReadyForAll();  // No shortcut in a graph.
  std::vector<std::string> first;
  for (int pass = 0; pass < 2; ++pass) {
    for (const uint32_t group : {0, 1, 0, 2}) {
      const auto turn = client.Take(group, Stream(2));
      ASSERT_TRUE(client.plan_lane->Finish(group, turn, Stream(2)).ok());
    }
    if (pass == 0) {
      first = client.order.Take();
    } else {
      EXPECT_EQ(client.order.Take(), first);
    }
  }
  ASSERT_EQ(first.size(), 8u);
  EXPECT_EQ(first[4], "2: write want 3, wait flag0 1, write flag0 2");
  EXPECT_EQ(first[5], "2: write flag0 0, write done_flag0 1, write want 0");
  EXPECT_EQ(first[6], "2: write want 4, wait flag2 1, write flag2 2");
  EXPECT_EQ(client.plan_lane->stats().skipped, 0u);
  EXPECT_EQ(client.fake.header().cursor.load(), 0u);
}

TEST(PlanLane, InCapturedFormSkipsAreCountedAndNotTold) {
  Client client;
  client.order.capturing_ = {Stream(2)};
  ASSERT_TRUE(client.plan_lane->FollowCapture(Stream(2), true).ok());
  client.Take(2, Stream(2));
  client.Take(1, Stream(2));
  EXPECT_EQ(client.plan_lane->stats().skipped, 4u);
  EXPECT_EQ(client.fake.header().head.load(), 1u);
}

TEST(PlanLane, TheCapturedFormOrdersTheStreamsOfOneCapture) {
  Client client;
  client.order.capturing_ = {Stream(2), Stream(3)};
  ASSERT_TRUE(client.plan_lane->FollowCapture(Stream(2), true).ok());
  client.Take(0, Stream(2));
  client.Take(1, Stream(3));
  const auto written = client.order.Take();
  ASSERT_EQ(written.size(), 3u);
  EXPECT_EQ(written[1], "3 after 2");
  // What runs outside meanwhile cannot be ordered with what is captured.
  client.Take(2, Stream(4));
  EXPECT_EQ(client.order.Take().size(), 1u);
}

TEST(PlanLane, AReleaseLetsEverythingThatWasTakenThrough) {
  Client client;
  client.Take(0, Stream(2));
  client.Take(1, Stream(2));
  client.plan_lane->Release();
  for (uint32_t g = 0; g < 3; ++g) {
    EXPECT_EQ(client.fake.group(g).ready.load(), 2u);
    EXPECT_EQ(client.fake.group(g).flag.load(), lane::kFlagEmpty);
  }
  // And what is taken in the same moment.
  client.Take(0, Stream(2));
  EXPECT_EQ(client.fake.group(0).ready.load(), 3u);
}

TEST(PlanLane, AFaultThatHoistdSetInTheSameMomentIsFollowed) {
  Client client;
  client.fake.header().fault_code.store(14);
  client.Take(0, Stream(2));
  EXPECT_EQ(client.fake.group(0).ready.load(), 1u);
  EXPECT_EQ(client.plan_lane->Fault().code(), Code::kUnavailable);
}

TEST(PlanLane, ItsMemoryIsRegisteredWhileItLives) {
  Client client;
  EXPECT_TRUE(client.order.registered());
  client.plan_lane.reset();
  EXPECT_FALSE(client.order.registered());
}

TEST(PlanLife, AGraphThatIsLaunchedAfterTheEndIsLetThroughToo) {
  Client client;
  client.order.capturing_ = {Stream(2)};
  ASSERT_TRUE(client.plan_lane->FollowCapture(Stream(2), true).ok());
  PlanLife life;
  ASSERT_TRUE(life.Watch(client.plan_lane.get()).ok());
  life.End(Status(Code::kUnavailable, "gone"));
  life.End(Status(Code::kInternal, "later"));
  EXPECT_EQ(life.why().message(), "gone");
  for (int launch = 0; launch < 3; ++launch) {
    lane::Word& flag = client.fake.group(1).flag;
    while (flag.load() != lane::kFlagReady) std::this_thread::yield();
    flag.store(lane::kFlagTaken);  // As the graph does.
    flag.store(lane::kFlagEmpty);
  }
  ASSERT_TRUE(life.Watch(nullptr).ok());
}

TEST(PlanLife, AnOlderWordThatComesAfterTheEndDoesNotHoldAnybody) {
  Client client;
  for (const uint32_t group : {0, 1, 0}) client.Take(group, Stream(2));
  PlanLife life;
  ASSERT_TRUE(life.Watch(client.plan_lane.get()).ok());
  life.End(Status(Code::kUnavailable, "gone"));
  client.fake.Ready(0, 0);  // A copy that was under way.
  while (!lane::Reached(client.fake.group(0).ready.load(), 3)) {
    std::this_thread::yield();
  }
}

TEST(PlanLife, ALaneThatComesAfterTheEndIsReleased) {
  Client client;
  client.Take(0, Stream(2));
  PlanLife life;
  life.SessionEnded(Status(Code::kUnavailable, "gone"));
  EXPECT_TRUE(life.ended());
  ASSERT_TRUE(life.Watch(client.plan_lane.get()).ok());
  EXPECT_EQ(client.fake.group(0).ready.load(), 1u);
}

// As a graph does that was captured: the words of one group's turn.
void Launch(FakeLane& fake, uint32_t group) {
  while (fake.group(group).flag.load() != lane::kFlagReady) {
    std::this_thread::yield();
  }
  fake.header().want.store(1);
  fake.group(group).flag.store(lane::kFlagTaken);
  fake.group(group).flag.store(lane::kFlagEmpty);
  fake.group(group).done_flag.store(1);
  fake.header().want.store(0);
}

TEST(PlanLife, AGraphThatWasCapturedUnderAnEarlierPlanEndsTheLaterOne) {
  Client earlier;
  Client later;
  earlier.order.capturing_ = {Stream(2)};
  ASSERT_TRUE(earlier.plan_lane->FollowCapture(Stream(2), true).ok());
  PlanLife life;
  ASSERT_TRUE(life.Watch(earlier.plan_lane.get()).ok());
  ASSERT_TRUE(life.Watch(later.plan_lane.get()).ok());
  life.Retire(std::move(earlier.plan_lane));
  later.Take(1, Stream(2));
  EXPECT_FALSE(life.ended());
  // No launch waits for ever, however often; the first one is told.
  for (int launch = 0; launch < 3; ++launch) Launch(earlier.fake, 1);
  while (!life.ended()) std::this_thread::yield();
  EXPECT_EQ(life.why().code(), Code::kFailedPrecondition);
  EXPECT_NE(life.why().message().find("capture it anew"), std::string::npos);
  ASSERT_TRUE(life.Watch(nullptr).ok());
  EXPECT_TRUE(earlier.order.registered());
  life.DropRetired();
  EXPECT_FALSE(earlier.order.registered());
}

TEST(PlanLife, ARetiredLaneThatNoGraphTouchesEndsNothing) {
  Client earlier;
  earlier.order.capturing_ = {Stream(2)};
  ASSERT_TRUE(earlier.plan_lane->FollowCapture(Stream(2), true).ok());
  earlier.fake.group(0).flag.store(lane::kFlagTaken);  // As it was left.
  earlier.fake.group(2).done_flag.store(1);
  earlier.plan_lane->Retire();
  EXPECT_FALSE(earlier.plan_lane->UsedSinceRetired());
  Launch(earlier.fake, 0);
  EXPECT_TRUE(earlier.plan_lane->UsedSinceRetired());
  earlier.plan_lane->Retire();
  EXPECT_FALSE(earlier.plan_lane->UsedSinceRetired());
}

}  // namespace hoist_test::plan_lane_test
