// Plans: waiting for their rings or standing, with their promises and host
// holdings.
#ifndef HOIST_DAEMON_CORE_PLAN_BOOK_H_
#define HOIST_DAEMON_CORE_PLAN_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/device_space.h"
#include "daemon/core/need_book.h"
#include "daemon/core/promise_book.h"
#include "daemon/core/quota.h"
#include "daemon/core/requests.h"
#include "daemon/core/session_book.h"
#include "daemon/types/ids.h"

namespace hoistd {

// A plan whose ring has no space yet.
struct PendingPlan {
  SessionId session;
  User uid;
  PlanGrant grant;  // Without its id, the ring's place and the slabs.
  absl::Time deadline;
  bool no_wait = false;
  uint64_t tried_at = 0;  // Node's space epoch when space was refused.
  Blocked blocked;
};

struct StandingPlan {
  SessionId session;
  User uid;  // The session may be gone before the plan is.
  PlanGrant grant;
  OwnerId ring_owner;  // If it has a ring.
  Zone zone;           // Of the ring and the residents.
  bool given = false;  // The session was given the ring's slabs.
  // Host copies: requested, and held with a lease each.
  std::set<GroupIndex> asked;
  std::set<GroupIndex> held;
  bool ended = false;
};

// Plans of a device, except `except`, of one session or one user.
struct PlanFilter {
  DeviceIndex device;
  std::optional<SessionId> session = std::nullopt;
  std::optional<User> uid = std::nullopt;
  std::optional<PlanId> except = std::nullopt;
};

// In `quota` a plan and its ring count for its user from the request until the
// plan is gone; its residents count until it ends. Once it stands, its
// residents are promised to it until it ends, and its ring is firm until it is
// gone. Host copies that it requests or holds count for its user until it
// releases them.
//
// Threads:  one at a time.
// Owns:     the plans. Borrows the rest, which must outlive this object. A
//           plan's model stays as long as the plan.
// Bounds:   as many plans as quotas allow.
class PlanBook {
 public:
  // `promises`: one book per device.
  PlanBook(std::vector<PromiseBook>& promises, const CopyTable& copies,
           const SessionBook& sessions, QuotaBook& quota);
  PlanBook(const PlanBook&) = delete;
  PlanBook& operator=(const PlanBook&) = delete;

  // --- Waiting plans ------------------------------------------------------

  // ResourceExhausted: the user has reached the quota of plans.
  absl::Status CheckMore(User uid) const;
  void Add(RequestId request, PendingPlan pending);
  // A plan that stood before this object; its session has its slabs.
  void Restore(StandingPlan plan);
  // A try at this epoch failed.
  void Block(RequestId request, uint64_t epoch, Blocked why);
  // Ends the waiting plan.
  void Drop(RequestId request);
  const std::map<RequestId, PendingPlan>& waiting() const { return waiting_; }
  // Plans to refuse now. A plan that does not wait for space still waits for
  // workers that were asked to close slabs: they answer at once.
  std::vector<RequestId> Late(absl::Time now) const;
  absl::Time NextDeadline() const;

  // --- Standing plans -----------------------------------------------------

  // The plan has its ring there.
  const StandingPlan& Stand(RequestId request, PlanId id, OwnerId ring_owner,
                            uint64_t ring_offset, Zone zone);
  // The session was given the ring's slabs; once.
  void Give(PlanId id);
  // The plan may copy into its ring until it is gone.
  void End(PlanId id);
  // It has ended and holds nothing; its requests are void.
  void Erase(PlanId id);
  // nullptr: none. The plan may have ended.
  const StandingPlan* Find(PlanId id) const;
  // nullptr: none, or ended.
  const StandingPlan* FindLive(PlanId id) const;
  // NotFound: no such plan of this session, or an ended one.
  absl::Status CheckOwn(SessionId session, PlanId id) const;
  // The session's plans that have not ended.
  std::vector<PlanId> LiveOf(SessionId session) const;
  // Including ended ones.
  const std::map<PlanId, StandingPlan>& standing() const { return plans_; }
  // Models of all plans, waiting, standing or ended.
  std::set<ModelId> Models() const;

  // --- Their host holdings ------------------------------------------------

  // False: already requested. The group must not be held.
  bool Ask(PlanId id, GroupIndex group);
  // Withdraws the request, if there is one.
  void Unask(PlanId id, GroupIndex group);
  // The requested copy is there, with a lease. False: the plan has ended and
  // does not need it.
  bool Hold(PlanId id, GroupIndex group);
  void Unhold(PlanId id, GroupIndex group);
  // Groups that plans request or hold, and by how many plans.
  const std::map<GroupKey, uint32_t>& on_host() const { return on_host_; }

  // --- Their device memory ------------------------------------------------

  // Of rings, including those of waiting plans.
  uint64_t RingBytes(const PlanFilter& which) const;
  // Copies that others rely on: leased, pinned or promised to a plan. Omits
  // those that only `except` needs, which is about to end.
  std::set<CopyRef> PromisedCopies(DeviceIndex device, SessionId session,
                                   std::optional<PlanId> except) const;
  // Whether the copy is a resident of a standing plan of the session.
  bool Promised(SessionId session, const CopyRef& copy) const;
  // Copies that only the session's own budget counts: its leases and its plans'
  // residents.
  std::set<CopyRef> OwnCopies(SessionId session, DeviceIndex device,
                              std::optional<PlanId> except) const;
  // Copies that the user's sessions lease, wait for, were promised, or wait to
  // be promised.
  std::set<CopyRef> UserCopies(User uid, DeviceIndex device,
                               std::optional<PlanId> except) const;
  // Recounts firm bytes, one book per device, without busy copies.
  std::vector<PromiseBook> CountPromises() const;
  // Checks that `on_host` is right and no plan both requests and holds a group;
  // a mismatch is our bug. For tests.
  void Check() const;

 private:
  PromiseBook& BookOf(const CopyRef& copy) {
    return promises_[copy.place.at.device.number()];
  }
  void PromiseTo(const StandingPlan& plan, PromiseBook& book) const;
  void Charge(User uid, const PlanGrant& grant);
  void UnchargeResidents(User uid, const PlanGrant& grant);
  void Uncharge(User uid, const PlanGrant& grant);
  void AddHold(const StandingPlan& plan, GroupIndex group);
  void RemoveHold(const StandingPlan& plan, GroupIndex group);

  const CopyTable& copies_;
  const SessionBook& sessions_;
  QuotaBook& quota_;
  std::vector<PromiseBook>& promises_;
  std::map<RequestId, PendingPlan> waiting_;
  std::map<PlanId, StandingPlan> plans_;
  std::map<GroupKey, uint32_t> on_host_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_PLAN_BOOK_H_
