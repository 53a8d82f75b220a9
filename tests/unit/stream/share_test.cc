// Several plans on one link.
#include <sys/resource.h>

#include <algorithm>
#include <vector>

#include "daemon/stream/lane.h"
#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/stream/rig.h"

namespace hoistd::testing::share_test {

constexpr uint64_t kApart = 64;
constexpr uint64_t kLink = 150 * kMiB;  // A second.

// Fills the rings of all lanes at once, each of which holds all of its lane's
// groups; the bytes of each by the time that the first is full. Counted in the
// order in which copies are queued: no thread's luck is in it.
std::vector<uint64_t> FillTogether(StreamRig& rig, TestLane& first,
                                   std::vector<TestLane>& lanes) {
  rig.faulty().HoldCopies();
  rig.Open(first);  // Its copies are under way while the others come.
  rig.faulty().WaitForCopies(Link::kPiecesUnderWay);
  for (TestLane& lane : lanes) rig.Open(lane);
  rig.Close(PlanId(77));  // Its end shows that all images are known.
  rig.faulty().LetCopiesGo();
  for (TestLane& lane : lanes) {
    for (uint64_t p = 0; p < lane.spec.order.size(); ++p) {
      EXPECT_OK(rig.Step(lane, p)) << p;
    }
  }
  std::vector<uint64_t> bytes(lanes.size());
  std::vector<size_t> loads(lanes.size());
  for (const FaultyDevice::Copy& copy : rig.faulty().copies()) {
    // The last lane whose ring begins at or before the place.
    size_t after = 0;
    while (after < lanes.size() &&
           lanes[after].spec.groups[0].device_offset <= copy.to_offset) {
      ++after;
    }
    if (after == 0) continue;  // The first plan's.
    bytes[after - 1] += copy.bytes;
    if (++loads[after - 1] == lanes[after - 1].spec.groups.size()) break;
  }
  return bytes;
}

// As many copies as may be under way.
TestLane MakeFirst(StreamRig& rig) {
  return rig.Make(std::vector<uint64_t>(Link::kPiecesUnderWay, 4 * kKiB),
                  Link::kPiecesUnderWay, {}, kApart);
}

TEST(StreamerShare, TwoPlansShareByBytesNotByGroups) {
  StreamRig rig;
  TestLane first = MakeFirst(rig);
  // A group a copy, and seven.
  std::vector<TestLane> lanes;
  lanes.push_back(
      rig.Make(std::vector<uint64_t>(7, 512 * kKiB), 7, {}, kApart));
  lanes.push_back(
      rig.Make(std::vector<uint64_t>(28, 128 * kKiB), 28, {}, kApart));
  const std::vector<uint64_t> bytes = FillTogether(rig, first, lanes);
  EXPECT_GE(std::max(bytes[0], bytes[1]), 3 * kMiB);
  EXPECT_LE(std::max(bytes[0], bytes[1]) - std::min(bytes[0], bytes[1]), kMiB)
      << bytes[0] << " " << bytes[1];
}

TEST(StreamerShare, FourPlansShareByTheirWeights) {
  StreamRig rig;
  TestLane first = MakeFirst(rig);
  constexpr uint64_t kGroup = 128 * kKiB;
  std::vector<TestLane> lanes;
  for (const uint32_t weight : {3u, 1u, 1u, 1u}) {
    lanes.push_back(rig.Make(std::vector<uint64_t>(7, kGroup), 7, {}, kApart));
    lanes.back().spec.share.weight = weight;
  }
  const std::vector<uint64_t> bytes = FillTogether(rig, first, lanes);
  EXPECT_EQ(bytes[0], 7 * kGroup);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_GE(bytes[i], 2 * kGroup) << i;
    EXPECT_LE(bytes[i], 3 * kGroup) << i;
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
    ASSERT_TRUE(testing::Until([&] {
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
  for (size_t i = 0; i < Streamer::kMaxLanes; ++i) {
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

}  // namespace hoistd::testing::share_test
