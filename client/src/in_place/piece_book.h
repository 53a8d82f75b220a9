// The states of in-place pieces: cold, hot or between.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_PIECE_BOOK_H_
#define HOIST_CLIENT_SRC_IN_PLACE_PIECE_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "client/src/in_place/hot_set.h"

namespace hoist {

enum class PieceState {
  kCold,
  kComing,   // Being copied to the device.
  kWaiting,  // On the device; the tensor still maps the host's.
  kHot,
  kLeaving,  // Hot, to become cold.
};

// It moves and maps nothing: it decides which pieces to copy and to remap, and
// records the results. A device lease ends only after the tensor no longer maps
// its memory.
//
// Threads:  none of its own; its owner locks.
class PieceBook {
 public:
  // Each piece's bytes on the device. All are cold.
  explicit PieceBook(const std::vector<uint64_t>& bytes);

  size_t size() const { return pieces_.size(); }
  PieceState StateOf(size_t piece) const { return pieces_[piece].state; }
  // Whether the tensor maps device memory there.
  bool IsHot(size_t piece) const;
  // Whether the last choice makes it hot.
  bool wanted(size_t piece) const { return pieces_[piece].wanted; }
  Heat& heat() { return heat_; }
  const Heat& heat() const { return heat_; }
  // Device memory of all that are not cold.
  uint64_t device_bytes() const;

  // Sets the pieces that are to be hot, by their heat.
  void Choose(uint64_t budget_bytes);
  // The hottest wanted cold pieces that fit beside the others. They are kComing
  // until each has come or failed.
  std::vector<size_t> NextToBring(uint64_t budget_bytes);
  void Came(size_t piece, uint64_t lease);
  void DidNotCome(size_t piece);

  // Whether it is to be remapped.
  bool MayPlace(size_t piece) const;
  size_t CountToPlace() const;
  // It was remapped: the tensor maps its other memory.
  void Placed(size_t piece);

  // Adds an ended lease that no piece has.
  void Leave(uint64_t lease) { left_.push_back(lease); }
  // Ended leases, each once.
  std::vector<uint64_t> TakeLeft() { return std::exchange(left_, {}); }
  // Ends all leases on the device: no tensor maps their memory any more.
  void LeaveAll();

 private:
  struct Piece {
    uint64_t bytes = 0;
    PieceState state = PieceState::kCold;
    bool wanted = false;
    uint64_t lease = 0;  // On the device, once it has come; 0: none.
  };

  std::vector<Piece> pieces_;
  Heat heat_;
  std::vector<uint64_t> left_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IN_PLACE_PIECE_BOOK_H_
