// policy: what a plan copies in a pass, beside the optimum and beside caches
// with the same memory. No GPU, no daemon: arithmetic alone.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/plan/planner.h"
#include "tests/bench/basics.h"
#include "tests/bench/report.h"
#include "tests/bench/run_options.h"
#include "tests/bench/traces.h"
#include "tests/support/cache_policies.h"

namespace hoist::bench {
namespace {

constexpr size_t kMostExact = 20;  // Groups: all 2^20 choices are tried.

struct PolicyOptions {
  std::vector<double> budgets = {0.1, 0.25, 0.5, 0.75, 0.9};
  uint64_t seed = 1;
  bool no_slack = false;
};

uint64_t PassBytes(const Trace& trace) {
  uint64_t bytes = 0;
  for (uint32_t group : trace.order) bytes += trace.bytes[group];
  return bytes;
}

// The least that must be copied in a pass by any choice of residents that
// leaves room for the two largest of the others: below that no copy hides
// behind compute. nullopt: too many groups, no such choice, or groups that come
// several times, which may or may not stay in their slots meanwhile.
std::optional<uint64_t> ExactOptimum(const Trace& trace, uint64_t budget) {
  const size_t count = trace.bytes.size();
  if (count > kMostExact || trace.order.size() != count) return std::nullopt;
  std::optional<uint64_t> best;
  for (uint32_t kept = 0; kept < uint32_t{1} << count; ++kept) {
    uint64_t resident = 0, streamed = 0, first = 0, second = 0;
    for (size_t g = 0; g < count; ++g) {
      const uint64_t bytes = trace.bytes[g];
      if (kept >> g & 1) {
        resident += bytes;
        continue;
      }
      streamed += bytes;
      second = std::max(second, std::min(first, bytes));
      first = std::max(first, bytes);
    }
    if (resident + first + second > budget) continue;
    if (!best || streamed < *best) best = streamed;
  }
  return best;
}

Json GiB(std::optional<double> bytes) {
  return bytes ? Json(*bytes / double(kGiB)) : Json();
}

void MeasureOne(const Trace& trace, double part, const PolicyOptions& options,
                Report& report) {
  uint64_t model = 0;
  for (uint64_t bytes : trace.bytes) model += bytes;
  const auto budget = static_cast<uint64_t>(part * static_cast<double>(model));
  hoistd::PlanProblem problem{trace.bytes, trace.order, budget};
  if (options.no_slack) problem.slack_bytes = 0;
  const auto plan = hoistd::MakePlan(problem);
  std::optional<double> planned, least, lead;
  if (plan.ok()) {
    planned = static_cast<double>(plan->streamed_bytes);
    lead = plan->lead;
  }
  if (const auto exact = ExactOptimum(trace, budget)) {
    least = static_cast<double>(*exact);
  }
  const hoistd::CacheProblem cache{trace.bytes, trace.order, budget};
  const auto lru = MissedBytesPerPass(cache, hoistd::CachePolicy::kLru);
  const auto min = MissedBytesPerPass(cache, hoistd::CachePolicy::kMin);
  report.Add(
      {{"trace", trace.name},
       {"budget", part},
       {"pass_gib", GiB(double(PassBytes(trace)))},
       {"planned_gib", GiB(planned)},
       {"lead", lead ? Json(static_cast<int>(*lead)) : Json()},
       {"optimum_gib", GiB(least)},
       {"of_optimum",
        planned && least && *least > 0 ? Json(*planned / *least) : Json()},
       {"lru_gib", GiB(lru)},
       {"min_gib", GiB(min)},
       {"of_lru",
        planned && lru && *lru > 0 ? Json(*planned / *lru) : Json()}});
}

void RunPolicy(const RunOptions& run, const PolicyOptions& options) {
  Report report("policy",
                {{"seed", options.seed}, {"no_slack", options.no_slack}});
  for (const Trace& trace : Traces(options.seed)) {
    for (double part : options.budgets) {
      MeasureOne(trace, part, options, report);
    }
  }
  report.Note(
      "planned: as the plan books it, ring slots and slack included. optimum: "
      "over all choices of residents (up to 20 groups) that leave room for the "
      "two largest others. LRU and MIN load on demand: nothing of theirs hides "
      "behind compute.");
  report.Finish(run.json);
}

}  // namespace

Command PolicyCommand(CLI::App& app) {
  auto options = std::make_shared<PolicyOptions>();
  CLI::App* command = app.add_subcommand(
      "policy", "what plans copy, beside the optimum, LRU and MIN");
  command->add_option("--budgets", options->budgets, "parts of the model")
      ->delimiter(',');
  command->add_option("--seed", options->seed, "of the wild traces");
  command->add_flag("--no-slack", options->no_slack,
                    "no ring beyond two groups, as the optimum has it");
  return {command,
          [options](const RunOptions& run) { RunPolicy(run, *options); }};
}

}  // namespace hoist::bench
