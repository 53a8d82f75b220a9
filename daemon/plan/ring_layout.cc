#include "daemon/plan/ring_layout.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "daemon/base/check.h"

namespace hoistd {
namespace {

// Bounds for large and hostile problems: the cost of one rotation's even cuts,
// and the number of rotations. Three rotations find a round of three.
constexpr uint64_t kMaxCutWork = uint64_t{1} << 20;
constexpr size_t kMinRotations = 3;
constexpr size_t kMaxRotations = 16;
constexpr size_t kRotationsTimesSteps = 8192;

// The last user of each byte of the ring.
class LastUse {
 public:
  explicit LastUse(uint64_t bytes) { segments_[0] = {bytes, -1}; }

  // The latest step that used a byte of the slot, or -1; then sets `step`.
  // Replaced segments are removed, so the total cost is low.
  int64_t Exchange(const Slot& slot, int64_t step) {
    const uint64_t end = slot.offset + slot.bytes;
    SplitAt(slot.offset);
    SplitAt(end);
    int64_t last = -1;
    auto it = segments_.find(slot.offset);
    while (it != segments_.end() && it->first < end) {
      last = std::max(last, it->second.step);
      it = segments_.erase(it);
    }
    segments_[slot.offset] = {end, step};
    return last;
  }

 private:
  struct Segment {
    uint64_t end = 0;
    int64_t step = -1;
  };

  void SplitAt(uint64_t offset) {
    auto it = segments_.upper_bound(offset);
    if (it == segments_.begin()) return;
    --it;
    if (it->first == offset || it->second.end <= offset) return;
    const Segment rest = it->second;
    it->second.end = offset;
    segments_[offset] = rest;
  }

  std::map<uint64_t, Segment> segments_;  // By offset; they tile the ring.
};

using Cuts = std::vector<size_t>;  // Starts of rounds, and the end.

// A round is a run of adjacent groups. Its first lies at the bottom and its
// last at the top, so the last lies beside the next round's first wherever two
// groups fit. Spare bytes are divided among the gaps (`spread`), or lie before
// the last.
void PlaceRound(const RingProblem& problem, const std::vector<uint32_t>& round,
                bool spread, std::vector<Slot>& slots) {
  uint64_t used = 0;
  for (const uint32_t group : round) used += problem.bytes[group];
  const uint64_t room = problem.ring_bytes - used;
  const size_t gaps = round.size() - 1;
  uint64_t filled = 0;
  for (size_t i = 0; i < round.size(); ++i) {
    const uint64_t bytes = problem.bytes[round[i]];
    uint64_t gap = 0;
    if (i > 0 && i == gaps) {
      gap = room;
    } else if (i > 0 && spread) {
      gap = room / gaps * i / problem.unit * problem.unit;
    }
    slots[round[i]] = {filled + gap, bytes};
    filled += bytes;
  }
}

// Cuts a sequence of groups into rounds.
class Cutter {
 public:
  Cutter(const RingProblem& problem, size_t rotation) : ring_(problem) {
    const size_t groups = problem.bytes.size();
    for (size_t i = 0; i < groups; ++i) {
      sequence_.push_back(static_cast<uint32_t>((rotation + i) % groups));
      sums_.push_back(sums_.back() + bytes(i));
    }
  }

  const std::vector<uint32_t>& sequence() const { return sequence_; }

  // Rounds as full as the ring allows. A last round of one group borrows from
  // the one before, and so on to a round with a spare group.
  Cuts Greedy() const {
    Cuts cuts = {0};
    for (size_t i = 1; i <= sequence_.size(); ++i) {
      if (sums_[i] - sums_[cuts.back()] > ring_.ring_bytes) {
        cuts.push_back(i - 1);
      }
    }
    cuts.push_back(sequence_.size());
    for (size_t i = cuts.size() - 1; i > 1; --i) {
      if (cuts[i] - cuts[i - 1] > 1) break;
      if (sums_[cuts[i]] - sums_[cuts[i - 1] - 1] > ring_.ring_bytes) break;
      --cuts[i - 1];
    }
    return cuts;
  }

  // Minimizes the sum of squares of rounds' free bytes, like line breaking of a
  // paragraph: few rounds, evenly full. Exposed copies weigh more than any
  // unevenness.
  Cuts Even() const {
    const size_t groups = sequence_.size();
    std::vector<double> costs(groups + 1, std::numeric_limits<double>::max());
    std::vector<size_t> from(groups + 1, 0);
    costs[0] = 0;
    for (size_t end = 1; end <= groups; ++end) {
      for (size_t begin = end; begin-- > 0;) {
        if (sums_[end] - sums_[begin] > ring_.ring_bytes) break;
        const double cost = costs[begin] + Cost(begin, end);
        if (cost < costs[end]) {
          costs[end] = cost;
          from[end] = begin;
        }
      }
    }
    Cuts cuts = {groups};
    while (cuts.back() > 0) cuts.push_back(from[cuts.back()]);
    std::reverse(cuts.begin(), cuts.end());
    return cuts;
  }

 private:
  uint64_t bytes(size_t i) const { return ring_.bytes[sequence_[i]]; }

  double Cost(size_t begin, size_t end) const {
    const auto ring = static_cast<double>(ring_.ring_bytes);
    const auto exposure = [&](size_t i) {
      return static_cast<double>(sequence_.size()) *
             (1 + static_cast<double>(bytes(i)) / ring);
    };
    const auto used = static_cast<double>(sums_[end] - sums_[begin]);
    const double room = 1 - used / ring;
    double cost = room * room;
    const size_t groups = sequence_.size();
    const size_t next = end % groups;
    // A lone group lies where the next round begins.
    if (end == begin + 1) cost += exposure(next);
    if (bytes(end - 1) + bytes(next) > ring_.ring_bytes) cost += exposure(next);
    return cost;
  }

