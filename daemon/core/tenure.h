// Tenure: who may have what, and who pays. Holds sessions with their leases,
// and plans, to budgets, promises and quotas.
//
// It brings no bytes and answers nobody: Node asks it for permission, and
// reports the outcome.
#ifndef HOIST_DAEMON_CORE_TENURE_H_
#define HOIST_DAEMON_CORE_TENURE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/device_names.h"
#include "daemon/core/effects.h"
#include "daemon/core/headroom.h"
#include "daemon/core/heat_book.h"
#include "daemon/core/model_book.h"
#include "daemon/core/need_book.h"
#include "daemon/core/order_book.h"
#include "daemon/core/persisted.h"
#include "daemon/core/plan_book.h"
#include "daemon/core/plan_offers.h"
#include "daemon/core/quota.h"
#include "daemon/core/reclaim.h"
#include "daemon/core/requests.h"
#include "daemon/core/session_book.h"
#include "daemon/core/space.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Whether the asker learns who holds what; nullptr: an asker without a session.
inline bool SeesAll(const Peer* asker) {
  return asker == nullptr || asker->admin;
}

// Threads:  one at a time.
// Owns:     sessions, plans, and announced orders. Borrows the rest, which must
//           outlive this object.
// Bounds:   as quotas say.
class Tenure {
 public:
  Tenure(const NodeOptions& options, const std::vector<DeviceInfo>& devices,
         const DeviceNames& names, CopyTable& copies, const ModelBook& models,
         QuotaBook& quota, Space& space, PersistedLog& persisted,
         Counters& counters);
  Tenure(const Tenure&) = delete;
  Tenure& operator=(const Tenure&) = delete;

  SessionBook& sessions() { return sessions_; }
  const SessionBook& sessions() const { return sessions_; }
  PlanBook& plans() { return plans_; }
  const PlanBook& plans() const { return plans_; }
  OrderBook& orders() { return orders_; }
  const OrderBook& orders() const { return orders_; }
  HeatBook& heat() { return heat_; }
  // While draining, sessions keep what they have, and start nothing new.
  bool draining() const { return draining_; }
  void SetDraining(bool draining) { draining_ = draining; }
  static absl::Status DrainsNow();

  // --- Models -------------------------------------------------------------

  // nullptr: there is no such session.
  const Peer* PeerOf(SessionId session) const;
  // The model that the name means to the asker (MeantBy); the session uses it
  // from then on. NotFound: none, or not readable by the asker. DataLoss, for
  // sessions only: groups are missing.
  absl::StatusOr<ModelPtr> Find(SessionId session, const std::string& name);
  absl::StatusOr<ModelPtr> Find(const Peer& asker,
                                const std::string& name) const;
  // A published model of this content that the session may read: its user's
  // own, else root's, else one that everyone may read. hoistd hashed the
  // content itself. The session uses the model from then on. NotFound.
  absl::StatusOr<ModelPtr> FindByContent(SessionId session,
                                         const Content& content);
  // By id. NotFound: `session` may not read it.
  absl::StatusOr<ModelPtr> Find(SessionId session, ModelId model) const;

  // --- Stages and leases --------------------------------------------------

  // Checks for final refusals. `checked`: a check of the group is under way, so
  // a damaged copy may be repaired.
  absl::Status CheckBring(const BringArgs& args, bool checked) const;
  absl::Status CheckRead(SessionId session, GroupKey key,
                         uint64_t memfd_bytes) const;
  // Whether the waiter may open the copy's slabs. Unavailable: its user's idle
  // workers were asked to close some first.
  absl::Status MayOpen(const Waiter& waiter, const CopyRef& ref,
                       const Copy& copy, absl::Time now);
  LeaseGrant Grant(LeaseId id, const Waiter& waiter, const CopyRef& ref,
                   Copy& copy, absl::Time now);
  // Takes the order of a pass. Empty: none, and the session is done with the
  // model until it asks again.
  absl::Status Announce(SessionId session, ModelId model,
                        std::vector<GroupIndex> order);
  // Takes a session's heat for zero-copy reads; returns the model's known heat.
  // OutOfRange: the model has no such group.
  absl::StatusOr<std::vector<GroupHeat>> ReportHeat(SessionId session,
                                                    const HeatArgs& args);
  // The session uses the model no more, until it asks for it again.
  void DoneWith(SessionId session, ModelId model) {
    sessions_.DoneWith(session, model);
    reclaim_.loans().Leave(session, model);
  }
  // The copy that it leased.
  CopyRef Release(LeaseId id, absl::Time now);

