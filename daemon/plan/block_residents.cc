#include "daemon/plan/block_residents.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/plan/subset_sum.h"

namespace hoistd {
namespace {

constexpr uint64_t kSteps = 256;  // Of the largest block.
constexpr uint64_t kMinSteps = 16;
constexpr uint64_t kStepsTimesPass = uint64_t{1} << 20;
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
        std::clamp(kStepsTimesPass / problem_.pass.size(), kMinSteps, kSteps);
    Streamed below;  // By the cap before, which does not fit.
    Streamed most;
    // The last step streams all, which fits.
    for (uint64_t step = 0; step <= steps; ++step) {
      below = std::exchange(most, UpTo(largest_ / steps * step +
                                       largest_ % steps * step / steps));
      if (Fit(most, false)) break;
    }
    most = Even(most);
    std::optional<Choice> alike = Fit(most, false);
    HOIST_CHECK(alike.has_value());
    Fill(below, *alike);
    std::optional<Choice> in_turns = Fit(Alternate(below, most), true);
    if (in_turns.has_value()) Fill(below, *in_turns);
    const bool better =
        in_turns.has_value() && Sum(in_turns->streamed) < Sum(alike->streamed);
    return Made(better ? *in_turns : *alike);
  }

 private:
  using Streamed = std::vector<std::vector<uint32_t>>;  // Of each block.

  struct Choice {
    Streamed streamed;
    // The ring holds any two in a row, not any two: none drops out of the row.
    bool in_turns = false;
    uint64_t room = 0;  // The budget's rest.
  };

  std::vector<uint64_t> BytesOf(const Streamed& streamed) const {
    std::vector<uint64_t> bytes;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      bytes.push_back(blocks_[i].Bytes(streamed[i]));
    }
    return bytes;
  }

  uint64_t Sum(const Streamed& streamed) const {
    const std::vector<uint64_t> bytes = BytesOf(streamed);
    return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  }

  // The blocks that stream, in a circle without equal neighbours.
  std::vector<uint32_t> Row(const Streamed& streamed) const {
    std::vector<uint32_t> row;
    for (const uint32_t block : problem_.pass) {
      if (streamed[block].empty()) continue;
      if (row.empty() || row.back() != block) row.push_back(block);
    }
    if (row.size() > 1 && row.back() == row.front()) row.pop_back();
    return row;
  }

  // Of an odd row a copy is exposed: without the smallest block, if that fits.
  Streamed Even(const Streamed& most) const {
    const std::vector<uint32_t> row = Row(most);
    if (row.size() % 2 == 0 || row.size() < 3) return most;
    Streamed even = most;
    even[*std::min_element(row.begin(), row.end(), [&](uint32_t a, uint32_t b) {
      return blocks_[a].Bytes(most[a]) < blocks_[b].Bytes(most[b]);
    })].clear();
    return Row(even).size() % 2 == 0 && Fit(even, false) ? even : most;
  }

  uint64_t RingBytes(const Streamed& streamed, bool in_turns) const {
    const std::vector<uint64_t> bytes = BytesOf(streamed);
    Top top;
    for (const uint64_t one : bytes) top.Add(one);
    if (!in_turns) return top.first + std::max(top.second, problem_.slack);
    uint64_t ring = top.first + problem_.slack;
    const std::vector<uint32_t> row = Row(streamed);
    for (size_t i = 0; row.size() > 1 && i < row.size(); ++i) {
      const uint32_t next = row[(i + 1) % row.size()];
      ring = std::max(ring, bytes[row[i]] + bytes[next]);
    }
    return ring;
  }

  Streamed UpTo(uint64_t cap) const {
    Streamed streamed;
    for (const Block& block : blocks_) {
      streamed.push_back(block.StreamedUpTo(cap));
    }
    return streamed;
  }

  std::optional<Choice> Fit(Streamed streamed, bool in_turns) const {
    const uint64_t bytes = Sum(streamed);
    const uint64_t need = all_ - bytes + RingBytes(streamed, in_turns);
    if (bytes == 0 || need > problem_.budget) return std::nullopt;
    return Choice{std::move(streamed), in_turns, problem_.budget - need};
  }

  // The bytes that this saves; nullopt: too many. The compute of one block
  // could not hide the copy of a neighbour that streams far more.
  std::optional<uint64_t> Lowers(const Streamed& below, const Streamed& most,
                                 size_t i) const {
    const uint64_t bytes = blocks_[i].Bytes(most[i]);
    const uint64_t left = blocks_[i].Bytes(below[i]);
    if (left < bytes / 2 || left >= bytes) return std::nullopt;
    return bytes - left;
  }

  // Every second block that streams has the lower cap. Of an odd number the
  // first and the last are neighbours, so both have it.
  Streamed Alternate(const Streamed& below, Streamed most) const {
    bool lowers = true;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (most[i].empty()) continue;
      if (lowers && Lowers(below, most, i)) most[i] = below[i];
      lowers = !lowers;
    }
    return most;
  }

  // The lower cap first, so that blocks stream about as much. Then in rounds,
  // each of which keeps a group of each block: the largest that the room holds.
  void Fill(const Streamed& below, Choice& choice) const {
    const std::vector<uint32_t> spread = Spread(blocks_.size());
    for (const uint32_t i : spread) {
      const std::optional<uint64_t> saved = Lowers(below, choice.streamed, i);
      if (!saved.has_value() || *saved > choice.room) continue;
      choice.room -= *saved;
      choice.streamed[i] = below[i];
    }
    for (bool kept = true; kept;) {
      kept = false;
      for (const uint32_t i : spread) kept |= KeepOne(choice, i);
    }
  }

  bool KeepOne(Choice& choice, uint32_t block) const {
    std::vector<uint32_t>& streamed = choice.streamed[block];
    if (choice.in_turns && streamed.size() == 1) return false;
    auto best = streamed.end();
    for (auto it = streamed.begin(); it != streamed.end(); ++it) {
      const uint64_t bytes = problem_.bytes[*it];
      if (bytes > choice.room) continue;
      if (best == streamed.end() || bytes > problem_.bytes[*best]) best = it;
    }
    if (best == streamed.end()) return false;
    choice.room -= problem_.bytes[*best];
    streamed.erase(best);
    return true;
  }

  BlockResidents Made(const Choice& choice) const {
    BlockResidents made;
    made.resident.assign(problem_.bytes.size(), true);
    for (const auto& groups : choice.streamed) {
      for (const uint32_t group : groups) made.resident[group] = false;
    }
    made.ring_bytes = std::min(RingBytes(choice.streamed, choice.in_turns),
                               Sum(choice.streamed));
    return made;
  }

  const BlockProblem& problem_;
  std::vector<Block> blocks_;
  uint64_t all_ = 0;
  uint64_t largest_ = 0;
};

}  // namespace

BlockResidents ChooseInBlocks(const BlockProblem& problem) {
  return InBlocks(problem).Make();
}

}  // namespace hoistd
