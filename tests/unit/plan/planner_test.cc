#include "daemon/plan/planner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::planner_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::vector<uint32_t> InOrder(size_t groups) {
  std::vector<uint32_t> order(groups);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

PlanProblem Problem(std::vector<uint64_t> bytes, uint64_t budget,
                    uint64_t slack = 0) {
  const size_t groups = bytes.size();
  return {std::move(bytes), InOrder(groups), budget, slack};
}

uint64_t Largest(const std::vector<uint64_t>& bytes) {
  return *std::max_element(bytes.begin(), bytes.end());
}

uint64_t Sum(const std::vector<uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
}

Plan PlanOf(const PlanProblem& problem) {
  absl::StatusOr<Plan> plan = MakePlan(problem);
  EXPECT_OK(plan.status());
  return plan.ok() ? *std::move(plan) : Plan();
}

std::vector<uint32_t> Streamed(const Plan& plan) {
  std::vector<uint32_t> streamed;
  for (uint32_t i = 0; i < plan.slots.size(); ++i) {
    if (plan.slots[i].has_value()) streamed.push_back(i);
  }
  return streamed;
}

// One pass of the streamed groups.
std::vector<uint32_t> Steps(const PlanProblem& problem, const Plan& plan) {
  std::vector<uint32_t> steps;
  for (const uint32_t group : problem.order) {
    if (plan.slots[group].has_value()) steps.push_back(group);
  }
  return steps;
}

// Bytes copied, lead and exposed copies of a steady pass, byte by byte of the
// definition: for each step walk back until somebody lay in its place.
struct Traffic {
  uint64_t copied = 0;
  uint32_t lead = 0;
  uint32_t exposed = 0;
};

Traffic WalkBack(const PlanProblem& problem, const Plan& plan) {
  const std::vector<uint32_t> steps = Steps(problem, plan);
  Traffic traffic;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Slot& slot = *plan.slots[steps[i]];
    for (size_t back = 1; back <= steps.size(); ++back) {
      const uint32_t other = steps[(i + steps.size() - back) % steps.size()];
      if (other == steps[i]) break;
      if (!slot.Overlaps(*plan.slots[other])) continue;
      traffic.copied += slot.bytes;
      if (back == 1) ++traffic.exposed;
      const auto lead = static_cast<uint32_t>(back);
      traffic.lead = traffic.lead == 0 ? lead : std::min(traffic.lead, lead);
      break;
    }
  }
  return traffic;
}

// What holds for every plan.
void CheckPlan(const PlanProblem& problem, const Plan& plan) {
  ASSERT_EQ(plan.slots.size(), problem.bytes.size());
  uint64_t resident = 0;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (!plan.slots[i].has_value()) {
      resident += problem.bytes[i];
      continue;
    }
    ASSERT_EQ(plan.slots[i]->bytes, problem.bytes[i]);
    ASSERT_LE(plan.slots[i]->offset, plan.ring_bytes);
    ASSERT_LE(plan.slots[i]->bytes, plan.ring_bytes - plan.slots[i]->offset);
  }
  ASSERT_EQ(plan.resident_bytes, resident);
  ASSERT_LE(plan.resident_bytes + plan.ring_bytes, problem.budget_bytes);
  ASSERT_EQ(plan.ring_bytes == 0, resident == Sum(problem.bytes));
  const Traffic traffic = WalkBack(problem, plan);
  ASSERT_EQ(plan.streamed_bytes, traffic.copied);
  ASSERT_EQ(plan.lead, traffic.lead);
}

