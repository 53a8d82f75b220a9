// Puts what the last hoistd had on devices, and for whom, into a new Node.
#ifndef HOIST_DAEMON_CORE_NODE_RESTORE_H_
#define HOIST_DAEMON_CORE_NODE_RESTORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/kept.h"
#include "daemon/core/node.h"
#include "daemon/core/requests.h"

namespace hoistd {

// Before anything else happens to the node, but for Node::Restore of published
// groups, and in this order: ids, models, slabs by their offsets, copies,
// sessions, leases, plans, arenas, pins. All of it is taken or none: who gets
// an error throws the node away, and what it was told of is nobody's. So each
// call looks whether what it is told agrees with all before, and nothing is
// believed that could be wrong: memory that a worker may still read must not
// come free.
//
// Threads:  the node's.
class NodeRestore {
 public:
  explicit NodeRestore(Node& node) : node_(node) {}

  // No id up to this one is given again, nor a slab's.
  void SkipIds(uint64_t last);
  // A model of files.
  absl::Status AddModel(ModelId id, std::shared_ptr<const ModelSpec> spec,
                        User owner, Readers readers);
  // That a published one is there under this id.
  absl::Status CheckModel(ModelId id, User owner,
                          const std::string& name) const;
  // That the model of the copy is there, with its group.
  absl::Status CheckGroup(const KeptCopy& kept) const;
  // `share` is what the device says of the adopted slab.
  absl::Status AddSlab(const KeptSlab& kept, const SlabShare& share);
  absl::Status AddCopy(const KeptCopy& kept, absl::Time now);
  absl::Status AddSession(SessionId id, const OpenSessionArgs& args,
                          absl::Time now);
  absl::Status AddLease(LeaseId id, SessionId session, const CopyRef& copy);
  // With the slots and residents that it had.
  absl::Status AddPlan(SessionId session, const PlanGrant& grant);
  absl::Status AddArena(const KeptArena& kept);
  // No arena comes any more: what is in none is zeroed.
  void NoMoreArenas();
  // Pins the copy. False: none is there, and whoever wants it brings it up.
  bool AddPin(const CopyRef& ref);

 private:
  absl::Status CheckPlan(const PlanGrant& grant) const;
  absl::Status CheckDevice(DeviceIndex device) const;

  Node& node_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_RESTORE_H_
