#include "daemon/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/plan/block_residents.h"
#include "daemon/plan/ring_layout.h"
#include "daemon/plan/subset_sum.h"

namespace hoistd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxBytes = uint64_t{1} << 62;  // Of all groups.

// Units in which a budget is counted: more cost time, fewer bytes.
constexpr uint64_t kMinUnits = uint64_t{1} << 17;
constexpr uint64_t kMaxUnits = uint64_t{1} << 21;
constexpr uint64_t kUnitsTimesGroups = uint64_t{1} << 33;

absl::Status Check(const PlanProblem& problem) {
  if (problem.bytes.empty()) {
    return absl::InvalidArgumentError("the plan names no group");
  }
  if (!problem.blocks.empty() &&
      problem.blocks.size() != problem.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has blocks for ", problem.blocks.size(), " of ",
                     problem.bytes.size(), " groups"));
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < problem.bytes.size(); ++i) {
    if (problem.bytes[i] == 0) {
      return absl::InvalidArgumentError(absl::StrCat("group ", i, " is empty"));
    }
    if (problem.bytes[i] > kMaxBytes - sum) {
      return absl::InvalidArgumentError(
          "the plan's groups have more than 2^62 bytes");
    }
    sum += problem.bytes[i];
  }
  std::vector<bool> used(problem.bytes.size());
  for (const uint32_t group : problem.order) {
    if (group >= used.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the order names group ", group, ", but there are only ",
                       used.size()));
    }
    used[group] = true;
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused != used.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("group ", std::distance(used.begin(), unused),
                     " does not occur in the order"));
  }
  return absl::OkStatus();
}

uint64_t Sum(const std::vector<uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
}

uint64_t Divisor(const std::vector<uint64_t>& bytes) {
  uint64_t divisor = 0;
  for (const uint64_t size : bytes) divisor = std::gcd(divisor, size);
  return divisor;
}

// Per group: its rank by first use, and how often a pass enters it from another
// group.
struct Use {
  std::optional<uint32_t> rank;
  uint32_t visits = 0;
};

std::vector<Use> UsesOf(const PlanProblem& problem) {
  std::vector<Use> uses(problem.bytes.size());
  uint32_t ranks = 0;
  uint32_t previous = problem.order.back();
  for (const uint32_t group : problem.order) {
    Use& use = uses[group];
    if (!use.rank.has_value()) use.rank = ranks++;
    if (group != previous) ++use.visits;
    previous = group;
  }
  return uses;
}

// The groups of each block, by first use.
std::vector<std::vector<uint32_t>> BlocksOf(const PlanProblem& problem) {
  std::vector<std::vector<uint32_t>> blocks;
  absl::flat_hash_map<uint32_t, size_t> known;
  std::vector<bool> seen(problem.bytes.size());
  for (const uint32_t group : problem.order) {
    if (seen[group]) continue;
    seen[group] = true;
    const uint32_t name =
        problem.blocks.empty() ? group : problem.blocks[group];
    const auto [it, is_new] = known.try_emplace(name, blocks.size());
    if (is_new) blocks.emplace_back();
    blocks[it->second].push_back(group);
  }
  return blocks;
}

// A pass copies the slack as well: little beyond the budget deserves little of
// it. Groups of 4 MiB lose 4 % of the link with 4 MiB of slack, and 1.4 % with
// 32 (H200), so less than 1 MiB / slack. Copying it takes slack / beyond. The
// sum is least at the root of beyond x 1 MiB; twice that also hides copies
// behind compute that takes as long.
uint64_t UsefulSlack(uint64_t beyond) {
  constexpr double kMiB = 1 << 20;
  return static_cast<uint64_t>(2 *
                               std::sqrt(static_cast<double>(beyond) * kMiB));
}

// The blocks of a pass, by index into `blocks`; each stay in one is a step.
std::vector<uint32_t> PassOf(const std::vector<std::vector<uint32_t>>& blocks,
                             const PlanProblem& problem) {
  std::vector<uint32_t> block_of(problem.bytes.size());
  for (uint32_t block = 0; block < blocks.size(); ++block) {
    for (const uint32_t group : blocks[block]) block_of[group] = block;
  }
  std::vector<uint32_t> pass;
  for (const uint32_t group : problem.order) {
    if (pass.empty() || pass.back() != block_of[group]) {
      pass.push_back(block_of[group]);
    }
  }
  return pass;
}

std::vector<uint64_t> SizesOf(const std::vector<std::vector<uint32_t>>& blocks,
                              const std::vector<uint64_t>& bytes) {
  std::vector<uint64_t> sizes;
  for (const auto& groups : blocks) {
    sizes.push_back(0);
    for (const uint32_t group : groups) sizes.back() += bytes[group];
  }
  return sizes;
}