// The most resident bytes of all subsets; nullopt: no ring fits.
std::optional<uint64_t> BestResident(const PlanProblem& problem) {
  std::vector<uint64_t> sorted = problem.bytes;
  std::sort(sorted.rbegin(), sorted.rend());
  const uint64_t all = Sum(sorted);
  if (all <= problem.budget_bytes) return all;
  if (sorted[0] + sorted[1] > problem.budget_bytes) return std::nullopt;
  const uint64_t slack = std::min(
      problem.slack_bytes, (problem.budget_bytes - sorted[0] - sorted[1]) / 2);
  std::optional<uint64_t> best;
  for (uint32_t set = 0; set < 1u << sorted.size(); ++set) {
    std::vector<uint64_t> streamed;  // Largest first.
    for (size_t i = 0; i < sorted.size(); ++i) {
      if ((set >> i & 1) == 0) streamed.push_back(sorted[i]);
    }
    if (streamed.size() < 2) continue;
    const uint64_t rest = Sum(streamed) - streamed[0];
    const uint64_t ring =
        streamed[0] + std::max(streamed[1], std::min(slack, rest));
    const uint64_t resident = all - Sum(streamed);
    if (resident + ring > problem.budget_bytes) continue;
    best = std::max(best.value_or(0), resident);
  }
  return best;
}

TEST(Planner, WhatFitsIsAllResident) {
  const Plan plan = PlanOf(Problem({5, 7, 9}, 21));
  EXPECT_THAT(Streamed(plan), IsEmpty());
  EXPECT_EQ(plan.slots.size(), 3u);
  EXPECT_EQ(plan.ring_bytes, 0u);
  EXPECT_EQ(plan.resident_bytes, 21u);
  EXPECT_EQ(plan.streamed_bytes, 0u);
  EXPECT_EQ(plan.lead, 0u);
}

TEST(Planner, OneGroupIsResidentOrRefused) {
  EXPECT_EQ(PlanOf(Problem({100}, 100)).resident_bytes, 100u);
  const absl::Status status = MakePlan(Problem({100}, 99)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(Planner, RefusalNamesBudgetAndMinimumWhichIsThenEnough) {
  PlanProblem problem = Problem({30, 777, 60, 5}, 123);
  const absl::Status status = MakePlan(problem).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("123"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("777"));
  problem.budget_bytes = 777;
  const Plan plan = PlanOf(problem);
  CheckPlan(problem, plan);
  EXPECT_EQ(plan.lead, 1u);
}

TEST(Planner, InconsistentProblemsAreRefused) {
  const auto code = [](PlanProblem problem) {
    return MakePlan(problem).status().code();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({}), invalid);
  EXPECT_EQ(code({{4, 4}, {}, 100, 0}), invalid);
  EXPECT_EQ(code({{4, 4}, {0}, 100, 0}), invalid);
  EXPECT_EQ(code({{4, 4}, {0, 1, 2}, 100, 0}), invalid);
  EXPECT_EQ(code({{4, 0}, {0, 1}, 100, 0}), invalid);
  EXPECT_EQ(code({{~uint64_t{0}, ~uint64_t{0}}, {0, 1}, 100, 0}), invalid);
}

TEST(Planner, ResidentBytesAreTheMostOfAllSubsets) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    for (int round = 0; round < 3000; ++round) {
      std::vector<uint64_t> bytes(2 + random() % 7);
      const uint64_t most = 1 + random() % 40;
      for (uint64_t& size : bytes) size = 1 + random() % most;
      PlanProblem problem = Problem(bytes, 1 + random() % (Sum(bytes) + 3));
      if (random() % 2 == 0) problem.slack_bytes = random() % 30;
      std::shuffle(problem.order.begin(), problem.order.end(), random);
      if (problem.budget_bytes < Largest(problem.bytes)) continue;
      const Plan plan = PlanOf(problem);
      ASSERT_NO_FATAL_FAILURE(CheckPlan(problem, plan));
      const std::optional<uint64_t> best = BestResident(problem);
      ASSERT_EQ(plan.resident_bytes, best.value_or(0))
          << ::testing::PrintToString(bytes) << " budget "
          << problem.budget_bytes << " slack " << problem.slack_bytes;
    }
  }
}

TEST(Planner, MoreBudgetNeverKeepsLess) {
  const uint64_t seed = 4;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 30; ++round) {
    std::vector<uint64_t> bytes(2 + random() % 20);
    for (uint64_t& size : bytes) size = 1 + random() % 50;
    PlanProblem problem = Problem(bytes, 0, random() % 40);
    uint64_t last = 0;
    for (uint64_t budget = Largest(problem.bytes); budget <= Sum(bytes);
         ++budget) {
      problem.budget_bytes = budget;
      const Plan plan = PlanOf(problem);
      ASSERT_GE(plan.resident_bytes, last) << "budget " << budget;
      ASSERT_LE(plan.streamed_bytes, Sum(bytes) - plan.resident_bytes);
      last = plan.resident_bytes;
    }
    EXPECT_EQ(last, Sum(bytes));
  }
}