  const RingProblem& ring_;
  std::vector<uint32_t> sequence_;
  std::vector<uint64_t> sums_ = {0};  // Prefix sums of the sequence.
};

// The longest run of groups that fits in the ring, across the end.
size_t LongestRound(const RingProblem& problem) {
  const size_t groups = problem.bytes.size();
  size_t longest = 0;
  size_t begin = 0;
  uint64_t used = 0;
  for (size_t end = 0; end < 2 * groups; ++end) {
    used += problem.bytes[end % groups];
    while (used > problem.ring_bytes || end - begin == groups) {
      used -= problem.bytes[begin++ % groups];
    }
    longest = std::max(longest, end + 1 - begin);
  }
  return longest;
}

// For orders that repeat groups: bottom and top as a 2-colouring of the graph
// of neighbouring steps. nullopt: not 2-colourable.
std::optional<std::vector<Slot>> TwoEnded(const RingProblem& problem) {
  const size_t groups = problem.bytes.size();
  std::vector<std::vector<uint32_t>> neighbours(groups);
  for (size_t i = 0; i < problem.steps.size(); ++i) {
    const uint32_t a = problem.steps[i];
    const uint32_t b = problem.steps[(i + 1) % problem.steps.size()];
    if (a == b) continue;
    neighbours[a].push_back(b);
    neighbours[b].push_back(a);
  }
  std::vector<int> ends(groups, -1);
  ends[0] = 0;  // The graph is connected: the steps visit all of it.
  std::vector<uint32_t> open = {0};
  while (!open.empty()) {
    const uint32_t group = open.back();
    open.pop_back();
    for (const uint32_t other : neighbours[group]) {
      if (ends[other] == ends[group]) return std::nullopt;
      if (ends[other] >= 0) continue;
      ends[other] = 1 - ends[group];
      open.push_back(other);
    }
  }
  std::vector<Slot> slots;
  for (size_t i = 0; i < groups; ++i) {
    const uint64_t top = problem.ring_bytes - problem.bytes[i];
    slots.push_back({ends[i] == 1 ? top : 0, problem.bytes[i]});
  }
  return slots;
}

bool IsBetter(const RingTraffic& a, const RingTraffic& b) {
  return std::tuple(a.exposed_bytes, b.lead, b.total_lead) <
         std::tuple(b.exposed_bytes, a.lead, a.total_lead);
}

class Best {
 public:
  explicit Best(const RingProblem& problem) : problem_(problem) {}

  void Try(std::vector<Slot> slots) {
    const RingTraffic traffic = MeasureRing(slots, problem_.steps);
    if (!best_.slots.empty() && !IsBetter(traffic, best_.traffic)) return;
    best_ = {std::move(slots), traffic};
  }

  void TryRounds(const std::vector<uint32_t>& sequence, const Cuts& cuts) {
    for (const bool spread : {true, false}) {
      std::vector<Slot> slots(sequence.size());
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        PlaceRound(problem_,
                   {sequence.begin() + static_cast<ptrdiff_t>(cuts[i]),
                    sequence.begin() + static_cast<ptrdiff_t>(cuts[i + 1])},
                   spread, slots);
      }
      Try(std::move(slots));
    }
  }

  RingLayout Take() && { return std::move(best_); }

 private:
  const RingProblem& problem_;
  RingLayout best_;
};

}  // namespace

RingTraffic MeasureRing(const std::vector<Slot>& slots,
                        const std::vector<uint32_t>& steps) {
  uint64_t end = 0;
  for (const Slot& slot : slots) end = std::max(end, slot.offset + slot.bytes);
  LastUse last_use(end);
  RingTraffic traffic;
  const auto pass = static_cast<int64_t>(steps.size());
  for (int64_t step = 0; step < 2 * pass; ++step) {
    const uint32_t group = steps[static_cast<size_t>(step % pass)];
    const int64_t last = last_use.Exchange(slots[group], step);
    // The first pass only fills the ring.
    if (step < pass) continue;
    // Its slot was not used since: it still has the group.
    if (steps[static_cast<size_t>(last % pass)] == group) continue;
    const auto lead = static_cast<uint32_t>(step - last);
    traffic.copied_bytes += slots[group].bytes;
    if (lead == 1) traffic.exposed_bytes += slots[group].bytes;
    traffic.lead = traffic.lead == 0 ? lead : std::min(traffic.lead, lead);
    traffic.total_lead += lead;
  }
  return traffic;
}

RingLayout LayOutRing(const RingProblem& problem) {
  HOIST_CHECK(!problem.bytes.empty() && !problem.steps.empty());
  const size_t groups = problem.bytes.size();
  const size_t longest = LongestRound(problem);
  // Any cuts of the cycle have one within the longest round's length.
  const size_t rotations =
      std::min(longest, std::clamp(kRotationsTimesSteps / problem.steps.size(),
                                   kMinRotations, kMaxRotations));
  const bool many = groups * longest > kMaxCutWork;
  Best best(problem);
  for (size_t rotation = 0; rotation < rotations; ++rotation) {
    const Cutter cutter(problem, rotation);
    best.TryRounds(cutter.sequence(), cutter.Greedy());
    if (!many) best.TryRounds(cutter.sequence(), cutter.Even());
  }
  if (groups > 1 && groups < problem.steps.size()) {
    if (auto slots = TwoEnded(problem)) best.Try(*std::move(slots));
  }
  return std::move(best).Take();
}

}  // namespace hoistd
