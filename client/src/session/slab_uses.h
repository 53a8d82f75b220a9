// The places on devices that a session's leases and plans use, and its arenas.
#ifndef HOIST_CLIENT_SRC_SESSION_SLAB_USES_H_
#define HOIST_CLIENT_SRC_SESSION_SLAB_USES_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "client/src/messages/messages.h"

namespace hoist {

// Threads:  thread-safe. A place is added before its caller knows it, and
//           removed before it is given back to hoistd.
// Bounds:   the session's leases and its plans' groups.
class SlabUses {
 public:
  struct Place {
    std::optional<uint32_t> device;  // nullopt: any.
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  using Places = std::vector<Place>;

  void Add(const LeaseGrant& lease);
  void Add(const PlanGrant& plan);
  void AddArena(uint64_t id);
  void RemoveArena(uint64_t id);
  void RemoveLeases(std::span<const uint64_t> ids);
  // The removed entry, for PutBack.
  Places RemovePlan(uint64_t id);
  void PutBack(uint64_t id, Places places);
  bool Any(uint32_t device, uint64_t offset, uint64_t bytes) const;
  std::vector<uint64_t> Leases() const;
  std::vector<uint64_t> Arenas() const;
  bool empty() const;

 private:
  mutable std::mutex mu_;
  // Guarded by mu_.
  std::map<uint64_t, Place> leases_;
  std::map<uint64_t, Places> plans_;
  std::set<uint64_t> arenas_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_SESSION_SLAB_USES_H_
