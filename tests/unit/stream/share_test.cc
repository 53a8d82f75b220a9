// Several plans on one link.
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "daemon/stream/streamer_thread.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/stream/rig.h"

namespace hoistd::testing {
namespace {

constexpr uint64_t kApart = 64;
constexpr uint64_t kLink = 150 * kMiB;  // A second.

// Runs all lanes until the first has made `steps`; the bytes of each then.
std::vector<uint64_t> Race(StreamRig& rig, std::vector<TestLane>& lanes,
                           uint64_t steps) {
  std::atomic<bool> over = false;
  std::vector<uint64_t> bytes(lanes.size());
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (size_t i = 0; i < lanes.size(); ++i) {
    threads.emplace_back([&, i] {
      TestLane& lane = lanes[i];
      for (uint64_t position = 0; !over; ++position) {
        if (position == steps) over = true;
        if (!rig.Step(lane, position).ok()) ++wrong;
        const LaneGroup group = lane.client->GroupAt(position);
        bytes[i] += lane.spec.groups[group].bytes;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  return bytes;
}

TEST(StreamerShare, TwoPlansShareByBytesNotByGroups) {
  StreamRig rig({.link_bytes_per_second = kLink});
  // Rings that hold more than is queued, or they would be the limit; for the
  // same reason images that are not neighbours and go in copies of their own.
  std::vector<TestLane> lanes;
  lanes.push_back(
      rig.Make(std::vector<uint64_t>(8, 512 * kKiB), 6, {}, kApart));
  lanes.push_back(
      rig.Make(std::vector<uint64_t>(32, 128 * kKiB), 24, {}, kApart));
  for (TestLane& lane : lanes) rig.Open(lane);
  const std::vector<uint64_t> bytes = Race(rig, lanes, 60);
  // Within what lies ready ahead in the rings, and what is under way.
  const double ratio = double(bytes[0]) / double(bytes[1]);
  EXPECT_GT(ratio, 0.6) << bytes[0] << " " << bytes[1];
  EXPECT_LT(ratio, 1.67) << bytes[0] << " " << bytes[1];
}

TEST(StreamerShare, FourPlansShareByTheirWeights) {
  StreamRig rig({.link_bytes_per_second = kLink});
  std::vector<TestLane> lanes;
  for (const uint32_t weight : {3u, 1u, 1u, 1u}) {
    lanes.push_back(
        rig.Make(std::vector<uint64_t>(16, 128 * kKiB), 12, {}, kApart));
    lanes.back().spec.share.weight = weight;
  }
  for (TestLane& lane : lanes) rig.Open(lane);
  const std::vector<uint64_t> bytes = Race(rig, lanes, 150);
  for (size_t i = 1; i < 4; ++i) {
    const double ratio = double(bytes[0]) / double(bytes[i]);
    EXPECT_GT(ratio, 1.8) << i;
    EXPECT_LT(ratio, 4.5) << i;
  }
}

TEST(StreamerShare, APlanThatStopsMidPassStopsNoOther) {
  StreamRig rig({.link_bytes_per_second = kLink});
  TestLane stuck = rig.Make(std::vector<uint64_t>(5, 256 * kKiB), 2);
  TestLane other = rig.Make(std::vector<uint64_t>(5, 256 * kKiB), 2);
  rig.Open(stuck);
  rig.Open(other);
  ASSERT_OK(rig.Step(stuck, 0));
  ASSERT_OK(stuck.client->Stage(1));  // And is never done with it.
  stuck.client->Announce(2);
  for (uint64_t position = 0; position < 60; ++position) {
    ASSERT_OK(rig.Step(other, position));
  }
  EXPECT_TRUE(rig.Right(stuck, 1));
  stuck.client->Done(1);
  stuck.client->Done(2);
  ASSERT_OK(rig.Step(stuck, 3));
}

TEST(StreamerShare, ACapIsKeptAndOthersGoOn) {
  HandClock clock;  // At which no time passes: what a cap holds back stays so.
  StreamRig rig({.clock = &clock});
  TestLane capped = rig.Make(std::vector<uint64_t>(4, 4 * kMiB), 2);
  TestLane other = rig.Make(std::vector<uint64_t>(3, kMiB), 2);
  capped.spec.share.max_bytes_per_second = kMiB;
  rig.Open(capped);
  rig.Open(other);
  // The burst is let through.
  uint64_t position = 0;
  while (rig.Stats(capped.plan).copied_bytes <= LinkShare::kBurstBytes) {
    ASSERT_OK(rig.Step(capped, position++));
    ASSERT_TRUE(StreamRig::Until([&] {
      return rig.Stats(capped.plan).loads > position ||
             rig.Stats(capped.plan).copied_bytes > LinkShare::kBurstBytes;
    })) << position
        << " " << rig.Stats(capped.plan).loads;
  }
  for (uint64_t at = 0; at < 30; ++at) ASSERT_OK(rig.Step(other, at));
  EXPECT_LE(rig.Stats(capped.plan).copied_bytes,
            LinkShare::kBurstBytes + Lane::kJoinedBytes);
  rig.streamer().SetShare(capped.plan, {});
  for (int i = 0; i < 10; ++i) ASSERT_OK(rig.Step(capped, position++));
  EXPECT_EQ(rig.Stats(capped.plan).share.max_bytes_per_second, 0u);
}

TEST(StreamerShare, MoreLanesThanTheLimitAreRefused) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < 8192) GTEST_SKIP() << "too few descriptors allowed";
  StreamRig rig;
  std::vector<TestLane> lanes;
  for (size_t i = 0; i < StreamerThread::kMaxLanes; ++i) {
    lanes.push_back(rig.Make({64}, 1));
    ASSERT_OK(rig.TryOpen(lanes.back())) << i;
  }
  TestLane more = rig.Make({64}, 1);
  EXPECT_THAT(rig.TryOpen(more),
              StatusIs(absl::StatusCode::kResourceExhausted));
  // All of them can be served, and one that goes makes room.
  for (size_t i = 0; i < lanes.size(); i += 50) {
    rig.HostReady(lanes[i], 0);
    ASSERT_OK(rig.Step(lanes[i], 0)) << i;
  }
  rig.Close(lanes[7].plan);
  EXPECT_OK(rig.TryOpen(more));
}

}  // namespace
}  // namespace hoistd::testing
