// A client that writes whatever it likes into its lane harms itself alone.
#include <fcntl.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/stream/rig.h"

namespace hoistd::testing::hostile_test {

using Word = std::atomic<uint32_t>;

class HostileClient : public ::testing::TestWithParam<uint64_t> {
 protected:
  // The victim's steps while the hostile thread runs, every byte checked.
  void KeepWorking(TestLane& good, uint64_t steps) {
    const uint64_t from = good.client->next();
    for (uint64_t position = from; position < from + steps; ++position) {
      ASSERT_OK(rig_.Step(good, position)) << position;
    }
    EXPECT_EQ(rig_.faults(good.plan), 0);
  }
  static std::span<Word> Words(TestLane& lane) {
    const std::span<std::byte> memory = lane.client->memory();
    return {reinterpret_cast<Word*>(memory.data()), memory.size() / 4};
  }

  StreamRig rig_;
};

TEST_P(HostileClient, GarbageOverTheWholeLaneHarmsNobodyElse) {
  SCOPED_TRACE(absl::StrCat("seed ", GetParam()));
  TestLane good = rig_.Make(std::vector<uint64_t>(5, 48 * kKiB), 2);
  rig_.Open(good);
  for (int round = 0; round < 12; ++round) {
    TestLane bad = rig_.Make(std::vector<uint64_t>(4, 4 * kKiB), 2);
    rig_.Open(bad);
    std::atomic<bool> stop = false;
    std::thread hostile([&, round] {
      std::mt19937_64 random(GetParam() * 1000 + static_cast<uint64_t>(round));
      const std::span<Word> words = Words(bad);
      while (!stop) {
        Word& word = words[random() % words.size()];
        // Small numbers are the likelier ones to be believed.
        word.store(
            static_cast<uint32_t>(random() % 2 == 0 ? random() % 8 : random()));
        if (random() % 16 == 0) bad.client->Wake();
        if (random() % 4 == 0) std::this_thread::yield();
      }
    });
    KeepWorking(good, 25);
    stop = true;
    hostile.join();
    rig_.Close(bad.plan);
  }
}

// Garbage where it is read first would end the plan at once; this client is
// believed for longer.
TEST_P(HostileClient, LiesAboutDonePlacesAndWantsHarmNobodyElse) {
  SCOPED_TRACE(absl::StrCat("seed ", GetParam()));
  TestLane good = rig_.Make(std::vector<uint64_t>(5, 48 * kKiB), 2);
  rig_.Open(good);
  for (const bool captured : {false, true}) {
    TestLane bad = rig_.Make(std::vector<uint64_t>(6, 4 * kKiB), 3);
    rig_.Open(bad);
    if (captured) bad.client->Capture();
    std::atomic<bool> stop = false;
    std::thread hostile([&] {
      std::mt19937_64 random(GetParam());
      while (!stop) {
        auto& group = bad.client->group(static_cast<uint32_t>(random() % 6));
        group.done.store(static_cast<uint32_t>(random()));
        group.done_flag.store(random() % 2 == 0 ? 1 : 0);
        group.flag.store(static_cast<uint32_t>(random() % 3));
        bad.client->header().want.store(static_cast<uint32_t>(random() % 9));
        bad.client->header().cursor.store(static_cast<uint32_t>(random()));
        if (random() % 8 == 0) bad.client->Wake();
        std::this_thread::yield();
      }
    });
    KeepWorking(good, 100);
    stop = true;
    hostile.join();
    rig_.Close(bad.plan);
  }
}

TEST_P(HostileClient, AFloodOfRequestsHoldsUpNobody) {
  TestLane good = rig_.Make(std::vector<uint64_t>(5, 48 * kKiB), 2);
  TestLane bad = rig_.Make(std::vector<uint64_t>(6, 4 * kKiB), 3);
  rig_.Open(good);
  rig_.Open(bad);
  std::atomic<bool> stop = false;
  std::thread hostile([&] {
    uint64_t at = 0;
    while (!stop && bad.client->Fault().ok()) {
      bad.client->Ask({.kind = 1, .reserved = 0, .from = at, .to = at + 6});
      at += 6;
    }
  });
  KeepWorking(good, 100);
  stop = true;
  hostile.join();
}

INSTANTIATE_TEST_SUITE_P(, HostileClient, ::testing::Values(1, 2, 3));

class HostileRequest : public ::testing::TestWithParam<hoist::lane::Request> {};

TEST_P(HostileRequest, EndsThePlanWithATypedError) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(4, 4 * kKiB), 2);
  rig.Open(lane);
  lane.client->Ask(GetParam());
  lane.client->WakeStreamer();
  EXPECT_TRUE(testing::Until([&] { return rig.faults(lane.plan) == 1; }));
  EXPECT_THAT(lane.client->Stage(50),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

INSTANTIATE_TEST_SUITE_P(
    , HostileRequest,
    ::testing::Values(hoist::lane::Request{0, 0, 0, 1},
                      hoist::lane::Request{77, 0, 0, 1},
                      hoist::lane::Request{1, 0, 0, 5},
                      hoist::lane::Request{1, 0, 5, 4},
                      hoist::lane::Request{1, 0, UINT64_MAX, 2},
                      hoist::lane::Request{1, 0, 1, UINT64_MAX},
                      hoist::lane::Request{2, 0, UINT64_MAX, 0},
                      hoist::lane::Request{2, 0, uint64_t{1} << 40, 0}));

TEST(HostileRing, MoreRequestsThanThereIsRoomForEndThePlan) {
  StreamRig rig;
  TestLane lane = rig.Make(std::vector<uint64_t>(4, 4 * kKiB), 2);
  rig.Open(lane);
  lane.client->header().head = 257;
  lane.client->Wake();
  EXPECT_TRUE(testing::Until([&] { return rig.faults(lane.plan) == 1; }));
  EXPECT_TRUE(absl::IsInvalidArgument(*rig.fault(lane.plan)));
}

// Descriptors are shared with the client, and so are their flags.
TEST(HostileRing, AnEventfdThatBlocksReadersStopsNothing) {
  StreamRig rig;
  TestLane good = rig.Make(std::vector<uint64_t>(3, 4 * kKiB), 2);
  TestLane bad = rig.Make({4 * kKiB}, 1);
  std::promise<absl::StatusOr<LaneShare>> opened;
  rig.streamer().Open(bad.spec, std::nullopt,
                      [&](absl::StatusOr<LaneShare> share) {
                        opened.set_value(std::move(share));
                      });
  ASSERT_OK_AND_ASSIGN(const LaneShare share, opened.get_future().get());
  ASSERT_EQ(fcntl(share.wake.get(), F_SETFL, 0), 0);
  const uint64_t one = 1;
  uint64_t seen = 0;
  ASSERT_EQ(write(share.wake.get(), &one, 8), 8);
  ASSERT_EQ(read(share.wake.get(), &seen, 8), 8);
  rig.Open(good);
  for (uint64_t position = 0; position < 20; ++position) {
    ASSERT_OK(rig.Step(good, position));
  }
}

}  // namespace hoistd::testing::hostile_test
