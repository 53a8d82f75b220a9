// Which pieces of tensors in place are hot, and which are on their way.
#ifndef HOIST_CLIENT_SRC_PIECE_BOOK_H_
#define HOIST_CLIENT_SRC_PIECE_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "client/src/hot_set.h"

namespace hoist {

enum class PieceState {
  kCold,
  kComing,   // It is being copied to the device.
  kWaiting,  // It is there, and the tensor has it from the host.
  kHot,
  kLeaving,  // Hot, and to be cold.
};

// It moves and maps nothing: it says what is to be copied to the device and
// what is to change places, and is told when that was done. A lease on the
// device is over once the tensor shows its memory no more, and not before.
//
// Threads:  none of its own; its owner locks.
class PieceBook {
 public:
  // Of each piece, what it takes of the device. All are cold.
  explicit PieceBook(const std::vector<uint64_t>& bytes);

  size_t size() const { return pieces_.size(); }
  PieceState StateOf(size_t piece) const { return pieces_[piece].state; }
  // Whether the tensor shows the device's memory there.
  bool IsHot(size_t piece) const;
  // Whether it is to be hot, as was chosen last.
  bool wanted(size_t piece) const { return pieces_[piece].wanted; }
  Heat& heat() { return heat_; }
  const Heat& heat() const { return heat_; }
  // Of the device, by all that are not cold.
  uint64_t device_bytes() const;

  // Which are to be hot, by their heat.
  void Choose(uint64_t budget_bytes);
  // The hottest that are wanted and cold, as far as there is room beside the
  // others. They are coming from now on, until each came or did not.
  std::vector<size_t> NextToBring(uint64_t budget_bytes);
  void Came(size_t piece, uint64_t lease);
  void DidNotCome(size_t piece);

  // Whether it is to change places.
  bool MayPlace(size_t piece) const;
  size_t CountToPlace() const;
  // It has: the tensor shows its other memory.
  void Placed(size_t piece);

  // A lease that is of no piece, and over.
  void Leave(uint64_t lease) { left_.push_back(lease); }
  // Leases that are over, each once.
  std::vector<uint64_t> TakeLeft() { return std::exchange(left_, {}); }
  // All that there are on the device: no tensor shows anything any more.
  void LeaveAll();

 private:
  struct Piece {
    uint64_t bytes = 0;
    PieceState state = PieceState::kCold;
    bool wanted = false;
    uint64_t lease = 0;  // On the device, from when it came; 0: none.
  };

  std::vector<Piece> pieces_;
  Heat heat_;
  std::vector<uint64_t> left_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PIECE_BOOK_H_
