// Which pieces of what is read in place are worth device memory.
#ifndef HOIST_CLIENT_SRC_HOT_SET_H_
#define HOIST_CLIENT_SRC_HOT_SET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hoist {

// What is read of each piece in a pass: a mean over passes, of which older ones
// count less, so that it follows a change.
class Heat {
 public:
  // So many passes halve what was before.
  static constexpr double kHalfLife = 64;
  // As many as what others told stands for.
  static constexpr double kSeed = 16;

  explicit Heat(size_t pieces) : read_(pieces, 0) {}

  // Bytes that were read of each piece since the last call. `passes`: how often
  // each unit would have been touched if all were touched alike.
  void Add(std::span<const double> read, double passes);
  // What others' passes read of each piece, before any of its own.
  void Seed(std::span<const double> read_a_pass);
  // Of one piece, in a pass.
  double Of(size_t piece) const;

 private:
  std::vector<double> read_;  // In all passes, older ones less.
  double passes_ = 0;         // Likewise.
};

struct HotPiece {
  uint64_t bytes = 0;  // On the device.
  double heat = 0;
  bool hot = false;
};

// Those that are to be hot: the most heat a byte, as many as the budget holds.
// What is hot stays unless another is worth kStays times as much, so that equal
// ones do not take turns. Where heat is equal, those that come first in a walk
// with even strides, so that every tensor has its part. Pure.
inline constexpr double kStays = 1.25;
std::vector<bool> ChooseHot(std::span<const HotPiece> pieces,
                            uint64_t budget_bytes);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_HOT_SET_H_
