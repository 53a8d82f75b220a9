// Random lives of a whole hoistd: the real engine, mover, links, streamers and
// lanes, and libhoist's side of plans, in one thread under one clock.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/sim/system/mutant.h"
#include "tests/sim/system/runner.h"
#include "tests/support/status_matchers.h"

namespace hoistd::sim {
namespace {

constexpr uint32_t kStepsACase = 2000;
constexpr int kShrinkRuns = 2000;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : strtoull(text, nullptr, 10);
}

// HOIST_SIM_SEED runs another stretch of cases, HOIST_SIM_STEPS more or fewer
// steps of them, HOIST_SIM_MINUTES as many as that takes.
// A script that a report gave.
void ReplayFile(const char* path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto script = FromText(text);
  ASSERT_OK(script);
  ASSERT_FALSE(script->empty()) << path << " has no steps";
  Runner runner;
  const Outcome outcome = runner.Replay(*script);
  EXPECT_FALSE(outcome.failed) << outcome.check << ": " << outcome.what;
}

TEST(SystemSim, NothingGoesWrongInAMillionSteps) {
  if (const char* path = getenv("HOIST_SIM_SCRIPT")) return ReplayFile(path);
  using Clock = std::chrono::steady_clock;
  uint64_t seed = FromEnvironment("HOIST_SIM_SEED", 1);
  const uint64_t minutes = FromEnvironment("HOIST_SIM_MINUTES", 0);
  const uint64_t steps =
      minutes > 0 ? UINT64_MAX : FromEnvironment("HOIST_SIM_STEPS", 1'000'000);
  const auto end = Clock::now() + std::chrono::minutes(minutes);
  Runner runner;
  Sights sights = {};
  uint64_t done = 0;
  for (; done < steps && (minutes == 0 || Clock::now() < end); ++seed) {
    const Outcome outcome = runner.Random(seed, kStepsACase);
    done += outcome.steps;
    for (size_t i = 0; i < kSeen; ++i) sights[i] += outcome.sights[i];
    if (!outcome.failed) continue;
    std::cout << Report(outcome, seed, {}) << "\nis being cut down"
              << std::endl;
    const Script shrunk =
        runner.Shrink(outcome.script, outcome.check, kShrinkRuns);
    FAIL() << Report(outcome, seed, shrunk);
  }
  for (size_t i = 0; i < kSeen; ++i) {
    std::cout << "seen " << i << ": " << sights[i] << "\n";
    if (done < 1'000'000) continue;
    EXPECT_GT(sights[i], 0u) << "no case did what Seen number " << i << " is";
  }
}

TEST(SystemSim, ACaseIsTheSameEachTime) {
  Runner runner;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Outcome first = runner.Random(seed, kStepsACase);
    const Outcome again = runner.Random(seed, kStepsACase);
    const Outcome replayed = runner.Replay(first.script);
    EXPECT_EQ(first.trace, again.trace) << seed;
    EXPECT_EQ(first.trace, replayed.trace) << seed;
    EXPECT_EQ(replayed.script, first.script) << seed;
    EXPECT_NE(first.trace, 0u);
  }
}

TEST(SystemSimScript, IsReadAsItIsWritten) {
  Script script;
  for (uint32_t op = 0; op < kOps; ++op) {
    script.push_back({static_cast<Op>(op), {op, 7, 4'000'000'000u}});
  }
  const auto read = FromText("# A comment.\n\n" + ToText(script));
  ASSERT_OK(read);
  EXPECT_EQ(*read, script);
  EXPECT_FALSE(FromText("nothing 1 2 3").ok());
  EXPECT_FALSE(FromText("open 1 2").ok());
}

// A fault, and the checks that are meant to report it.
struct Meant {
  Mutant mutant;
  std::vector<std::string> checks;
};

void PrintTo(const Meant& meant, std::ostream* out) {
  *out << NameOf(meant.mutant);
}

class SystemSimMutant : public ::testing::TestWithParam<Meant> {};

TEST_P(SystemSimMutant, IsReportedByTheCheckThatIsMeantForIt) {
  constexpr uint64_t kCases = 400;  // done-again shows in one of 300.
  constexpr uint32_t kSteps = 1200;
  const Meant& meant = GetParam();
  Runner runner;
  for (uint64_t seed = 1; seed <= kCases; ++seed) {
    const Mutation mutation = {meant.mutant, static_cast<int>(seed % 7)};
    const Outcome outcome = runner.Random(seed, kSteps, mutation);
    if (!outcome.failed) continue;  // It made no difference.
    ASSERT_TRUE(std::ranges::count(meant.checks, outcome.check) > 0)
        << "it was another check: " << Report(outcome, seed, {});
    // Nor does it show without the fault.
    ASSERT_FALSE(runner.Replay(outcome.script).failed);
    const Script shrunk =
        runner.Shrink(outcome.script, outcome.check, 60, mutation);
    EXPECT_LT(shrunk.size(), outcome.script.size());
    const auto text = FromText(ToText(shrunk));
    ASSERT_OK(text);
    const Outcome replayed = runner.Replay(*text, mutation);
    EXPECT_TRUE(replayed.failed);
    EXPECT_EQ(replayed.check, outcome.check);
    return;
  }
  FAIL() << "nobody noticed it in " << kCases << " cases";
}

INSTANTIATE_TEST_SUITE_P(
    Each, SystemSimMutant,
    ::testing::Values(
        Meant{Mutant::kDroppedCopy, {"bytes"}},
        Meant{Mutant::kLateCopy, {"bytes", "overwrite"}},
        Meant{Mutant::kTornCopy, {"bytes"}},
        Meant{Mutant::kNotZeroed, {"bytes"}},
        Meant{Mutant::kOtherRange, {"bytes"}},
        Meant{Mutant::kShortRead, {"bytes"}},
        Meant{Mutant::kNoAnswer, {"answer", "progress"}},
        Meant{Mutant::kEarlyDone, {"overwrite", "bytes"}},
        Meant{Mutant::kPersistedLease, {"given back"}},
        Meant{Mutant::kEarlyLeave, {"slabs"}},
        Meant{Mutant::kOtherPiece, {"bytes"}},
        Meant{Mutant::kOverBudget, {"budget"}},
        Meant{Mutant::kIgnoredDone, {"progress"}},
        Meant{Mutant::kInventedDone, {"overwrite", "bytes", "progress"}},
        Meant{Mutant::kFreedTwice, {"books", "bytes", "overwrite"}},
        Meant{Mutant::kNeverFreed, {"given back", "books"}},
        Meant{Mutant::kKeptQuota, {"books"}},
        Meant{Mutant::kLostWake, {"answer", "progress"}},
        Meant{Mutant::kLostRecord, {"books", "slabs"}},
        // Protocol: a hoistd that had to begin anew gives its first numbers
        // again.
        Meant{Mutant::kKeptRecord,
              {"books", "given back", "slabs", "protocol"}},
        Meant{Mutant::kLostDescriptor, {"books", "slabs"}},
        Meant{Mutant::kStaleIds, {"protocol"}},
        Meant{Mutant::kNoCopyAgain, {"bytes"}},
        Meant{Mutant::kDoneAgain, {"overwrite", "bytes"}},
        Meant{Mutant::kLostDone, {"progress"}}),
    [](const auto& of) {
      std::string name;
      for (const char c : std::string(NameOf(of.param.mutant))) {
        if (c != '-') name += c;
      }
      return name;
    });

}  // namespace
}  // namespace hoistd::sim
