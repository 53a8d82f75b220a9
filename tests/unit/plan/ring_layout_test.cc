#include "daemon/plan/ring_layout.h"

#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::ring_layout_test {

RingProblem Problem(std::vector<uint64_t> bytes, uint64_t ring) {
  std::vector<uint32_t> steps(bytes.size());
  std::iota(steps.begin(), steps.end(), 0u);
  return {std::move(bytes), std::move(steps), ring, 1};
}

TEST(MeasureRing, CountsStepsToTheLastThatOverlaps) {
  // Two slots of 10: 0 and 2 below, 1 and 3 above.
  const RingTraffic traffic =
      MeasureRing({{0, 10}, {10, 10}, {0, 10}, {10, 10}}, {0, 1, 2, 3});
  EXPECT_EQ(traffic.copied_bytes, 40u);
  EXPECT_EQ(traffic.exposed_bytes, 0u);
  EXPECT_EQ(traffic.lead, 2u);
  EXPECT_EQ(traffic.total_lead, 8u);
}

TEST(MeasureRing, APartlyOverlappingNeighbourExposes) {
  const RingTraffic traffic =
      MeasureRing({{0, 10}, {9, 10}, {19, 10}}, {0, 1, 2});
  EXPECT_EQ(traffic.copied_bytes, 20u);  // 2 lies alone and stays.
  EXPECT_EQ(traffic.exposed_bytes, 10u);
  EXPECT_EQ(traffic.lead, 1u);
  EXPECT_EQ(traffic.total_lead, 3u);
}

TEST(MeasureRing, WhatIsStillInItsSlotIsNotCopied) {
  const RingTraffic traffic =
      MeasureRing({{0, 10}, {10, 10}, {10, 10}}, {0, 0, 1, 0, 2});
  EXPECT_EQ(traffic.copied_bytes, 20u);
  EXPECT_EQ(traffic.lead, 2u);
}

TEST(LayOutRing, RoundsCloseEvenly) {
  // 25 in 4 slots: rounds of 4 and 3, not a last round of 1.
  const RingLayout layout =
      LayOutRing(Problem(std::vector<uint64_t>(25, 10), 40));
  EXPECT_EQ(layout.traffic.exposed_bytes, 0u);
  EXPECT_EQ(layout.traffic.lead, 3u);
  EXPECT_EQ(layout.traffic.copied_bytes, 250u);
}

TEST(LayOutRing, SlotsThatDivideTheGroupsGiveTheFullLead) {
  const RingLayout layout =
      LayOutRing(Problem(std::vector<uint64_t>(24, 10), 40));
  EXPECT_EQ(layout.traffic.lead, 4u);
  EXPECT_EQ(layout.traffic.total_lead, 96u);
}

TEST(LayOutRing, TwoEndsSufficeForTheLargestNeighbours) {
  const RingLayout layout = LayOutRing(Problem({9, 3, 7, 5, 8, 2}, 13));
  EXPECT_EQ(layout.traffic.exposed_bytes, 0u);
  EXPECT_EQ(layout.traffic.lead, 2u);
}

TEST(LayOutRing, OfAnOddNumberInTwoSlotsASmallOneIsExposed) {
  std::vector<uint64_t> bytes(9, 10);
  bytes[4] = 8;
  const RingLayout layout = LayOutRing(Problem(bytes, 20));
  EXPECT_EQ(layout.traffic.exposed_bytes, 8u);
}

TEST(LayOutRing, ThreeThatFitMakeAnOddNumberWork) {
  std::vector<uint64_t> bytes(11, 10);
  bytes[6] = 3;
  bytes[7] = 7;
  const RingLayout layout = LayOutRing(Problem(bytes, 20));
  EXPECT_EQ(layout.traffic.exposed_bytes, 0u);
}

TEST(LayOutRing, ARepeatedGroupKeepsOneEnd) {
  RingProblem problem = Problem({10, 10, 10, 10}, 20);
  problem.steps = {0, 1, 0, 2, 0, 3};
  const RingLayout layout = LayOutRing(problem);
  EXPECT_EQ(layout.traffic.exposed_bytes, 0u);
  EXPECT_EQ(layout.traffic.copied_bytes, 30u);
}

TEST(LayOutRing, ThousandsOfSmallGroupsAreLaidOutToo) {
  const RingLayout layout =
      LayOutRing(Problem(std::vector<uint64_t>(20'001, 10), 5'000 * 10));
  EXPECT_EQ(layout.traffic.exposed_bytes, 0u);
}

}  // namespace hoistd::ring_layout_test
