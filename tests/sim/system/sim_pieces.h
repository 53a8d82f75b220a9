// A worker's in-place tensors: libhoist's own piece book, without its thread
// and addresses.
#ifndef HOIST_TESTS_SIM_SYSTEM_SIM_PIECES_H_
#define HOIST_TESTS_SIM_SYSTEM_SIM_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "client/src/in_place/piece_book.h"
#include "daemon/core/requests.h"

namespace hoistd::sim {

// One tensor over all groups of a model, one piece each. libhoist's book
// chooses pieces and allows remaps. A piece shows a place on a device; to remap
// it is one step.
//
// Threads:  one.
// Owns:     nothing: its leases are the worker's.
class SimPieces {
 public:
  // The place that the tensor shows for one piece.
  struct Shown {
    DeviceIndex device;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  SimPieces(ModelPtr model, DeviceIndex device, uint64_t budget_bytes);

  const ModelPtr& model() const { return model_; }
  DeviceIndex device() const { return device_; }
  size_t size() const { return book_.size(); }
  GroupKey KeyOf(size_t piece) const {
    return {model_->id, GroupIndex(static_cast<uint32_t>(piece))};
  }
  hoist::PieceBook& book() { return book_; }
  const hoist::PieceBook& book() const { return book_; }

  // The cold piece has arrived.
  void Lay(size_t piece, const LeaseGrant& cold);
  // All pieces are laid: the tensor can be read.
  bool open() const { return shown_.size() == size(); }
  void HotCame(size_t piece, const LeaseGrant& hot);
  // Laid pieces, by index.
  const std::map<size_t, Shown>& shown() const { return shown_; }

  // True: a piece is to be remapped, and no pass reads them.
  bool MayPlace() const {
    return open() && !reading && book_.CountToPlace() > 0;
  }
  // Remaps one of those. True: it is hot now.
  bool Place(uint32_t which);
  // Device leases of shown pieces that are to become cold.
  std::vector<LeaseId> Leaving() const;
  // Whether it has this lease.
  bool Has(LeaseId lease) const;
  bool AnyHot() const;
  // Shows nothing any more; returns all its leases, which have ended.
  std::vector<LeaseId> Close();

  uint64_t budget_bytes = 0;
  bool reading = false;  // A pass has begun.
  bool touched = false;  // By some pass: the heat is its own.

 private:
  const ModelPtr model_;
  const DeviceIndex device_;
  hoist::PieceBook book_;
  std::map<size_t, LeaseGrant> cold_;
  std::map<size_t, LeaseGrant> hot_;  // As it came last.
  std::map<size_t, Shown> shown_;
};

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SIM_PIECES_H_
