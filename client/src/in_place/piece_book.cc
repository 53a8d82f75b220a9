#include "client/src/in_place/piece_book.h"

#include <algorithm>

namespace hoist {

using State = PieceState;

PieceBook::PieceBook(const std::vector<uint64_t>& bytes) : heat_(bytes.size()) {
  for (const uint64_t of : bytes) pieces_.push_back({.bytes = of});
}

bool PieceBook::IsHot(size_t piece) const {
  const State state = StateOf(piece);
  return state == State::kHot || state == State::kLeaving;
}

uint64_t PieceBook::device_bytes() const {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces_) {
    if (piece.state != State::kCold) bytes += piece.bytes;
  }
  return bytes;
}

void PieceBook::Choose(uint64_t budget_bytes) {
  std::vector<HotPiece> all;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const State state = pieces_[i].state;
    all.push_back({pieces_[i].bytes, heat_.Of(i),
                   state != State::kCold && state != State::kLeaving});
  }
  const std::vector<bool> hot = ChooseHot(all, budget_bytes);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    Piece& piece = pieces_[i];
    piece.wanted = hot[i];
    if (piece.wanted) {
      if (piece.state == State::kLeaving) piece.state = State::kHot;
    } else if (piece.state == State::kHot) {
      piece.state = State::kLeaving;
    } else if (piece.state == State::kWaiting) {
      Leave(std::exchange(piece.lease, 0));
      piece.state = State::kCold;
    }
  }
}

std::vector<size_t> PieceBook::NextToBring(uint64_t budget_bytes) {
  constexpr size_t kAtOnce = 16;
  std::vector<size_t> cold;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].wanted && pieces_[i].state == State::kCold) {
      cold.push_back(i);
    }
  }
  const auto worth = [&](size_t i) {
    return heat_.Of(i) / static_cast<double>(pieces_[i].bytes);
  };
  std::stable_sort(cold.begin(), cold.end(),
                   [&](size_t a, size_t b) { return worth(a) > worth(b); });
  uint64_t room = budget_bytes - std::min(budget_bytes, device_bytes());
  std::vector<size_t> next;
  for (const size_t i : cold) {
    if (pieces_[i].bytes > room || next.size() == kAtOnce) break;
    room -= pieces_[i].bytes;
    pieces_[i].state = State::kComing;
    next.push_back(i);
  }
  return next;
}

void PieceBook::Came(size_t piece, uint64_t lease) {
  pieces_[piece].state = State::kWaiting;
  pieces_[piece].lease = lease;
}

void PieceBook::DidNotCome(size_t piece) {
  pieces_[piece].state = State::kCold;
}

bool PieceBook::MayPlace(size_t piece) const {
  const State state = StateOf(piece);
  return state == State::kWaiting || state == State::kLeaving;
}

size_t PieceBook::CountToPlace() const {
  size_t count = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) count += MayPlace(i) ? 1 : 0;
  return count;
}

void PieceBook::Placed(size_t piece) {
  Piece& placed = pieces_[piece];
  if (placed.state == State::kWaiting) {
    placed.state = State::kHot;
    return;
  }
  placed.state = State::kCold;
  Leave(std::exchange(placed.lease, 0));
}

void PieceBook::LeaveAll() {
  for (Piece& piece : pieces_) {
    if (piece.lease != 0) Leave(std::exchange(piece.lease, 0));
    piece.state = State::kCold;
  }
}

}  // namespace hoist
