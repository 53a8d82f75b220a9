// Which pieces of what is read in place are worth device memory.
#ifndef HOIST_CLIENT_SRC_HOT_SET_H_
#define HOIST_CLIENT_SRC_HOT_SET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hoist {

// What each piece is read, beside others: a running sum of touches of which
// older ones count less, so that the sum stays finite and follows a change.
class Heat {
 public:
  // Touches of a whole unit of work (a token, a row) that halve what was.
  static constexpr double kHalfLife = 64;

  explicit Heat(size_t pieces) : heat_(pieces, 0) {}

  // Of all pieces, since the last call. `passes`: how often each would have
  // been touched if all were touched alike.
  void Add(std::span<const double> touches, double passes);
  // Somebody else's, of the same pieces, taken as what was before.
  void Seed(std::span<const float> heat);
  const std::vector<double>& all() const { return heat_; }

 private:
  std::vector<double> heat_;
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
