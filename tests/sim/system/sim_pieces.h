// A worker's tensors in place: libhoist's own book of their pieces, without its
// thread and its addresses.
#ifndef HOIST_TESTS_SIM_SYSTEM_SIM_PIECES_H_
#define HOIST_TESTS_SIM_SYSTEM_SIM_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "client/src/in_place/piece_book.h"
#include "daemon/core/requests.h"

namespace hoistd::sim {

// One tensor of all groups of a model, a piece each. What is chosen and what
// may change places is libhoist's; what a piece shows is a place of a device,
// and to map another there is one step.
//
// Threads:  one.
// Owns:     nothing: its leases are the worker's.
class SimPieces {
 public:
  // What the tensor shows of one piece.
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

  // The cold piece came.
  void Lay(size_t piece, const LeaseGrant& cold);
  // All have been laid: it can be read.
  bool open() const { return shown_.size() == size(); }
  void HotCame(size_t piece, const LeaseGrant& hot);
  // By piece; of those that were laid.
  const std::map<size_t, Shown>& shown() const { return shown_; }

  // A piece is to change places, and no pass reads them.
  bool MayPlace() const {
    return open() && !reading && book_.CountToPlace() > 0;
  }
  // One of those does. True: it is hot now.
  bool Place(uint32_t which);
  // Leases on the device of pieces that are to be cold, and are shown.
  std::vector<LeaseId> Leaving() const;
  // Whether it has this lease.
  bool Has(LeaseId lease) const;
  bool AnyHot() const;
  // Nothing is shown any more: all its leases are over.
  std::vector<LeaseId> Close();

  uint64_t budget_bytes = 0;
  bool reading = false;  // A pass has begun.

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
