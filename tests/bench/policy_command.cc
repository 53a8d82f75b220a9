// policy: what a plan copies in a pass, beside the optimum and beside caches
// with the same memory; or what a mixture's hot experts leave to the link. No
// GPU, no daemon: arithmetic alone.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/plan/planner.h"
#include "tests/bench/basics.h"
#include "tests/bench/hot_policies.h"
#include "tests/bench/report.h"
#include "tests/bench/routing.h"
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
  bool experts = false;
  std::vector<double> hot = {0.4};
  std::vector<uint32_t> sequences = {1, 4, 16, 64};
  double expert_mib = 9;  // Qwen3-30B-A3B's in bf16.
  RoutingOptions routing;
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

void MeasureHot(const RoutingSpec& spec, const RoutingOptions& routing,
                double part, const PolicyOptions& options, Report& report) {
  const std::vector<RoutingStep> steps = Route(spec, routing);
  const size_t experts = steps[0].touches.size();
  const auto room = static_cast<size_t>(part * static_cast<double>(experts));
  const HotTraffic least = LeastTraffic(steps, room);
  std::optional<double> unmoved;  // Missed, the first policy's.
  const auto add = [&](const std::string& name, const HotTraffic& traffic) {
    if (!unmoved) unmoved = traffic.missed;
    const double saved = *unmoved - traffic.missed;
    const double link = traffic.missed + traffic.moved;
    const double measured = static_cast<double>(steps.size() / 2);
    report.Add(
        {{"trace", spec.name},
         {"sequences", routing.sequences},
         {"hot", part},
         {"policy", name},
         {"missed", traffic.missed / traffic.reads},
         {"moved_mib_a_step", traffic.moved * options.expert_mib / measured},
         {"moved_per_saved", saved > 0 ? Json(traffic.moved / saved) : Json()},
         {"link", link / traffic.reads},
         {"of_optimum", link / (least.missed + least.moved)}});
  };
  for (const NamedPolicy& policy : HotPolicies(experts, room)) {
    add(policy.name, Replay(steps, room, policy.choose));
  }
  add("optimum", least);
}

Json Described(const PolicyOptions& options) {
  Json traces;
  for (const RoutingSpec& spec : RoutingSpecs()) {
    traces[spec.name] = {{"power", spec.power}, {"offset", spec.offset}};
  }
  const RoutingOptions& routing = options.routing;
  return {{"seed", options.seed},
          {"layers", routing.layers},
          {"experts", routing.experts},
          {"chosen", routing.chosen},
          {"prompt", routing.prompt},
          {"steps", routing.steps},
          {"expert_mib", options.expert_mib},
          {"traces", traces}};
}

void RunExperts(const RunOptions& run, const PolicyOptions& options) {
  RoutingOptions routing = options.routing;
  routing.seed = options.seed;
  if (routing.chosen * 2 > routing.experts || routing.steps < 2 ||
      routing.layers == 0 || routing.prompt == 0) {
    Fail(
        "policy --experts: needs a layer, two steps, a prompt of one token, "
        "and a token may choose half of a layer's experts at the most");
  }
  Report report("policy", Described(options));
  for (const RoutingSpec& spec : RoutingSpecs()) {
    for (const uint32_t sequences : options.sequences) {
      routing.sequences = sequences;
      for (const double part : options.hot) {
        MeasureHot(spec, routing, part, options, report);
      }
    }
  }
  report.Note("options: " + Described(options).dump());
  report.Note(
      "missed: the part of an expert's reads that are in place. link: missed "
      "and moved bytes, over all reads' bytes. saved: missed bytes fewer than "
      "those of the unmoved set, as large. optimum: the least link bytes with "
      "foresight, a bound. informed: the likeliest of the next step by the "
      "generator's own odds, and copies do not count: none without foresight "
      "misses less. Numbers: half-lives, in steps.");
  report.Finish(run.json);
}

}  // namespace

Command PolicyCommand(CLI::App& app) {
  auto options = std::make_shared<PolicyOptions>();
  CLI::App* command =
      app.add_subcommand("policy",
                         "what plans copy, beside the optimum, LRU and MIN; or "
                         "what hot experts leave to the link");
  command->add_option("--budgets", options->budgets, "parts of the model")
      ->delimiter(',');
  command->add_option("--seed", options->seed, "of the traces");
  command->add_flag("--no-slack", options->no_slack,
                    "no ring beyond two groups, as the optimum has it");
  command->add_flag("--experts", options->experts,
                    "policies of a mixture's hot experts instead");
  command->add_option("--hot", options->hot, "parts of the experts")
      ->delimiter(',')
      ->check(CLI::Range(0.01, 0.99));
  command->add_option("--sequences", options->sequences, "in a step")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command->add_option("--steps", options->routing.steps,
                      "half of them warm up");
  command->add_option("--prompt", options->routing.prompt, "tokens of one");
  command->add_option("--layers", options->routing.layers);
  command->add_option("--layer-experts", options->routing.experts);
  command->add_option("--chosen", options->routing.chosen,
                      "experts of a layer, by a token");
  command->add_option("--expert-mib", options->expert_mib);
  return {command, [options](const RunOptions& run) {
            (options->experts ? RunExperts : RunPolicy)(run, *options);
          }};
}

}  // namespace hoist::bench
