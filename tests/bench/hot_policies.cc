#include "tests/bench/hot_policies.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "client/src/in_place/hot_set.h"

namespace hoist::bench {
namespace {

// The experts of most worth. Hot ones stay at equal worth.
std::vector<bool> MostWorth(const std::vector<double>& worth,
                            const std::vector<bool>& hot, size_t room) {
  std::vector<size_t> order(worth.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto cut = order.begin() + static_cast<ptrdiff_t>(room);
  std::nth_element(order.begin(), cut, order.end(), [&](size_t a, size_t b) {
    if (worth[a] != worth[b]) return worth[a] > worth[b];
    return hot[a] != hot[b] ? hot[a] : a < b;
  });
  std::vector<bool> chosen(worth.size(), false);
  std::for_each(order.begin(), cut, [&](size_t i) { chosen[i] = true; });
  return chosen;
}

// The least recently used leave for each one that was read.
HotPolicy Lru(size_t experts, size_t room) {
  return [room, step_count = 0, last = std::vector<double>(experts, 0)](
             const RoutingStep& step, const std::vector<bool>& hot) mutable {
    ++step_count;
    for (size_t i = 0; i < last.size(); ++i) {
      if (step.touches[i] > 0) last[i] = step_count;
    }
    return MostWorth(last, hot, room);
  };
}

// The most read, where reads halve over `half_life` steps: LRFU's family. A hot
// expert that was read counts `stays` reads more.
HotPolicy Frequency(size_t experts, size_t room, double half_life,
                    double stays) {
  return [room, stays, kept = std::exp2(-1 / half_life),
          reads = std::vector<double>(experts, 0)](
             const RoutingStep& step, const std::vector<bool>& hot) mutable {
    std::vector<double> worth(reads.size());
    for (size_t i = 0; i < reads.size(); ++i) {
      reads[i] = reads[i] * kept + (step.touches[i] > 0 ? 1 : 0);
      worth[i] = reads[i] + (hot[i] && reads[i] > 0 ? stays : 0);
    }
    return MostWorth(worth, hot, room);
  };
}

// libhoist's.
HotPolicy Hoist(size_t experts, size_t room) {
  return [room, heat = Heat(experts)](const RoutingStep& step,
                                      const std::vector<bool>& hot) mutable {
    std::vector<double> read;
    for (const double touches : step.touches) read.push_back(touches > 0);
    heat.Add(read, 1);
    std::vector<HotPiece> pieces;
    for (size_t i = 0; i < hot.size(); ++i) {
      pieces.push_back({1, heat.Of(i), hot[i]});
    }
    return ChooseHot(pieces, room);
  };
}

// Knows the generator's odds of the next step.
HotPolicy Informed(size_t room) {
  return [room](const RoutingStep& step, const std::vector<bool>& hot) {
    return MostWorth(step.odds, hot, room);
  };
}

struct Life {
  HotTraffic traffic;
  double hot_steps = 0;

  void Add(const Life& other, double part) {
    traffic.reads += part * other.traffic.reads;
    traffic.missed += part * other.traffic.missed;
    traffic.moved += part * other.traffic.moved;
    hot_steps += part * other.hot_steps;
  }
};

// One expert's best life for a price of its room: a choice after each read. The
// first of `read_at` is the begin, when it may be hot for nothing.
Life BestLife(const std::vector<size_t>& read_at, double price) {
  enum : char { kCold, kHot };
  // The most saved up to a read, if cold or hot after it, and the state before.
  std::vector<std::array<char, 2>> before(read_at.size());
  double cold = 0, hot = 0;
  for (size_t i = 1; i < read_at.size(); ++i) {
    const double stays =
        hot + 1 - price * static_cast<double>(read_at[i] - read_at[i - 1]);
    const double comes = cold - 1;
    before[i] = {cold >= stays ? kCold : kHot, stays >= comes ? kHot : kCold};
    cold = std::max(cold, stays);
    hot = std::max(stays, comes);
  }
  Life life;
  char state = cold >= hot ? kCold : kHot;
  for (size_t i = read_at.size() - 1; i > 0; --i) {
    const char was = before[i][static_cast<size_t>(state)];
    ++life.traffic.reads;
    if (was == kHot) {
      life.hot_steps += static_cast<double>(read_at[i] - read_at[i - 1]);
    } else {
      ++life.traffic.missed;
      life.traffic.moved += state == kHot ? 1 : 0;
    }
    state = was;
  }
  return life;
}

}  // namespace

std::vector<NamedPolicy> HotPolicies(size_t experts, size_t room) {
  std::vector<NamedPolicy> all;
  all.push_back(
      {"unmoved", [](const RoutingStep&, const auto& hot) { return hot; }});
  all.push_back({"lru", Lru(experts, room)});
  for (const int half_life : {16, 64, 256}) {
    all.push_back({"frequency " + std::to_string(half_life),
                   Frequency(experts, room, half_life, 0)});
  }
  for (const int half_life : {16, 32, 256}) {
    all.push_back({"worth " + std::to_string(half_life),
                   Frequency(experts, room, half_life, kStays)});
  }
  all.push_back({"hoist", Hoist(experts, room)});
  all.push_back({"informed", Informed(room)});
  return all;
}

HotTraffic Replay(std::span<const RoutingStep> steps, size_t room,
                  const HotPolicy& policy) {
  const size_t experts = steps[0].touches.size();
  std::vector<bool> hot(experts, false);
  for (size_t i = 0; i < room; ++i) hot[i * experts / room] = true;
  HotTraffic traffic;
  for (size_t n = 0; n < steps.size(); ++n) {
    const bool counts = n >= steps.size() / 2;
    for (size_t i = 0; i < experts && counts; ++i) {
      if (steps[n].touches[i] == 0) continue;
      ++traffic.reads;
      traffic.missed += hot[i] ? 0 : 1;
    }
    const std::vector<bool> next = policy(steps[n], hot);
    for (size_t i = 0; i < experts && counts; ++i) {
      traffic.moved += next[i] && !hot[i] ? 1 : 0;
    }
    hot = next;
  }
  return traffic;
}

HotTraffic LeastTraffic(std::span<const RoutingStep> steps, size_t room) {
  const size_t begin = steps.size() / 2;
  std::vector<std::vector<size_t>> read_at(steps[0].touches.size(), {begin});
  for (size_t n = begin; n < steps.size(); ++n) {
    for (size_t i = 0; i < read_at.size(); ++i) {
      if (steps[n].touches[i] > 0) read_at[i].push_back(n + 1);
    }
  }
  const auto all_at = [&](double price) {
    Life all;
    for (const auto& reads : read_at) all.Add(BestLife(reads, price), 1);
    return all;
  };
  // Around the price at which the hot ones just fit. The best mix of the lives
  // on both sides fills the room.
  constexpr int kHalvings = 30;
  const auto fill = static_cast<double>(room * (steps.size() - begin));
  double low = 0, high = 1;
  Life above = all_at(low), below = all_at(high);
  if (above.hot_steps <= fill) return above.traffic;
  for (int halving = 0; halving < kHalvings; ++halving) {
    const double price = (low + high) / 2;
    const Life all = all_at(price);
    const bool fits = all.hot_steps <= fill;
    (fits ? high : low) = price;
    (fits ? below : above) = all;
  }
  const double part =
      (fill - below.hot_steps) / (above.hot_steps - below.hot_steps);
  Life mix;
  mix.Add(below, 1 - part);
  mix.Add(above, part);
  return mix.traffic;
}

}  // namespace hoist::bench
