#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "daemon/plan/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::block_residents_test {

using ::testing::HasSubstr;

// Blocks in a row, each group used once.
PlanProblem Problem(const std::vector<std::vector<uint64_t>>& blocks,
                    uint64_t budget) {
  PlanProblem problem;
  problem.budget_bytes = budget;
  problem.slack_bytes = 0;
  for (uint32_t block = 0; block < blocks.size(); ++block) {
    for (const uint64_t bytes : blocks[block]) {
      problem.order.push_back(static_cast<uint32_t>(problem.bytes.size()));
      problem.bytes.push_back(bytes);
      problem.blocks.push_back(block);
    }
  }
  return problem;
}

uint64_t Sum(const std::vector<uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
}

Plan PlanOf(const PlanProblem& problem) {
  absl::StatusOr<Plan> plan = MakePlan(problem);
  EXPECT_OK(plan.status());
  return plan.ok() ? *std::move(plan) : Plan();
}

// The blocks that stream, as a circle without equal neighbours.
std::vector<uint32_t> Row(const PlanProblem& problem, const Plan& plan) {
  std::vector<uint32_t> row;
  for (const uint32_t group : problem.order) {
    const uint32_t block = problem.blocks[group];
    if (!plan.slots[group].has_value()) continue;
    if (row.empty() || row.back() != block) row.push_back(block);
  }
  if (row.size() > 1 && row.front() == row.back()) row.pop_back();
  return row;
}

bool Overlap(const PlanProblem& problem, const Plan& plan, uint32_t block,
             uint32_t other) {
  for (uint32_t a = 0; a < plan.slots.size(); ++a) {
    for (uint32_t b = 0; b < plan.slots.size(); ++b) {
      if (a != b && problem.blocks[a] == block && problem.blocks[b] == other &&
          plan.slots[a].has_value() && plan.slots[b].has_value() &&
          plan.slots[a]->Overlaps(*plan.slots[b])) {
        return true;
      }
    }
  }
  return false;
}

// A block is staged whole, while the next one arrives: no two groups of a block
// share a place; nor of neighbours, if those that stream are even in number.
void CheckPlan(const PlanProblem& problem, const Plan& plan) {
  ASSERT_EQ(plan.slots.size(), problem.bytes.size());
  uint64_t resident = 0;
  uint64_t streamed = 0;
  for (uint32_t i = 0; i < plan.slots.size(); ++i) {
    if (!plan.slots[i].has_value()) {
      resident += problem.bytes[i];
      continue;
    }
    ASSERT_EQ(plan.slots[i]->bytes, problem.bytes[i]);
    ASSERT_LE(plan.slots[i]->offset + plan.slots[i]->bytes, plan.ring_bytes);
  }
  for (const uint32_t group : problem.order) {
    if (plan.slots[group].has_value()) streamed += problem.bytes[group];
  }
  const std::vector<uint32_t> row = Row(problem, plan);
  int exposed = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    ASSERT_FALSE(Overlap(problem, plan, row[i], row[i])) << row[i];
    const uint32_t next = row[(i + 1) % row.size()];
    if (next != row[i]) exposed += Overlap(problem, plan, row[i], next);
  }
  ASSERT_LE(exposed, row.size() % 2 == 0 ? 0 : 1);
  ASSERT_EQ(plan.resident_bytes, resident);
  ASSERT_LE(plan.resident_bytes + plan.ring_bytes, problem.budget_bytes);
  ASSERT_LE(plan.streamed_bytes, streamed);
}

// Twenty-four blocks of Llama's shape, in percent of one. Kept whole, half of
// the budget would stream 13 blocks, and 0.9 of it nearly five.
TEST(BlockResidents, EachBlockKeepsAPart) {
  const std::vector<std::vector<uint64_t>> blocks(24, {19, 27, 27, 27});
  uint64_t last = UINT64_MAX;
  for (uint64_t budget = 200; budget <= 2400; budget += 20) {
    SCOPED_TRACE(budget);
    const PlanProblem problem = Problem(blocks, budget);
    const Plan plan = PlanOf(problem);
    CheckPlan(problem, plan);
    EXPECT_LE(plan.streamed_bytes, last);
    last = plan.streamed_bytes;
    // The bytes beyond the budget, the ring, and the rest of a group.
    EXPECT_LE(plan.streamed_bytes, 2400 - budget + plan.ring_bytes + 27);
  }
  EXPECT_LE(PlanOf(Problem(blocks, 1200)).streamed_bytes, 1200u * 112 / 100);
  EXPECT_LE(PlanOf(Problem(blocks, 2160)).streamed_bytes, 240u * 125 / 100);
}

