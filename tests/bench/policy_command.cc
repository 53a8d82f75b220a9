// policy: what a plan copies in a pass, beside the optimum and beside caches
// with the same memory; or beside the bytes beyond the budget; or what a
// mixture's hot experts leave to the link, and what copies ahead save of that.
// No GPU, no daemon: arithmetic alone.
#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "daemon/plan/planner.h"
#include "tests/bench/basics.h"
#include "tests/bench/fetch_ahead.h"
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
  bool floor = false;
  bool experts = false;
  bool ahead = false;
  std::vector<double> right = {0, 0.8, 1};
  bool even_strays = false;
  bool wait = false;
  double least_right = 0;
  size_t places = 6;
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

// A decoder in bf16: the groups of a block are those that Python's client makes
// of it, by leaf or in parts.
struct Decoder {
  std::string name;
  uint64_t width = 0, kv_width = 0, inner = 0;
  uint32_t blocks = 0;
  uint64_t words = 0;  // Of the head; 0: none.
};

const Decoder kDecoders[] = {
    {"8B, 24 blocks, no head", 4096, 1024, 14336, 24, 0},
    {"8B, 32 blocks", 4096, 1024, 14336, 32, 128256},
    {"width 2048, 32 blocks", 2048, 2048, 5632, 32, 32000},
    {"width 2048, 12 blocks", 2048, 2048, 5632, 12, 32000},
    {"width 256, 32 blocks", 256, 256, 704, 32, 32000},
    {"70B, 80 blocks, no head", 8192, 1024, 28672, 80, 0},
};

hoistd::PlanProblem ProblemOf(const Decoder& decoder, bool by_leaf) {
  const uint64_t row = 2 * decoder.width;
  const uint64_t q = decoder.width * row, kv = decoder.kv_width * row;
  const uint64_t mlp = decoder.inner * row;
  const std::vector<uint64_t> parts =
      by_leaf ? std::vector{q, kv, kv, q, mlp, mlp, mlp}
              : std::vector{q + 2 * kv, q, mlp, mlp, mlp};
  hoistd::PlanProblem problem;
  const auto add = [&](uint32_t block, uint64_t bytes) {
    problem.order.push_back(static_cast<uint32_t>(problem.bytes.size()));
    problem.bytes.push_back(bytes);
    if (!by_leaf) problem.blocks.push_back(block);
  };
  for (uint32_t block = 0; block < decoder.blocks; ++block) {
    for (const uint64_t bytes : parts) add(block, bytes);
  }
  if (decoder.words > 0) add(decoder.blocks, decoder.words * row);
  return problem;
}

// Beside its copies, a pass whose blocks compute as long as a mean copy.
std::optional<double> Uneven(const hoistd::PlanProblem& problem,
                             const hoistd::Plan& plan) {
  if (problem.blocks.empty() || plan.ring_bytes == 0) return std::nullopt;
  std::vector<double> copies(problem.blocks.back() + 1);
  double all = 0;
  for (size_t group = 0; group < problem.bytes.size(); ++group) {
    if (!plan.slots[group].has_value()) continue;
    copies[problem.blocks[group]] += static_cast<double>(problem.bytes[group]);
    all += static_cast<double>(problem.bytes[group]);
  }
  double pass = 0;
  for (const double bytes : copies) {
    pass += std::max(bytes, all / static_cast<double>(copies.size()));
  }
  return pass / all;
}

void MeasureFloor(const Decoder& decoder, bool by_leaf, double part,
                  const PolicyOptions& options, Report& report) {
  hoistd::PlanProblem problem = ProblemOf(decoder, by_leaf);
  double model = 0;
  for (const uint64_t bytes : problem.bytes) {
    model += static_cast<double>(bytes);
  }
  problem.budget_bytes = static_cast<uint64_t>(part * model);
  if (options.no_slack) problem.slack_bytes = 0;
  const auto plan = hoistd::MakePlan(problem);
  if (!plan.ok()) return;  // Less than the largest.
  const double beyond = model - static_cast<double>(problem.budget_bytes);
  const auto uneven = Uneven(problem, *plan);
  report.Add({{"decoder", decoder.name},
              {"groups", by_leaf ? "leaf" : "block"},
              {"budget", part},
              {"beyond_mb", beyond / 1e6},
              {"streamed_mb", static_cast<double>(plan->streamed_bytes) / 1e6},
              {"x_beyond", static_cast<double>(plan->streamed_bytes) / beyond},
              {"ring_mb", static_cast<double>(plan->ring_bytes) / 1e6},
              {"lead", plan->lead},
              {"uneven", uneven ? Json(*uneven) : Json()}});
}

