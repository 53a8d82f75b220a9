// Selects the in-place pieces that are worth device memory.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_HOT_SET_H_
#define HOIST_CLIENT_SRC_IN_PLACE_HOT_SET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hoist {

// The bytes read of each piece by the last passes. Old passes decay, so that it
// follows changes.
class Heat {
 public:
  // In passes.
  static constexpr double kHalfLife = 64;
  // The weight of others' reports, in passes.
  static constexpr double kSeed = 16;

  explicit Heat(size_t pieces) : read_(pieces, 0) {}

  // Adds the bytes read of each piece since the last call, by so many passes.
  void Add(std::span<const double> read, double passes);
  // Starts with other workers' reads of each piece, before any own pass.
  void Seed(std::span<const double> read_a_pass);
  // Bytes read of one piece, with decay.
  double Of(size_t piece) const { return read_[piece]; }
  // The same for the mean pass.
  double OfAPass(size_t piece) const;

 private:
  std::vector<double> read_;
  double passes_ = 0;  // With decay.
};

struct HotPiece {
  uint64_t bytes = 0;  // On the device.
  double heat = 0;
  bool hot = false;
};

// Selects the pieces that were read most, per byte, that fit the budget. A hot
// piece that was read stays unless another was read kStays times more: an
// exchange costs a copy, which is a read's bytes, and two remaps, each of which
// takes about as long as a read of some MiB. So no exchange costs more than it
// would have saved. A walk with even strides breaks ties, so that every tensor
// gets a part. Pure.
inline constexpr double kStays = 3;
std::vector<bool> ChooseHot(std::span<const HotPiece> pieces,
                            uint64_t room_bytes);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IN_PLACE_HOT_SET_H_