TEST(Planner, EvenNumbersOfGroupsAreNeverExposedWhereTwoFit) {
  const uint64_t seed = 5;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int odd_exposed = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<uint64_t> bytes(4 + random() % 150);
    const uint64_t most = 1 + random() % 2000;
    for (uint64_t& size : bytes) size = 4096 * (1 + random() % most);
    std::vector<uint64_t> sorted = bytes;
    std::sort(sorted.rbegin(), sorted.rend());
    const uint64_t two = sorted[0] + sorted[1];
    PlanProblem problem = Problem(
        bytes, two + random() % (Sum(bytes) - two + 1), random() % kMiB);
    std::shuffle(problem.order.begin(), problem.order.end(), random);
    const Plan plan = PlanOf(problem);
    ASSERT_NO_FATAL_FAILURE(CheckPlan(problem, plan));
    for (const std::optional<Slot>& slot : plan.slots) {
      ASSERT_EQ(slot.value_or(Slot()).offset % 4096, 0u);
    }
    ASSERT_EQ(plan.ring_bytes % 4096, 0u);
    const std::vector<uint32_t> steps = Steps(problem, plan);
    if (steps.empty()) continue;
    const uint32_t exposed = WalkBack(problem, plan).exposed;
    bool three_fit = false;
    for (size_t i = 0; i < steps.size(); ++i) {
      uint64_t three = 0;
      for (size_t j = i; j < i + 3; ++j)
        three += bytes[steps[j % steps.size()]];
      three_fit |= three <= problem.budget_bytes - plan.resident_bytes;
    }
    const bool room = steps.size() % 2 == 0 || three_fit;
    ASSERT_LE(exposed, room ? 0u : 1u) << steps.size() << " streamed";
    odd_exposed += exposed > 0;
  }
  EXPECT_LT(odd_exposed, 150);
}

TEST(Planner, EqualGroupsAreKeptEvenlySpread) {
  const std::vector<uint64_t> bytes(80, 64 * kMiB);
  const Plan plan = PlanOf(Problem(bytes, 22 * 64 * kMiB, 32 * kMiB));
  EXPECT_EQ(plan.resident_bytes, 20 * 64 * kMiB);
  EXPECT_EQ(plan.ring_bytes, 2 * 64 * kMiB);
  EXPECT_EQ(plan.lead, 2u);
  for (uint32_t i = 0; i < 80; i += 4) {
    int resident = 0;
    for (uint32_t j = i; j < i + 4; ++j) resident += !plan.slots[j].has_value();
    EXPECT_EQ(resident, 1) << "from group " << i;
  }
}

TEST(Planner, SpreadFollowsTheOrderNotTheNumbers) {
  PlanProblem problem = Problem(std::vector<uint64_t>(40, 10), 120);
  for (uint32_t i = 0; i < 40; ++i) problem.order[i] = i * 7 % 40;
  const Plan plan = PlanOf(problem);
  std::vector<uint32_t> places;
  for (uint32_t i = 0; i < 40; ++i) {
    if (!plan.slots[problem.order[i]].has_value()) places.push_back(i);
  }
  ASSERT_EQ(places.size(), 10u);
  for (size_t i = 1; i < places.size(); ++i) {
    EXPECT_EQ(places[i] - places[i - 1], 4u);
  }
}

TEST(Planner, EachSizeIsSpread) {
  std::vector<uint64_t> bytes;
  for (int i = 0; i < 30; ++i) {
    bytes.push_back(100);
    bytes.push_back(3);
  }
  const PlanProblem problem = Problem(bytes, 200 + 1000 + 45);
  const Plan plan = PlanOf(problem);
  CheckPlan(problem, plan);
  EXPECT_EQ(plan.resident_bytes, 1045u);
  for (uint32_t i = 0; i < 60; i += 12) {
    int large = 0;
    int small = 0;
    for (uint32_t j = i; j < i + 12; j += 2) {
      large += !plan.slots[j].has_value();
      small += !plan.slots[j + 1].has_value();
    }
    EXPECT_EQ(large, 2) << "from group " << i;
    EXPECT_EQ(small, 3) << "from group " << i;
  }
}