// The choice of sizes, before that among equal groups.
struct Choice {
  std::vector<uint64_t> residents;  // Sizes.
  uint64_t ring_bytes = 0;
};

// The most resident bytes with a ring for the largest streamed group and,
// beside it, the next or `slack` bytes, whichever is more.
//
// Some best choice keeps all groups larger than the two that set the ring, and
// none between the two: streaming such a one instead of the larger would take
// the same memory and keep more. So in descending order the first f are
// resident, the next two set the ring, and as much of the rest as fits is
// resident: a subset sum over a suffix, for each f. Suffixes grow one by one.
Choice ChooseResidents(std::vector<uint64_t> sizes, uint64_t budget,
                       uint64_t slack) {
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  const size_t count = sizes.size();
  const uint64_t max_units =
      std::clamp(kUnitsTimesGroups / count, kMinUnits, kMaxUnits);
  uint64_t unit = Divisor(sizes);
  if (budget / unit > max_units) unit = (budget - 1) / max_units + 1;
  const auto units = [unit](uint64_t bytes) { return (bytes - 1) / unit + 1; };

  SubsetSums sums(budget / unit);
  uint64_t prefix = Sum(sizes) - sizes[count - 1] - sizes[count - 2];
  std::optional<uint64_t> best_bytes;
  size_t best_prefix = 0;
  uint64_t best_sum = 0;
  uint64_t best_room = 0;
  for (size_t f = count - 1; f-- > 0;) {
    const uint64_t need = prefix + sizes[f] + std::max(sizes[f + 1], slack);
    if (need <= budget) {
      const uint64_t sum = sums.LargestUpTo((budget - need) / unit);
      const uint64_t bytes = prefix + sum * unit;
      if (!best_bytes.has_value() || bytes > *best_bytes) {
        best_bytes = bytes;
        best_prefix = f;
        best_sum = sum;
        best_room = budget - need;
      }
    }
    sums.Add(units(sizes[f + 1]));
    if (f > 0) prefix -= sizes[f - 1];
  }
  HOIST_CHECK(best_bytes.has_value());

  Choice choice;
  const size_t f = best_prefix;
  choice.residents.assign(sizes.begin(),
                          sizes.begin() + static_cast<ptrdiff_t>(f));
  std::vector<bool> taken(count);
  for (const uint32_t item : sums.ItemsOf(best_sum)) {
    taken[count - 1 - item] = true;  // Added in reverse order.
    best_room -= sizes[count - 1 - item];
  }
  // Uses the budget that rounding left over.
  for (size_t i = f + 2; i < count; ++i) {
    if (!taken[i] && sizes[i] <= best_room) {
      taken[i] = true;
      best_room -= sizes[i];
    }
    if (taken[i]) choice.residents.push_back(sizes[i]);
  }
  choice.ring_bytes = sizes[f] + std::max(sizes[f + 1], slack);
  return choice;
}

// Picks residents, given their number per size: among equal groups the most
// visited per pass, and of these every n-th by first use.
std::vector<bool> SpreadResidents(const std::vector<uint64_t>& bytes,
                                  const std::vector<Use>& uses,
                                  std::vector<uint64_t> residents) {
  std::vector<uint32_t> groups(bytes.size());
  std::iota(groups.begin(), groups.end(), 0u);
  std::sort(groups.begin(), groups.end(), [&](uint32_t a, uint32_t b) {
    if (bytes[a] != bytes[b]) return bytes[a] > bytes[b];
    if (uses[a].visits != uses[b].visits)
      return uses[a].visits > uses[b].visits;
    return uses[a].rank < uses[b].rank;
  });
  std::sort(residents.begin(), residents.end(), std::greater<>());
  std::vector<bool> resident(bytes.size());
  size_t next = 0;  // Into `residents`.
  for (size_t begin = 0; begin < groups.size();) {
    const auto alike = [&](size_t i) {
      return bytes[groups[i]] == bytes[groups[begin]] &&
             uses[groups[i]].visits == uses[groups[begin]].visits;
    };
    size_t end = begin;
    while (end < groups.size() && alike(end)) ++end;
    uint64_t keep = 0;
    while (next < residents.size() && keep < end - begin &&
           residents[next] == bytes[groups[begin]]) {
      ++next;
      ++keep;
    }
    const uint64_t all = end - begin;
    for (uint64_t i = 0; i < all; ++i) {
      resident[groups[begin + i]] = (i + 1) * keep / all > i * keep / all;
    }
    begin = end;
  }
  HOIST_CHECK(next == residents.size());
  return resident;
}

