// Node's work for Space, and the follow-up of Space's and slabs' work.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/node.h"

namespace hoistd {

bool Node::Awaits(const CopyRef& copy, bool urgent) const {
  const Need* need = supply_.needs().Find(copy);
  return need != nullptr && (!need->gated || !urgent);
}

std::optional<absl::Duration> Node::UntilUse(GroupKey key) const {
  return tenure_.orders().UntilUse(key);
}

bool Node::Uses(ModelId model) const { return tenure_.sessions().Used(model); }

std::set<ModelId> Node::Wanted() const {
  std::set<ModelId> wanted = supply_.needs().Models();
  for (const auto& [key, check] : audit_.checks()) wanted.insert(key.model);
  wanted.merge(tenure_.plans().Models());
  return wanted;
}

void Node::SlabMade(DeviceIndex device, SlabId slab,
                    const absl::StatusOr<SlabShare>& made, absl::Time now,
                    Effects& effects) {
  const Space::SlabOutcome outcome = space_.SlabMade(device, slab, made);
  if (outcome.piece.has_value()) {
    arenas_.PieceMade(*outcome.piece, made.status(), effects);
  } else if (outcome.copy.has_value()) {
    supply_.SlabMade(*outcome.copy, made.status());
  }
  // Waiters for coming slabs try again.
  if (space_.device(device).coming() == 0 &&
      !arenas_.book().waiting().empty()) {
    space_.Changed();
  }
  Tick(now, effects);
}

void Node::SlabZeroed(DeviceIndex device, SlabId slab,
                      const absl::Status& zeroed, absl::Time now,
                      Effects& effects) {
  const auto outcome = space_.SlabZeroed(device, slab, zeroed);
  if (!outcome.has_value()) return;
  if (outcome->piece.has_value()) {
    arenas_.PieceMade(*outcome->piece, zeroed, effects);
  }
  Tick(now, effects);
}

void Node::SlabsClosed(SessionId id, const SlabsClosedArgs& closed,
                       absl::Time now, Effects& effects) {
  if (!space_.slabs().Closed(id, closed, now)) return;
  space_.Changed();
  Tick(now, effects);
}

}  // namespace hoistd
