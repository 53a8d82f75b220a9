// Restores what the last hoistd had on devices, and for whom, into a new Node.
#ifndef HOIST_DAEMON_CORE_NODE_RESTORE_H_
#define HOIST_DAEMON_CORE_NODE_RESTORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/node.h"
#include "daemon/core/persisted.h"
#include "daemon/core/requests.h"

namespace hoistd {

// To be called before all other events except Registry::Restore of published
// groups, in this order: ids, models, slabs by offset, copies, sessions,
// leases, plans, arenas, pins. All or nothing: after an error the caller
// discards the node, and no record has an owner. Each call checks its record
// against all before and trusts none: memory that a worker may still read must
// not come free.
//
// Threads:  the node's.
class NodeRestore {
 public:
  explicit NodeRestore(Node& node) : node_(node) {}

  // Later ids, and ids of slabs, are above `last`.
  void SkipIds(uint64_t last);
  // The published model had `groups` groups. Those left have been restored; the
  // others are missing.
  void HadGroups(const User& owner, const std::string& model, uint32_t groups);
  // A model of files.
  absl::Status AddModel(ModelId id, std::shared_ptr<const ModelSpec> spec,
                        User owner, Readers readers);
  // Checks that the published model has this id.
  absl::Status CheckModel(ModelId id, User owner,
                          const std::string& name) const;
  // Checks that the copy's model and group exist.
  absl::Status CheckGroup(const PersistedCopy& kept) const;
  // `share`: of the adopted slab, from the device.
  absl::Status AddSlab(const PersistedSlab& kept, const SlabShare& share);
  absl::Status AddCopy(const PersistedCopy& kept, absl::Time now);
  absl::Status AddSession(SessionId id, const OpenSessionArgs& args,
                          absl::Time now);
  absl::Status AddLease(LeaseId id, SessionId session, const CopyRef& copy);
  // With its former slots and residents.
  absl::Status AddPlan(SessionId session, const PlanGrant& grant);
  absl::Status AddArena(const PersistedArena& kept);
  // All arenas are restored: zeroes writable memory that belongs to none.
  void NoMoreArenas();
  // Pins the copy. False: none is there; the caller brings it up.
  bool AddPin(const CopyRef& ref);

 private:
  absl::Status CheckPlan(const PlanGrant& grant) const;
  absl::Status CheckDevice(DeviceIndex device) const;

  Node& node_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_RESTORE_H_