// The streamed groups of a block lie side by side, as one in the ring. The ring
// takes the rest of the budget only if that hides copies: idle ring bytes are
// useless.
void LayOut(const PlanProblem& problem,
            const std::vector<std::vector<uint32_t>>& blocks,
            const std::vector<bool>& resident, uint64_t ring_bytes,
            Plan& plan) {
  RingProblem ring;
  std::vector<std::vector<uint32_t>> streamed;  // In the ring, by first use.
  std::vector<uint32_t> index(resident.size());
  std::vector<uint64_t> sizes;
  for (const auto& groups : blocks) {
    std::vector<uint32_t> found;
    uint64_t bytes = 0;
    for (const uint32_t group : groups) {
      if (resident[group]) continue;
      index[group] = static_cast<uint32_t>(streamed.size());
      found.push_back(group);
      sizes.push_back(problem.bytes[group]);
      bytes += sizes.back();
    }
    if (found.empty()) continue;
    streamed.push_back(std::move(found));
    ring.bytes.push_back(bytes);
  }
  for (const uint32_t group : problem.order) {
    if (!resident[group]) ring.steps.push_back(index[group]);
  }
  if (Divisor(sizes) % kPage == 0) ring.unit = kPage;
  const auto aligned = [&](uint64_t bytes) {
    return bytes / ring.unit * ring.unit;
  };
  ring.ring_bytes = aligned(ring_bytes);
  RingLayout layout = LayOutRing(ring);
  const uint64_t most = aligned(problem.budget_bytes - plan.resident_bytes);
  if (layout.traffic.exposed_bytes > 0 && most > ring.ring_bytes) {
    RingProblem larger = ring;
    larger.ring_bytes = most;
    RingLayout other = LayOutRing(larger);
    if (other.traffic.exposed_bytes < layout.traffic.exposed_bytes) {
      ring.ring_bytes = most;
      layout = std::move(other);
    }
  }
  std::vector<Slot> slots;
  for (size_t i = 0; i < streamed.size(); ++i) {
    uint64_t offset = layout.slots[i].offset;
    for (const uint32_t group : streamed[i]) {
      index[group] = static_cast<uint32_t>(slots.size());
      slots.push_back({offset, problem.bytes[group]});
      plan.slots[group] = slots.back();
      offset += problem.bytes[group];
    }
  }
  std::vector<uint32_t> steps;
  for (const uint32_t group : problem.order) {
    if (!resident[group]) steps.push_back(index[group]);
  }
  plan.ring_bytes = ring.ring_bytes;
  // A smaller block leaves some of the groups in its place.
  plan.streamed_bytes = MeasureRing(slots, steps).copied_bytes;
  plan.lead = layout.traffic.lead;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const PlanProblem& problem) {
  HOIST_RETURN_IF_ERROR(Check(problem));
  const uint64_t budget = problem.budget_bytes;
  const std::vector<std::vector<uint32_t>> blocks = BlocksOf(problem);
  std::vector<uint64_t> top = SizesOf(blocks, problem.bytes);
  const uint64_t minimum = *std::max_element(top.begin(), top.end());
  const bool alone = blocks.size() == problem.bytes.size();
  if (budget < minimum) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a plan with a device budget of ", budget,
        " bytes cannot hold its largest ", alone ? "group" : "block",
        "; the least that would be enough is ", minimum, " bytes"));
  }
  Plan plan;
  plan.slots.resize(problem.bytes.size());
  const uint64_t all = Sum(problem.bytes);
  if (all <= budget) {
    plan.resident_bytes = all;
    return plan;
  }
  std::partial_sort(top.begin(), top.begin() + 2, top.end(), std::greater<>());
  // Below the two largest, a resident would take room in which other copies
  // still hide: the ring gets everything.
  std::vector<bool> resident(problem.bytes.size());
  uint64_t ring_bytes = budget;
  if (top[1] <= budget - top[0]) {
    const uint64_t spare = budget - top[0] - top[1];
    // Half: so slack never makes a possible plan fail, and a larger budget
    // never keeps less. To match what small groups gain by slack (4 MiB in two
    // slots: 93 % of the link), residents in that half would have to save as
    // much.
    const uint64_t slack =
        std::min({problem.slack_bytes, spare / 2, UsefulSlack(all - budget)});
    if (alone) {
      Choice choice = ChooseResidents(problem.bytes, budget, slack);
      ring_bytes = choice.ring_bytes;
      resident = SpreadResidents(problem.bytes, UsesOf(problem),
                                 std::move(choice.residents));
    } else {
      BlockResidents choice = ChooseInBlocks(
          {problem.bytes, blocks, PassOf(blocks, problem), budget, slack});
      ring_bytes = choice.ring_bytes;
      resident = std::move(choice.resident);
    }
  }
  for (size_t i = 0; i < resident.size(); ++i) {
    if (resident[i]) plan.resident_bytes += problem.bytes[i];
  }
  LayOut(problem, blocks, resident, ring_bytes, plan);
  return plan;
}

}  // namespace hoistd
