#include "tests/sim/system/sim_pieces.h"

#include <algorithm>
#include <utility>

#include "tests/sim/system/mutant.h"
#include "tests/sim/system/sim_models.h"

namespace hoistd::sim {
namespace {

using hoist::PieceState;

// What each group's slab takes.
std::vector<uint64_t> SlabsOf(const ModelSpec& spec) {
  std::vector<uint64_t> bytes;
  for (const auto& group : spec.groups) {
    bytes.push_back((group->image_bytes + kPage - 1) / kPage * kPage);
  }
  return bytes;
}

}  // namespace

SimPieces::SimPieces(ModelPtr model, DeviceIndex device, uint64_t budget)
    : budget_bytes(budget),
      model_(std::move(model)),
      device_(device),
      book_(SlabsOf(*model_->spec)) {}

void SimPieces::Lay(size_t piece, const LeaseGrant& cold) {
  cold_[piece] = cold;
  shown_[piece] = {cold.device, cold.offset, cold.bytes};
}

void SimPieces::HotCame(size_t piece, const LeaseGrant& hot) {
  book_.Came(piece, hot.id.number());
  hot_[piece] = hot;
}

bool SimPieces::Place(uint32_t which) {
  size_t left = which % book_.CountToPlace();
  size_t piece = 0;
  while (!book_.MayPlace(piece) || left-- > 0) ++piece;
  const LeaseGrant& to = book_.IsHot(piece) ? cold_.at(piece) : hot_.at(piece);
  const size_t at =
      TheMutation().Shows(Mutant::kOtherPiece) ? (piece + 1) % size() : piece;
  shown_[at] = {to.device, to.offset, to.bytes};
  book_.Placed(piece);
  return book_.IsHot(piece);
}

std::vector<LeaseId> SimPieces::Leaving() const {
  std::vector<LeaseId> leaving;
  for (const auto& [piece, lease] : hot_) {
    if (book_.StateOf(piece) == PieceState::kLeaving) {
      leaving.push_back(lease.id);
    }
  }
  return leaving;
}

bool SimPieces::Has(LeaseId lease) const {
  return std::ranges::any_of(
             cold_,
             [lease](const auto& cold) { return cold.second.id == lease; }) ||
         std::ranges::any_of(hot_, [&](const auto& hot) {
           const PieceState state = book_.StateOf(hot.first);
           return hot.second.id == lease && state != PieceState::kCold &&
                  state != PieceState::kComing;
         });
}

bool SimPieces::AnyHot() const {
  for (size_t i = 0; i < size(); ++i) {
    if (book_.IsHot(i)) return true;
  }
  return false;
}

std::vector<LeaseId> SimPieces::Close() {
  shown_.clear();
  book_.LeaveAll();
  std::vector<LeaseId> over;
  for (const uint64_t lease : book_.TakeLeft()) over.emplace_back(lease);
  for (const auto& [piece, cold] : cold_) over.push_back(cold.id);
  return over;
}

}  // namespace hoistd::sim