void RunFloor(const RunOptions& run, const PolicyOptions& options) {
  Report report("policy", {{"no_slack", options.no_slack}});
  for (const Decoder& decoder : kDecoders) {
    for (const bool by_leaf : {true, false}) {
      for (const double part : options.budgets) {
        MeasureFloor(decoder, by_leaf, part, options, report);
      }
    }
  }
  report.Note(
      "beyond: the model's bytes beyond the budget, which any pass copies. "
      "uneven: if each block computes as long as a mean copy, the pass beside "
      "its copies; 1: all blocks stream as much.");
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

// Qwen3-30B-A3B on an H200, in a CUDA graph (RESULTS.md, "Read in place"). A
// token takes 16.7 ms all resident, and 34.0 ms with 830.3 MB in place. A
// grouped product of 8 experts takes 32 us for 6.3 MB each, and these have half
// as much again. Beside kernels that read in place, copies have 5.7 of 52.8
// GB/s (fetch_probe.py).
constexpr uint32_t kLayers = 48;
constexpr double kToken = 16.7e-3;
constexpr double kExperts = 48e-6;
constexpr FetchTimes kTimes = {
    .attention = kToken / kLayers - kExperts,
    .experts = kExperts,
    .expert_bytes = 9.0 * kMiB,
    .piece_bytes = 3.0 * kMiB,
    .link = 55.5e9,
    .in_place = 830.3e6 / (34.0e-3 - kToken),
    .copy_share = 5.7 / 52.8,
};

struct Predictor {
  double right = 0;  // Of a layer's experts, how many it names.
  bool even_strays = false;
  bool layer_earlier = false;
};

// A number in [0, 1), on every standard library the same.
double Draw(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

// One that is in neither list, by odds.
uint32_t DrawStray(std::span<const double> odds, const std::vector<bool>& taken,
                   std::mt19937_64& random) {
  double all = 0;
  for (size_t e = 0; e < odds.size(); ++e) all += taken[e] ? 0 : odds[e];
  double at = Draw(random) * all;
  uint32_t last = 0;
  for (uint32_t e = 0; e < odds.size(); ++e) {
    if (taken[e]) continue;
    last = e;
    if ((at -= odds[e]) < 0) break;
  }
  return last;
}

// A layer's part of one step. `odds` and `hot` are as before it.
FetchLayer Predict(std::span<const double> touches,
                   std::span<const double> odds, const std::vector<bool>& hot,
                   size_t first, const Predictor& predictor,
                   std::mt19937_64& random) {
  FetchLayer layer;
  const std::vector<double> even(touches.size(), 1);
  std::vector<bool> taken(touches.size());
  for (size_t e = 0; e < taken.size(); ++e) taken[e] = touches[e] > 0;
  for (uint32_t e = 0; e < touches.size(); ++e) {
    if (touches[e] == 0) continue;
    if (!hot[first + e]) layer.reads.push_back(e);
    uint32_t named = e;
    if (Draw(random) >= predictor.right) {
      named = DrawStray(predictor.even_strays ? even : odds, taken, random);
      taken[named] = true;
    }
    if (!hot[first + named]) layer.foreseen.push_back(named);
  }
  return layer;
}

struct Replayed {
  std::vector<RoutingStep> steps;
  std::vector<std::vector<bool>> hot;  // In each step.
};

Replayed ReplayHot(const RoutingSpec& spec, const RoutingOptions& routing,
                   double part) {
  Replayed replayed{Route(spec, routing), {}};
  const size_t experts = replayed.steps[0].touches.size();
  const auto room = static_cast<size_t>(part * static_cast<double>(experts));
  std::vector<NamedPolicy> all = HotPolicies(experts, room);
  const auto hoist = std::ranges::find(all, "hoist", &NamedPolicy::name);
  Replay(replayed.steps, room,
         [&](const RoutingStep& step, const std::vector<bool>& hot) {
           replayed.hot.push_back(hot);
           return hoist->choose(step, hot);
         });
  return replayed;
}

std::vector<FetchLayer> Foretell(const Replayed& replayed,
                                 const Predictor& predictor, uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t experts = replayed.steps[0].touches.size() / kLayers;
  std::vector<FetchLayer> layers;
  for (size_t n = replayed.steps.size() / 2; n < replayed.steps.size(); ++n) {
    const std::span<const double> touches(replayed.steps[n].touches);
    const std::span<const double> odds(replayed.steps[n - 1].odds);
    for (size_t l = 0; l < kLayers; ++l) {
      const size_t first = l * experts;
      layers.push_back(Predict(touches.subspan(first, experts),
                               odds.subspan(first, experts), replayed.hot[n],
                               first, predictor, random));
      // The token is known only now.
      const bool earlier = predictor.layer_earlier && l > 0;
      layers.back().known_at = layers.size() - (earlier ? 2 : 1);
    }
  }
  return layers;
}

// The least ring that takes at most 1 % longer than any.
size_t PlacesNeeded(std::span<const FetchLayer> layers,
                    const FetchTimes& times) {
  const FetchResult unbounded = FetchAhead(layers, times);
  size_t places = 1;
  while (places < unbounded.places &&
         FetchAhead(layers, times, places).seconds > 1.01 * unbounded.seconds) {
    ++places;
  }
  return places;
}

Json DescribedAhead(const std::string& trace, double part,
                    const Predictor& predictor) {
  return {{"trace", trace},
          {"hot", part},
          {"right", predictor.right},
          {"known", predictor.layer_earlier ? "a layer earlier" : "at begin"}};
}

void MeasureAhead(std::span<const FetchLayer> layers,
                  const PolicyOptions& options, Json row, Report& report) {
  FetchTimes times = kTimes;
  times.waits = options.wait;
  times.least_right = options.least_right;
  const auto tokens = static_cast<double>(layers.size() / kLayers);
  double cold = 0;
  for (const FetchLayer& layer : layers) {
    cold += static_cast<double>(layer.reads.size()) * kTimes.expert_bytes;
  }
  const double today = tokens * kToken + cold / kTimes.in_place;
  const FetchResult fetched = FetchAhead(layers, times, options.places);
  const double link =
      fetched.in_place_bytes + fetched.used_bytes + fetched.wasted_bytes;
  row.update({{"cold_mb", cold / tokens / 1e6},
              {"today_ms", today / tokens * 1e3},
              {"ms", fetched.seconds / tokens * 1e3},
              {"x_resident", fetched.seconds / tokens / kToken},
              {"x_today", fetched.seconds / today},
              {"wasted", link > 0 ? Json(fetched.wasted_bytes / link) : Json()},
              {"places", PlacesNeeded(layers, times)}});
  report.Add(row);
}

void RunAhead(const RunOptions& run, const PolicyOptions& options) {
  RoutingOptions routing = options.routing;
  routing.seed = options.seed;
  routing.layers = kLayers;
  routing.experts = 128;
  routing.chosen = 8;
  if (routing.steps < 2 || routing.prompt == 0) {
    Fail("policy --ahead: needs two steps, and a prompt of one token");
  }
  Report report("policy", {{"seed", options.seed},
                           {"steps", routing.steps},
                           {"even_strays", options.even_strays},
                           {"wait", options.wait},
                           {"least_right", options.least_right},
                           {"places", options.places}});
  for (const RoutingSpec& spec : RoutingSpecs()) {
    for (const double part : options.hot) {
      const Replayed replayed = ReplayHot(spec, routing, part);
      for (const double right : options.right) {
        for (const bool earlier : {false, true}) {
          const Predictor predictor = {right, options.even_strays, earlier};
          MeasureAhead(Foretell(replayed, predictor, options.seed), options,
                       DescribedAhead(spec.name, part, predictor), report);
        }
      }
    }
  }
  report.Note(
      "cold_mb: read of cold experts, a token. today: all of them in place. "
      "wasted: copies that were not read, of all bytes over the link. places: "
      "the least ring within 1 % of any. A stray is drawn by the generator's "
      "own odds, with --even-strays evenly.");
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
  command->add_flag("--floor", options->floor,
                    "decoders' plans beside the bytes beyond the budget");
  command->add_flag("--experts", options->experts,
                    "policies of a mixture's hot experts instead");
  command->add_flag("--ahead", options->ahead,
                    "a decode that copies foreseen cold experts instead");
  command
      ->add_option("--right", options->right,
                   "of a layer's experts, how many are foreseen")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0));
  command->add_flag("--even-strays", options->even_strays,
                    "wrong experts are any, not the likely ones");
  command->add_flag("--wait", options->wait,
                    "a layer waits for a copy that has started");
  command->add_option("--least-right", options->least_right,
                      "part of the last guesses; below, nothing is copied");
  command->add_option("--places", options->places, "of the ring");
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
            (options->ahead     ? RunAhead
             : options->experts ? RunExperts
             : options->floor   ? RunFloor
                                : RunPolicy)(run, *options);
          }};
}

}  // namespace hoist::bench