TEST(Planner, SmallGroupsGetSlackAndLead) {
  const std::vector<uint64_t> bytes(1000, kMiB);
  const Plan plan = PlanOf(Problem(bytes, 500 * kMiB, 32 * kMiB));
  EXPECT_EQ(plan.ring_bytes, 33 * kMiB);
  EXPECT_EQ(plan.resident_bytes, 467 * kMiB);
  EXPECT_GE(plan.lead, 31u);
}

TEST(Planner, LittleBeyondTheBudgetGetsLittleSlack) {
  const auto plan_beyond = [](uint64_t beyond) {
    return PlanOf(Problem(std::vector<uint64_t>(1000, kMiB),
                          (1000 - beyond) * kMiB, 32 * kMiB));
  };
  EXPECT_EQ(plan_beyond(256).ring_bytes, 33 * kMiB);
  EXPECT_EQ(plan_beyond(16).ring_bytes, 9 * kMiB);
  EXPECT_EQ(plan_beyond(4).ring_bytes, 5 * kMiB);
  uint64_t last = 0;
  for (uint64_t beyond = 300; beyond > 0; beyond -= 20) {
    const uint64_t resident = plan_beyond(beyond).resident_bytes;
    EXPECT_GE(resident, last) << beyond;
    last = resident;
  }
}

TEST(Planner, LargeGroupsGetNoSlack) {
  const std::vector<uint64_t> bytes(41, 600 * kMiB);
  const Plan plan = PlanOf(Problem(bytes, 3000 * kMiB, 32 * kMiB));
  EXPECT_EQ(plan.resident_bytes, 1800 * kMiB);
  EXPECT_EQ(plan.ring_bytes, 1200 * kMiB);
  EXPECT_EQ(plan.lead, 2u);
}

TEST(Planner, WithoutRoomForSlackItPlansAllTheSame) {
  const Plan plan = PlanOf(Problem({50, 50, 50, 50}, 100, 1000));
  EXPECT_EQ(plan.ring_bytes, 100u);
  EXPECT_EQ(plan.resident_bytes, 0u);
  EXPECT_EQ(plan.lead, 2u);
}

TEST(Planner, AnOddGroupTooManyIsHiddenByWhatIsLeftOver) {
  // Five take turns in two slots: one copy a pass finds nothing to hide behind.
  EXPECT_EQ(PlanOf(Problem(std::vector<uint64_t>(5, 100), 200)).lead, 1u);
  // Three of unequal size lie side by side, in a larger ring than two need.
  const Plan plan = PlanOf(Problem({100, 90, 100, 90, 90}, 289));
  EXPECT_EQ(plan.lead, 2u);
  EXPECT_LE(plan.ring_bytes + plan.resident_bytes, 289u);
}

TEST(Planner, ATiedLargeGroupWorksInANarrowBudget) {
  std::vector<uint64_t> bytes(41, 12 * kMiB);
  bytes[0] = 100 * kMiB;
  PlanProblem problem = Problem(bytes, 150 * kMiB, 32 * kMiB);
  problem.order.push_back(0);  // Embedding and head.
  const Plan plan = PlanOf(problem);
  CheckPlan(problem, plan);
  // The tied group is worth more than all others that would fit.
  EXPECT_FALSE(plan.slots[0].has_value());
  EXPECT_GE(plan.resident_bytes, 112 * kMiB);
  EXPECT_GE(plan.lead, 2u);
}

