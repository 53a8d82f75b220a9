// Plans: those that wait for their rings, those that stand, and what each was
// promised and holds.
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
#include "daemon/terms/ids.h"

namespace hoistd {

// A plan whose ring has no space yet.
struct PendingPlan {
  SessionId session;
  User uid;
  PlanGrant grant;  // But for its id, the ring's place and the slabs.
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
  // Of the host: what it asked for, and what it holds with a lease each.
  std::set<GroupIndex> asked;
  std::set<GroupIndex> held;
  bool ended = false;
};

// Those of a device: but for `except`, and of one session, or of one user.
struct PlanFilter {
  DeviceIndex device;
  std::optional<SessionId> session = std::nullopt;
  std::optional<User> uid = std::nullopt;
  std::optional<PlanId> except = std::nullopt;
};

// From when it waits until it is gone a plan counts for its user, in `quota`,
// and so does its ring; its residents do until it ends. Residents are promised
// to it, and its ring is firm, from when it stands: residents until it ends,
// the ring until it is gone. What it asks for and holds of the host counts for
// its user until it lets go.
//
// Threads:  one at a time.
// Owns:     the plans and the promises. Borrows the rest, which must outlive
//           this object. A plan's model stays as long as the plan.
// Bounds:   as many plans as quotas allow.
class PlanBook {
 public:
  PlanBook(size_t devices, const CopyTable& copies, const SessionBook& sessions,
           QuotaBook& quota);
  PlanBook(const PlanBook&) = delete;
  PlanBook& operator=(const PlanBook&) = delete;

  // --- Those that wait ----------------------------------------------------

  // ResourceExhausted: the user has as many as they may.
  absl::Status CheckMore(User uid) const;
  void Add(RequestId request, PendingPlan pending);
  // One that stood before this object was; its session was given its slabs.
  void Restore(StandingPlan plan);
  // It was tried at this epoch, in vain.
  void Block(RequestId request, uint64_t epoch, Blocked why);
  // It is not to be any more.
  void Drop(RequestId request);
  const std::map<RequestId, PendingPlan>& waiting() const { return waiting_; }
  // Those to be refused. Who would not wait for space waits for those who were
  // asked to close slabs: they answer at once.
  std::vector<RequestId> Late(absl::Time now) const;
  absl::Time NextDeadline() const;

  // --- Those that stand ---------------------------------------------------

  // It has its ring, there.
  const StandingPlan& Stand(RequestId request, PlanId id, OwnerId ring_owner,
                            uint64_t ring_offset, Zone zone);
  // The session was given the ring's slabs, once.
  void Give(PlanId id);
  // It may copy into its ring until it is gone.
  void End(PlanId id);
  // It has ended and holds nothing. What it asked for is not for it any more.
  void Erase(PlanId id);
  // nullptr: there is none. It may have ended.
  const StandingPlan* Find(PlanId id) const;
  // nullptr: there is none, or it has ended.
  const StandingPlan* FindLive(PlanId id) const;
  // The session's that have not ended.
  std::vector<PlanId> LiveOf(SessionId session) const;
  // Ended ones as well.
  const std::map<PlanId, StandingPlan>& standing() const { return plans_; }
  // That plans need, wherever they are in their lives.
  std::set<ModelId> Models() const;

  // --- What they hold of the host -----------------------------------------

  // False: it is asked for already. A group that is held cannot be.
  bool Ask(PlanId id, GroupIndex group);
  // It is not asked for any more; if it is, or was.
  void Unask(PlanId id, GroupIndex group);
  // What was asked for is there, with a lease. False: the plan has ended, and
  // has no use for it.
  bool Hold(PlanId id, GroupIndex group);
  void Unhold(PlanId id, GroupIndex group);
  // What plans ask for or hold, and how many of them.
  const std::map<GroupKey, uint32_t>& on_host() const { return on_host_; }

  // --- What they take of devices ------------------------------------------

  // Rings, of those that wait too.
  uint64_t RingBytes(const PlanFilter& which) const;
  // Copies that others count on: leased, pinned, or promised to a plan. What
  // only `except` needs, which is about to go, is left out.
  std::set<CopyRef> PromisedCopies(DeviceIndex device, SessionId session,
                                   std::optional<PlanId> except) const;
  // Copies that only the session's own budget counts: its leases, and the
  // residents of its plans.
  std::set<CopyRef> OwnCopies(SessionId session, DeviceIndex device,
                              std::optional<PlanId> except) const;
  // Copies that the user's sessions lease, wait for, or were promised, or wait
  // to be promised.
  std::set<CopyRef> UserCopies(User uid, DeviceIndex device,
                               std::optional<PlanId> except) const;
  const PromiseBook& promises(DeviceIndex device) const {
    return promises_[device.number()];
  }
  // Something else than a plan keeps the device copy where it is; or not.
  void SetBusy(const CopyRef& copy, Zone zone);
  void SetIdle(const CopyRef& copy);

  // Puts what the plans' users hold into `counted`, anew.
  void CountInto(QuotaBook& counted) const;
  // The same of what is firm, one book a device, but for what is busy.
  std::vector<PromiseBook> CountPromises() const;
  // That `on_host` is so, and who asks for what does not hold it; what is
  // not so is our bug. For tests.
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
  std::map<RequestId, PendingPlan> waiting_;
  std::map<PlanId, StandingPlan> plans_;
  std::vector<PromiseBook> promises_;  // One a device.
  std::map<GroupKey, uint32_t> on_host_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_PLAN_BOOK_H_
