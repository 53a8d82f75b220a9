// The brain of hoistd: where copies are, who holds them, what moves next.
//
// Node moves no data and never blocks. Each call is one event: it changes the
// books and puts its effects into `Effects`, that is, transfers to start and
// answers to give. It is deterministic: tests and simulations need no threads,
// clocks or I/O.
//
// Each owner (README.md lists them) decides about its own state. Node keeps
// what concerns several owners: the order of an event's changes, retries, and
// answers.
#ifndef HOIST_DAEMON_CORE_NODE_H_
#define HOIST_DAEMON_CORE_NODE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/arenas.h"
#include "daemon/core/audit.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/delivery.h"
#include "daemon/core/device_names.h"
#include "daemon/core/effects.h"
#include "daemon/core/id_source.h"
#include "daemon/core/model_book.h"
#include "daemon/core/need_book.h"
#include "daemon/core/node_options.h"
#include "daemon/core/node_picture.h"
#include "daemon/core/persisted.h"
#include "daemon/core/pool_bounds.h"
#include "daemon/core/quota.h"
#include "daemon/core/registry.h"
#include "daemon/core/requests.h"
#include "daemon/core/space.h"
#include "daemon/core/spill_book.h"
#include "daemon/core/supply.h"
#include "daemon/core/tenure.h"
#include "daemon/core/transfer.h"
#include "daemon/model/model_name.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Threads:  one at a time.
// Owns:     the books.
// Bounds:   `quota` bounds one user's holdings; the caller bounds sessions and
//           requests.
// Restart:  not persistent; files are registered again, published groups are
//           restored from the store and the keeper.
class Node : private Demand {
 public:
  Node(const NodeOptions& options, std::vector<DeviceInfo> devices);

  // --- Owners -------------------------------------------------------------

  // Changes that others may wait for are events of Node, below. Ask the owner
  // for all else.
  Tenure& tenure() { return tenure_; }
  const Tenure& tenure() const { return tenure_; }
  Registry& registry() { return registry_; }
  Supply& supply() { return supply_; }
  Audit& audit() { return audit_; }
  QuotaBook& quota() { return quota_; }
  const QuotaBook& quota() const { return quota_; }
  const CopyTable& copies() const { return copies_; }
  NodePicture picture() const { return NodePicture(books()); }

  // --- Sessions -----------------------------------------------------------

  // Unavailable: draining. ResourceExhausted: the user has too many.
  absl::StatusOr<SessionId> OpenSession(const OpenSessionArgs& args,
                                        absl::Time now, Effects& effects);
  void CloseSession(SessionId session, absl::Time now, Effects& effects);
  // A restored session's client lists its holdings. The session's other
  // holdings are released, since the client never heard of them.
  Resumed Resume(SessionId session, const ResumeArgs& has, absl::Time now,
                 Effects& effects);

  // --- Models -------------------------------------------------------------

  // Receives a group's image and returns its model. DataLoss: not `expected`.
  void Publish(RequestId request, SessionId session, const std::string& model,
               std::shared_ptr<const Group> group,
               std::shared_ptr<hoist::UniqueFd> memfd,
               std::optional<Readers> readers, std::optional<Content> expected,
               absl::Time deadline, absl::Time now, Effects& effects);

  // --- Staging ------------------------------------------------------------

  // Brings up a copy, and leases or pins it. Replies, now or later.
  void Bring(const BringArgs& args, absl::Time now, Effects& effects);
  // Brings a group up to the host, keeps it there while its image is copied to
  // a client's memfd of `memfd_bytes`, then replies.
  void ReadImage(RequestId request, SessionId session, GroupKey key,
                 std::shared_ptr<hoist::UniqueFd> memfd, uint64_t memfd_bytes,
                 absl::Time deadline, absl::Time now, Effects& effects);
  // In order, as space allows, without a reply. To the disk: see Park.
  absl::Status Prefetch(SessionId session, const PrefetchArgs& args,
                        absl::Time now, Effects& effects);
  // NotFound: some are no leases of this session; the others are released.
  absl::Status Release(SessionId session, const std::vector<LeaseId>& leases,
                       absl::Time now, Effects& effects);
  // Empty: clears it; the session is done with the model until it asks again.
  absl::Status SetOrder(SessionId session, SetOrderArgs args, absl::Time now,
                        Effects& effects);
  // The session's answer to the ask of this number: it has closed these slabs,
  // and keeps the others.
  void SlabsClosed(SessionId session, const SlabsClosedArgs& closed,
                   absl::Time now, Effects& effects);

  // --- Arenas -------------------------------------------------------------

  // Replies, now or later, as Arenas::Open.
  void LeaseArena(RequestId request, SessionId session, const ArenaArgs& args,
                  absl::Time now, Effects& effects);
  // NotFound: the arena is none of this session's.
  absl::Status EndArena(SessionId session, ArenaId arena, absl::Time now,
                        Effects& effects);

  // --- Plans --------------------------------------------------------------