TEST(Planner, InANarrowBudgetOnlyWhatCannotHideIsExposed) {
  // 100 and 60 do not fit together, but the small ones fit beside either.
  const PlanProblem problem = Problem({100, 5, 60, 5, 5, 5}, 110);
  const Plan plan = PlanOf(problem);
  CheckPlan(problem, plan);
  EXPECT_EQ(plan.ring_bytes, 110u);
  EXPECT_EQ(plan.resident_bytes, 0u);
  EXPECT_EQ(WalkBack(problem, plan).exposed, 0u);
  // As neighbours they wait for one another.
  const PlanProblem apart = Problem({100, 60, 5, 5, 5, 5}, 110);
  EXPECT_EQ(PlanOf(apart).lead, 1u);
}

TEST(Planner, WildlyDifferentSizesDoNotPayForTheLargest) {
  std::vector<uint64_t> bytes;
  for (int i = 0; i < 30; ++i) bytes.push_back(i % 3 == 0 ? 200 : 2);
  PlanProblem problem = Problem(bytes, 500);
  const Plan plan = PlanOf(problem);
  CheckPlan(problem, plan);
  EXPECT_EQ(plan.ring_bytes, 400u);
  EXPECT_EQ(plan.resident_bytes, 40u);
  EXPECT_GE(plan.lead, 2u);
}

TEST(Planner, RepeatedGroupsHaveOneSlotAndCountEachCopy) {
  // 0 comes before each other group: two ends of the ring, no copy of 0 while
  // it lies there.
  const PlanProblem problem = {{60, 60, 60, 60}, {0, 1, 0, 2, 0, 3}, 120, 0};
  const Plan plan = PlanOf(problem);
  CheckPlan(problem, plan);
  EXPECT_EQ(plan.lead, 2u);
  EXPECT_EQ(plan.streamed_bytes, 180u);
}

TEST(Planner, OfEqualGroupsTheOftenUsedStay) {
  PlanProblem problem = Problem(std::vector<uint64_t>(12, 10), 40);
  problem.order = {0, 1, 2, 3, 7, 4, 5, 6, 9, 7, 8, 9, 10, 11};
  const Plan plan = PlanOf(problem);
  CheckPlan(problem, plan);
  EXPECT_FALSE(plan.slots[7].has_value());
  EXPECT_FALSE(plan.slots[9].has_value());
}

TEST(Planner, RandomOrdersWithRepeatsKeepTheRules) {
  const uint64_t seed = 6;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    std::vector<uint64_t> bytes(1 + random() % 12);
    for (uint64_t& size : bytes) size = 1 + random() % 30;
    PlanProblem problem = Problem(bytes, 0, random() % 20);
    for (uint64_t extra = random() % 20; extra > 0; --extra) {
      problem.order.push_back(static_cast<uint32_t>(random() % bytes.size()));
    }
    std::shuffle(problem.order.begin(), problem.order.end(), random);
    const uint64_t least = Largest(problem.bytes);
    problem.budget_bytes = least + random() % (Sum(bytes) + 1);
    ASSERT_NO_FATAL_FAILURE(CheckPlan(problem, PlanOf(problem)));
  }
}

TEST(Planner, SameProblemSamePlan) {
  const uint64_t seed = 8;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<uint64_t> bytes(60);
  for (uint64_t& size : bytes) size = 4096 * (1 + random() % 500);
  const PlanProblem problem = Problem(bytes, Sum(bytes) / 3, kMiB);
  const Plan one = PlanOf(problem);
  const Plan two = PlanOf(problem);
  EXPECT_EQ(Streamed(one), Streamed(two));
  for (const uint32_t group : Streamed(one)) {
    EXPECT_EQ(one.slots[group]->offset, two.slots[group]->offset);
  }
}

// Counted in units of some ten KiB, so nearly all of the budget is used.
TEST(Planner, ManyGroupsOfDifferentSizesFillALargeBudget) {
  const uint64_t seed = 9;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<uint64_t> bytes(400);
  for (uint64_t& size : bytes) size = 4096 * (1 + random() % 100'000);
  const uint64_t budget = 30'000 * kMiB;
  PlanProblem problem = Problem(bytes, budget, 32 * kMiB);
  const Plan plan = PlanOf(problem);
  CheckPlan(problem, plan);
  EXPECT_GE(plan.resident_bytes + plan.ring_bytes, budget - 2 * kMiB);
  EXPECT_GE(plan.lead, 2u);
}

}  // namespace hoistd::planner_test
