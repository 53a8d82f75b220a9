#include "daemon/plan/block_residents.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>

#include "daemon/base/check.h"
#include "daemon/plan/subset_sum.h"

namespace hoistd {
namespace {

constexpr uint64_t kSteps = 256;  // Of the largest block.
constexpr uint64_t kMinSteps = 16;
constexpr uint64_t kStepsTimesBlocks = uint64_t{1} << 20;
constexpr uint64_t kUnits = 4096;  // Sums are counted in parts of a block.

// The groups of one block that can stream together, by their sum.
class Block {
 public:
  Block(const BlockProblem& problem, const std::vector<uint32_t>& groups,
        uint64_t unit)
      : problem_(problem), groups_(groups), unit_(unit), sums_(Limit()) {
    for (const uint32_t group : groups_) sums_.Add(Units(group));
  }

  // The most bytes up to `cap`.
  std::vector<uint32_t> StreamedUpTo(uint64_t cap) const {
    if (Bytes(groups_) <= cap) return groups_;
    std::vector<uint32_t> found;
    for (const uint32_t item : sums_.ItemsOf(sums_.LargestUpTo(cap / unit_))) {
      found.push_back(groups_[item]);
    }
    return found;
  }

  uint64_t Bytes(const std::vector<uint32_t>& groups) const {
    uint64_t bytes = 0;
    for (const uint32_t group : groups) bytes += problem_.bytes[group];
    return bytes;
  }

 private:
  uint64_t Units(uint32_t group) const {
    return (problem_.bytes[group] - 1) / unit_ + 1;
  }
  uint64_t Limit() const {
    uint64_t units = 0;
    for (const uint32_t group : groups_) units += Units(group);
    return units;
  }

  const BlockProblem& problem_;
  const std::vector<uint32_t>& groups_;
  const uint64_t unit_;
  SubsetSums sums_;
};

// The two largest of a sequence.
struct Top {
  uint64_t first = 0;
  uint64_t second = 0;

  void Add(uint64_t bytes) {
    second = std::max(second, std::min(first, bytes));
    first = std::max(first, bytes);
  }
};

// Numbers below `count`, neighbours far apart: each step is the golden section
// of the circle.
std::vector<uint32_t> Spread(size_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  const auto at = [](uint32_t i) { return i * uint32_t{2654435769u}; };
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return at(a) < at(b); });
  return order;
}

class InBlocks {
 public:
  explicit InBlocks(const BlockProblem& problem) : problem_(problem) {
    std::vector<uint64_t> sums;
    for (const auto& groups : problem.blocks) {
      sums.push_back(0);
      for (const uint32_t group : groups) sums.back() += problem.bytes[group];
    }
    all_ = std::accumulate(sums.begin(), sums.end(), uint64_t{0});
    largest_ = *std::max_element(sums.begin(), sums.end());
    const uint64_t unit = (largest_ - 1) / kUnits + 1;
    for (const auto& groups : problem.blocks) {
      blocks_.emplace_back(problem, groups, unit);
    }
  }

  BlockResidents Make() {
    const uint64_t steps =
        std::clamp(kStepsTimesBlocks / blocks_.size(), kMinSteps, kSteps);
    // The last step streams all, which fits.
    for (uint64_t step = 0; step <= steps; ++step) {
      if (TryCap(largest_ / steps * step + largest_ % steps * step / steps)) {
        break;
      }
    }
    HOIST_CHECK(room_.has_value());
    Fill();
    BlockResidents made;
    made.resident.assign(problem_.bytes.size(), true);
    uint64_t streamed = 0;
    for (const auto& groups : streamed_) {
      for (const uint32_t group : groups) {
        made.resident[group] = false;
        streamed += problem_.bytes[group];
      }
    }
    made.ring_bytes = std::min(RingBytes(), streamed);
    return made;
  }

 private:
  uint64_t RingBytes() const {
    Top top;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      top.Add(blocks_[i].Bytes(streamed_[i]));
    }
    return top.first + std::max(top.second, problem_.slack);
  }

  bool TryCap(uint64_t cap) {
    streamed_.clear();
    uint64_t streamed = 0;
    for (const Block& block : blocks_) {
      streamed_.push_back(block.StreamedUpTo(cap));
      streamed += block.Bytes(streamed_.back());
    }
    const uint64_t need = all_ - streamed + RingBytes();
    if (streamed == 0 || need > problem_.budget) return false;
    room_ = problem_.budget - need;
    return true;
  }

  // In rounds, each of which keeps a group of each block: the largest that the
  // room holds.
  void Fill() {
    const std::vector<uint32_t> spread = Spread(blocks_.size());
    for (bool kept = true; kept;) {
      kept = false;
      for (const uint32_t i : spread) kept |= KeepOne(streamed_[i]);
    }
  }

  bool KeepOne(std::vector<uint32_t>& streamed) {
    auto best = streamed.end();
    for (auto it = streamed.begin(); it != streamed.end(); ++it) {
      const uint64_t bytes = problem_.bytes[*it];
      if (bytes > *room_) continue;
      if (best == streamed.end() || bytes > problem_.bytes[*best]) best = it;
    }
    if (best == streamed.end()) return false;
    *room_ -= problem_.bytes[*best];
    streamed.erase(best);
    return true;
  }

  const BlockProblem& problem_;
  std::vector<Block> blocks_;
  uint64_t all_ = 0;
  uint64_t largest_ = 0;
  std::vector<std::vector<uint32_t>> streamed_;  // Of each block.
  std::optional<uint64_t> room_;  // Left by them; nullopt: they do not fit.
};

}  // namespace

BlockResidents ChooseInBlocks(const BlockProblem& problem) {
  return InBlocks(problem).Make();
}

}  // namespace hoistd