// A ring of 54 and 73 percent of a block: two of 54 are too few bytes, and two
// of 73 would have 19 more.
TEST(BlockResidents, EverySecondBlockStreamsAStepLess) {
  const std::vector<std::vector<uint64_t>> blocks(24, {19, 27, 27, 27});
  const PlanProblem problem = Problem(blocks, 1200);
  const Plan plan = PlanOf(problem);
  EXPECT_EQ(plan.ring_bytes, 54u + 73u);
  EXPECT_LT(plan.streamed_bytes, 1200u + plan.ring_bytes + 19);
  EXPECT_EQ(Row(problem, plan).size(), 24u);
}

// Five of one group: a step less would be none at all.
TEST(BlockResidents, NoBlockStreamsFarMoreThanTheNext) {
  const std::vector<std::vector<uint64_t>> blocks(24, {10, 90});
  for (uint64_t budget = 200; budget < 2400; budget += 50) {
    SCOPED_TRACE(budget);
    const PlanProblem problem = Problem(blocks, budget);
    const Plan plan = PlanOf(problem);
    CheckPlan(problem, plan);
    EXPECT_NE(plan.ring_bytes, 10u + 90u);
    EXPECT_NE(plan.ring_bytes, 10u + 100u);
  }
}

TEST(BlockResidents, AnOddRowLosesABlockIfThatFits) {
  const std::vector<std::vector<uint64_t>> blocks(25, {19, 27, 27, 27});
  const PlanProblem problem = Problem(blocks, 1250);
  const Plan plan = PlanOf(problem);
  CheckPlan(problem, plan);
  EXPECT_EQ(Row(problem, plan).size(), 24u);
}

TEST(BlockResidents, RandomBlocks) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<std::vector<uint64_t>> blocks(2 + random() % 16);
    std::vector<uint64_t> sums;
    for (auto& groups : blocks) {
      groups.resize(1 + random() % 6);
      for (uint64_t& bytes : groups) bytes = 1 + random() % 1000;
      sums.push_back(Sum(groups));
    }
    std::sort(sums.rbegin(), sums.rend());
    const uint64_t least = sums[0] + sums[1];
    PlanProblem problem =
        Problem(blocks, least + random() % (Sum(sums) - least + 2));
    CheckPlan(problem, PlanOf(problem));
    // A backward goes through them in reverse.
    const std::vector<uint32_t> forward = problem.order;
    problem.order.insert(problem.order.end(), forward.rbegin(), forward.rend());
    CheckPlan(problem, PlanOf(problem));
  }
}

// With room for one and a half, copies wait for the block before.
TEST(BlockResidents, TheLeastIsTheLargestBlock) {
  const std::vector<std::vector<uint64_t>> blocks = {{30, 40}, {10, 20}, {50}};
  const absl::Status refused = MakePlan(Problem(blocks, 69)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("largest block; the least that would be enough is 70"));
  const Plan plan = PlanOf(Problem(blocks, 70));
  EXPECT_EQ(plan.ring_bytes, 70u);
  EXPECT_FALSE(plan.slots[0]->Overlaps(*plan.slots[1]));
}

// An embedding larger than blocks would make the ring as large.
TEST(BlockResidents, ALargeGroupAloneStays) {
  const Plan plan = PlanOf(
      Problem({{300}, {20, 20}, {20, 20}, {20, 20}, {20, 20}, {20, 20}}, 440));
  EXPECT_FALSE(plan.slots[0].has_value());
  EXPECT_LE(plan.ring_bytes, 80u);
}

TEST(BlockResidents, BlocksOfOneGroupAreGroups) {
  PlanProblem problem = Problem({{10}, {30}, {20}, {20}, {7}}, 60);
  const Plan in_blocks = PlanOf(problem);
  problem.blocks.clear();
  const Plan alone = PlanOf(problem);
  EXPECT_EQ(in_blocks.resident_bytes, alone.resident_bytes);
  EXPECT_EQ(in_blocks.ring_bytes, alone.ring_bytes);
}

TEST(BlockResidents, BlocksAreOfAllGroups) {
  PlanProblem problem = Problem({{10, 10}, {10}}, 20);
  problem.blocks.pop_back();
  EXPECT_EQ(MakePlan(problem).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace hoistd::block_residents_test