  // Makes a plan and waits for its ring's space. Replies, now or later. A plan
  // that it replaces must have been ended and freed.
  void SetPlan(RequestId request, SessionId session, const SetPlanArgs& args,
               absl::Time now, Effects& effects);
  // NotFound: no such plan of this session, or an ended one.
  absl::Status EndPlan(SessionId session, PlanId plan, absl::Time now,
                       Effects& effects);
  // No copy goes to the ring of this ended plan any more.
  void FreePlan(PlanId plan, absl::Time now, Effects& effects);
  // Brings groups up to the host and keeps them there until Unhold or the
  // plan's end. `effects.held` reports each once. Groups already held or
  // requested are skipped.
  void Hold(PlanId plan, const std::vector<GroupIndex>& groups, bool urgent,
            absl::Time now, Effects& effects);
  void Unhold(PlanId plan, GroupIndex group, absl::Time now, Effects& effects);
  // The session has used the group; updates its order for eviction.
  void PlanUsed(PlanId plan, GroupIndex group, absl::Time now);

  // --- Admin --------------------------------------------------------------

  CopyTotals Unpin(const std::vector<CopyRef>& copies, absl::Time now,
                   Effects& effects);
  CopyTotals Evict(const std::vector<CopyRef>& copies, absl::Time now,
                   Effects& effects, Leaving::Why why = Leaving::Why::kByAdmin);
  // FailedPrecondition: in use, and by whom. nullptr: an admin asks.
  absl::Status Forget(ModelId model, absl::Time now, Effects& effects,
                      const Peer* asker = nullptr);
  // The same for a session. PermissionDenied: another user's model, and the
  // session is no admin's. NotFound: nor may it read the model.
  absl::Status ForgetBy(SessionId session, ModelId model, absl::Time now,
                        Effects& effects);
  // Records to persist that were not taken yet, in order; none unless
  // NodeOptions::keeps. Persist them before the effects of the same event:
  // those use or overwrite the memory that the records describe.
  std::vector<Persisted> TakePersisted() { return persisted_.Take(); }
  void SetDraining(bool draining, Effects& effects);
  // For reading; valid until the next event.
  NodeBooks books() const {
    return {options_, devices_, names_,         copies_,
            quota_,   models_,  spill_,         space_,
            tenure_,  supply_,  arenas_.book(), registry_.incoming(),
            audit_,   counters_};
  }
  // Checks that the books agree; a mismatch is our bug. For tests: looks at
  // everything.
  void CheckBooks() const;

  // --- What happens -------------------------------------------------------

  void TransferDone(TransferId id, const absl::Status& status,
                    const TransferResult& result, absl::Time now,
                    Effects& effects);
  // A slab of Effects::slabs was made and is opened by `made`; or it could not
  // be made. Per device in the order of requests.
  void SlabMade(DeviceIndex device, SlabId slab,
                const absl::StatusOr<SlabShare>& made, absl::Time now,
                Effects& effects);
  // A slab was zeroed; an error: it was destroyed instead.
  void SlabZeroed(DeviceIndex device, SlabId slab, const absl::Status& zeroed,
                  absl::Time now, Effects& effects);
  // So much of the host pool can be used, or a device's slabs may take so much.
  void Resize(TierAt at, PoolSize size, absl::Time now, Effects& effects);
  // Refuses waiters past their deadline.
  void Tick(absl::Time now, Effects& effects);
  // The latest time for the next Tick.
  absl::Time NextDeadline() const;

 private:
  friend class NodeRestore;

  // node_plans.cc
  void AdvancePlan(RequestId request, absl::Time now, Effects& effects);
  void AdvancePlans(absl::Time now, Effects& effects);
  void ExpirePlans(absl::Time now, Effects& effects);

  // node_space.cc
  bool Awaits(const CopyRef& copy, bool urgent) const override;
  std::optional<absl::Duration> UntilUse(GroupKey key) const override;
  bool Uses(ModelId model) const override;
  std::set<ModelId> Wanted() const override;

  // node_models.cc
  // Must not be in use.
  void RemoveModel(ModelId model, const std::string& why, absl::Time now,
                   Effects& effects);
  // The same when its copies are already gone.
  void Retire(const ForgottenModel& gone, const std::string& why,
              absl::Time now, Effects& effects);

  // node_stage.cc
  // To the disk alone, at once or after their spill. FailedPrecondition: some
  // stay on the host, and why; the others go.
  absl::Status Park(SessionId session, const Model& model,
                    const PrefetchArgs& args, absl::Time now, Effects& effects);
  void ReleaseLease(LeaseId id, absl::Time now);

  // node_needs.cc
  void Pump(absl::Time now, Effects& effects);
  void PumpNeeds(bool urgent, absl::Time now, Effects& effects);
  bool Advance(Need& need, absl::Time now, Effects& effects);
  void Follow(absl::Time now, Effects& effects);

  const NodeOptions options_;
  const std::vector<DeviceInfo> devices_;
  const DeviceNames names_;
  CopyTable copies_;
  QuotaBook quota_;
  ModelBook models_;
  Counters counters_;
  SpillBook spill_;
  PersistedLog persisted_;
  Space space_;
  Tenure tenure_;
  Arenas arenas_;
  Supply supply_;
  Audit audit_;
  IdSource ids_;
  Delivery delivery_;
  Registry registry_;

  uint64_t pumped_epoch_ = 0;  // At the last wake of all blocked needs.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_H_