  // --- Plans --------------------------------------------------------------

  // Answers if the plan is refused. Otherwise AdvancePlan follows, once it is
  // decided; see Reclaim.
  void Plan(RequestId request, PlanRequest asked, absl::Time now,
            Effects& effects);
  // Decides about requests that need not wait for plans that give way, and
  // keeps devices in their capacity.
  void DecidePlans(absl::Time now, Effects& effects);
  // Of a waiting request for a plan, or for a spare.
  absl::Time NextDeadline() const {
    return std::min({plans_.NextDeadline(), reclaim_.NextDeadline(),
                     headroom_.NextDeadline()});
  }
  // Leaves device memory to the session. Answers, now or later, as
  // Headroom::Spare; a Tick is to follow.
  void Spare(RequestId request, SessionId session, const SpareArgs& args,
             absl::Time now, Effects& effects);
  const PlanOffers& offers() const { return reclaim_.offers(); }
  Headroom& headroom() { return headroom_; }
  Reclaim& reclaim() { return reclaim_; }
  const Reclaim& reclaim() const { return reclaim_; }
  // Once there is memory for all of the waiting plan, gives its ring space; the
  // plan then stands as `id`. Returns what happened; nullopt: nothing.
  std::optional<NodeEvent> AdvancePlan(RequestId request, PlanId id,
                                       absl::Time now);
  static CopyRef RingRef(const PlanGrant& grant);  // For its zone.
  // NotFound: no such plan of this session, or an ended one.
  absl::StatusOr<EndedPlan> EndPlan(SessionId session, PlanId id,
                                    absl::Time now);
  std::vector<EndedPlan> EndPlansOf(SessionId session);
  // The plan has ended, and no copy goes to its ring.
  void FreePlan(PlanId id);
  // nullptr: none, or ended.
  const PlanGrant* FindPlan(PlanId id) const;
  // Gives the session the slabs of the ring that it lacks, and returns them.
  // Later grants may lie in them, so they must be sent first. The plan must
  // stand.
  std::vector<SlabUse> GiveSlabs(PlanId id);
  void Unhold(const StandingPlan& plan, GroupIndex group);
  // The plan that must release host memory that these plans need to proceed:
  // one of them or, if they hold none, the largest holder.
  std::optional<CrowdedPlan> PlanToCrowd(const std::set<PlanId>& waiting,
                                         uint64_t bytes) const;

  // --- Quotas of host memory ----------------------------------------------

  // Held by all plans.
  uint64_t held_bytes() const;
  // Bytes that the user's plans hold or that the user published and has nowhere
  // else; both at once counts once.
  uint64_t HostBytesOf(User uid) const;
  // The most that this plan may hold now, beside other plans and within its
  // user's quota. Urgent needs are held beyond that, since the plan could not
  // proceed.
  uint64_t HoldableBytes(PlanId id) const;
  // Host bytes left for the user's plans and publications.
  uint64_t HostRoom(User uid) const;

 private:
  // tenure.cc
  absl::Status CheckBudget(SessionId session, const CopyRef& copy) const;
  absl::Status CheckOpen(SessionId session, DeviceIndex device,
                         const std::vector<SlabSpec>& used, absl::Time now);
  void KeepLease(LeaseId id, SessionId session, const CopyRef& ref, bool there);

  // tenure_plans.cc
  void Await(Reclaim::Decided decided, absl::Time now, Effects& effects);
  absl::StatusOr<uint64_t> PlaceRing(const PendingPlan& pending, OwnerId owner,
                                     absl::Time now);
  absl::Status MakeRoom(const PendingPlan& pending, absl::Time now);
  EndedPlan StopPlan(PlanId id);

  const std::vector<DeviceInfo>& devices_;
  const DeviceNames& names_;
  CopyTable& copies_;
  const ModelBook& models_;
  QuotaBook& quota_;
  Space& space_;
  PersistedLog& persisted_;
  Counters& counters_;
  OrderBook orders_;
  HeatBook heat_;
  SessionBook sessions_;
  PlanBook plans_;
  Reclaim reclaim_;
  Headroom headroom_;
  bool draining_ = false;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_TENURE_H_
