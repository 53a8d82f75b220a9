#include "tests/bench/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace hoist::bench {
namespace {

using Ranking = std::vector<uint32_t>;  // Experts of a layer, first rank first.

class Router {
 public:
  Router(const RoutingSpec& spec, const RoutingOptions& options)
      : spec_(spec), options_(options), random_(options.seed) {
    for (uint32_t r = 0; r < options.experts; ++r) {
      odds_.push_back(std::pow(r + spec.offset, -spec.power));
    }
    up_to_.resize(odds_.size());
    std::partial_sum(odds_.begin(), odds_.end(), up_to_.begin());
    const std::vector<Ranking> first = NewRankings();
    for (uint32_t s = 0; s < options.sequences; ++s) {
      const bool shared = spec.ranks == Ranks::kStatic;
      rankings_.push_back(shared ? first : NewRankings());
      // Prompts end at different times.
      prompt_left_.push_back(1 + Below(options.prompt));
    }
  }

  RoutingStep Next() {
    const size_t all = size_t{options_.layers} * options_.experts;
    RoutingStep step{std::vector<double>(all, 0), std::vector<double>(all, 0)};
    for (uint32_t s = 0; s < options_.sequences; ++s) {
      for (uint32_t layer = 0; layer < options_.layers; ++layer) {
        ChooseExperts(rankings_[s][layer], &step.touches[FirstOf(layer)]);
      }
      if (spec_.ranks == Ranks::kPrompt && --prompt_left_[s] == 0) {
        prompt_left_[s] = options_.prompt;
        rankings_[s] = NewRankings();
      }
      AddOdds(rankings_[s], step.odds);
    }
    return step;
  }

 private:
  size_t FirstOf(uint32_t layer) const {
    return size_t{layer} * options_.experts;
  }
  // The standard library's distributions differ between implementations.
  uint32_t Below(uint32_t bound) {
    return static_cast<uint32_t>(random_() % bound);
  }

  std::vector<Ranking> NewRankings() {
    std::vector<Ranking> rankings(options_.layers);
    for (Ranking& ranking : rankings) {
      ranking.resize(options_.experts);
      std::iota(ranking.begin(), ranking.end(), 0u);
      for (uint32_t i = options_.experts; i > 1; --i) {
        std::swap(ranking[i - 1], ranking[Below(i)]);
      }
    }
    return rankings;
  }

  uint32_t DrawRank() {
    const double at = static_cast<double>(random_() >> 11) * 0x1p-53;
    const auto found =
        std::upper_bound(up_to_.begin(), up_to_.end() - 1, at * up_to_.back());
    return static_cast<uint32_t>(found - up_to_.begin());
  }

  void ChooseExperts(Ranking& ranking, double* touches) {
    std::vector<uint32_t> chosen;
    while (chosen.size() < options_.chosen) {
      const uint32_t expert = ranking[DrawRank()];
      if (std::ranges::count(chosen, expert) == 0) chosen.push_back(expert);
    }
    for (const uint32_t expert : chosen) {
      ++touches[expert];
      if (spec_.ranks != Ranks::kRecency) continue;
      const auto at = std::ranges::find(ranking, expert);
      std::rotate(ranking.begin(), at, at + 1);
    }
  }

  void AddOdds(const std::vector<Ranking>& rankings,
               std::vector<double>& odds) const {
    const double part = options_.chosen / up_to_.back();
    for (uint32_t layer = 0; layer < options_.layers; ++layer) {
      for (uint32_t r = 0; r < options_.experts; ++r) {
        odds[FirstOf(layer) + rankings[layer][r]] += odds_[r] * part;
      }
    }
  }

  const RoutingSpec& spec_;
  const RoutingOptions& options_;
  std::mt19937_64 random_;
  std::vector<double> odds_;                    // By rank.
  std::vector<double> up_to_;                   // Their sums.
  std::vector<std::vector<Ranking>> rankings_;  // By sequence and layer.
  std::vector<uint32_t> prompt_left_;           // By sequence.
};

}  // namespace

std::vector<RoutingSpec> RoutingSpecs() {
  return {{"static skew", Ranks::kStatic, 1, 1},
          {"recency", Ranks::kRecency, 1.1, 2},
          {"prompts", Ranks::kPrompt, 1, 1}};
}

std::vector<RoutingStep> Route(const RoutingSpec& spec,
                               const RoutingOptions& options) {
  Router router(spec, options);
  std::vector<RoutingStep> steps;
  for (uint32_t i = 0; i < options.steps; ++i) steps.push_back(router.Next());
  return steps;
}

}  // namespace hoist::bench
