#include "client/src/in_place/hot_set.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hoist {
namespace {

// A low-discrepancy sequence in [0, 1): the golden ratio's multiples. In its
// order, the first indices are spread evenly, however many they are.
double Spread(size_t i) {
  constexpr double kGolden = 0.6180339887498949;
  double whole;
  return std::modf(static_cast<double>(i + 1) * kGolden, &whole);
}

}  // namespace

void Heat::Add(std::span<const double> read, double passes) {
  const double kept = std::exp2(-passes / kHalfLife);
  for (size_t i = 0; i < read_.size(); ++i) {
    read_[i] = read_[i] * kept + read[i];
  }
  passes_ = passes_ * kept + passes;
}

void Heat::Seed(std::span<const double> read_a_pass) {
  for (size_t i = 0; i < read_.size(); ++i) read_[i] = read_a_pass[i] * kSeed;
  passes_ = kSeed;
}

double Heat::OfAPass(size_t piece) const {
  return passes_ > 0 ? read_[piece] / passes_ : 0;
}

std::vector<bool> ChooseHot(std::span<const HotPiece> pieces,
                            uint64_t room_bytes) {
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto worth = [&](size_t i) {
    const HotPiece& piece = pieces[i];
    if (piece.bytes == 0) return 0.0;
    const double reads = piece.heat / static_cast<double>(piece.bytes);
    return piece.hot && reads > 0 ? reads + kStays : reads;
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const double x = worth(a), y = worth(b);
    if (x != y) return x > y;
    if (pieces[a].hot != pieces[b].hot) return pieces[a].hot;
    return Spread(a) < Spread(b);
  });
  std::vector<bool> hot(pieces.size(), false);
  uint64_t taken = 0;
  for (const size_t i : order) {
    if (pieces[i].bytes > room_bytes - taken) continue;
    hot[i] = true;
    taken += pieces[i].bytes;
  }
  return hot;
}

}  // namespace hoist
