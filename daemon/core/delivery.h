// Delivery: takes requests for copies, and gives a copy to its waiters, or
// refuses them.
#ifndef HOIST_DAEMON_CORE_DELIVERY_H_
#define HOIST_DAEMON_CORE_DELIVERY_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/audit.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/counters.h"
#include "daemon/core/effects.h"
#include "daemon/core/id_source.h"
#include "daemon/core/need_book.h"
#include "daemon/core/plan_book.h"
#include "daemon/core/quota.h"
#include "daemon/core/requests.h"
#include "daemon/core/space.h"
#include "daemon/core/supply.h"
#include "daemon/core/tenure.h"

namespace hoistd {

// A waiter gets what it asked for: a lease, a pin, a hold of a plan, the image
// in its memfd, or a repair. Plans and open slabs may keep a copy that has come
// from its waiters; the need is then *gated*, and the copy may lose its place.
//
// Threads:  one at a time.
// Owns:     nothing; borrows all, which must outlive this object.
class Delivery {
 public:
  Delivery(CopyTable& copies, QuotaBook& quota, Space& space, Supply& supply,
           Tenure& tenure, Audit& audit, Counters& counters, IdSource& ids)
      : copies_(copies),
        quota_(quota),
        space_(space),
        supply_(supply),
        tenure_(tenure),
        audit_(audit),
        counters_(counters),
        ids_(ids) {}
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  // --- Requests -----------------------------------------------------------

  // Answers if the copy can be given now, or never. True: it waits.
  bool Bring(const BringArgs& args, absl::Time now, Effects& effects);
  // To the host or a device, in order, as space allows, without an answer.
  absl::Status Prefetch(SessionId session, const PrefetchArgs& args,
                        absl::Time now, Effects& effects);
  // As Node::Hold.
  void Hold(PlanId plan, const std::vector<GroupIndex>& groups, bool urgent,
            absl::Time now, Effects& effects);
  // The plan has ended, and waits for nothing.
  void DropHolds(const StandingPlan& plan);

  // --- Arrivals -----------------------------------------------------------

  // Gives the copy that has come to all who may have it. True: to everyone, and
  // the need is met. Else the need is gated.
  bool Give(Need& need, Copy& copy, absl::Time now, Effects& effects);
  // Whether the need may be tried: a gated one lost its place, and would again
  // if it was brought up before some waiter may have it.
  bool MayTry(Need& need, const Copy& copy, absl::Time now);
  void Refuse(const Waiter& waiter, const CopyRef& ref, absl::Status why,
              Effects& effects);
  // Waiters' copy has no room. On a device plans that give way are asked to. On
  // the host plans wait, as their holdings are not promised, since others
  // publish and hold, too: one plan is asked to release some.
  void AskPlansForRoom(const Need& need, absl::Time now, Effects& effects);

 private:
  absl::Status CheckBring(const BringArgs& args) const;
  bool MayGive(const Waiter& waiter, const CopyRef& ref, Copy& copy,
               absl::Time now);
  void Give(const Waiter& waiter, const CopyRef& ref, Copy& copy,
            absl::Time now, Effects& effects);
  void HoldArrived(PlanId plan, const CopyRef& ref, Copy& copy,
                   Effects& effects);

  CopyTable& copies_;
  QuotaBook& quota_;
  Space& space_;
  Supply& supply_;
  Tenure& tenure_;
  Audit& audit_;
  Counters& counters_;
  IdSource& ids_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_DELIVERY_H_
