// Selects the in-place pieces that are worth device memory.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_HOT_SET_H_
#define HOIST_CLIENT_SRC_IN_PLACE_HOT_SET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hoist {

// The mean bytes read of each piece per pass. Old passes decay, so that it
// follows changes.
class Heat {
 public:
  // Half-life in passes.
  static constexpr double kHalfLife = 64;
  // The weight of others' reports, in passes.
  static constexpr double kSeed = 16;

  explicit Heat(size_t pieces) : read_(pieces, 0) {}

  // Adds the bytes read of each piece since the last call. `passes`: the mean
  // touches of a unit.
  void Add(std::span<const double> read, double passes);
  // Starts with other workers' reads of each piece, before any own pass.
  void Seed(std::span<const double> read_a_pass);
  // Bytes per pass of one piece.
  double Of(size_t piece) const;

 private:
  std::vector<double> read_;  // Over all passes, with decay.
  double passes_ = 0;         // Likewise.
};

struct HotPiece {
  uint64_t bytes = 0;  // On the device.
  double heat = 0;
  bool hot = false;
};

// Selects the pieces with the most heat per byte that fit the budget. A hot
// piece stays unless another has kStays times its heat, so that equal ones do
// not alternate. A walk with even strides breaks ties, so that every tensor
// gets a part. Pure.
inline constexpr double kStays = 1.25;
std::vector<bool> ChooseHot(std::span<const HotPiece> pieces,
                            uint64_t room_bytes);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IN_PLACE_HOT_SET_H_
