// Reclaim: plans that give way return their memory to others that need it.
#ifndef HOIST_DAEMON_CORE_RECLAIM_H_
#define HOIST_DAEMON_CORE_RECLAIM_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/effects.h"
#include "daemon/core/loan_book.h"
#include "daemon/core/plan_offers.h"
#include "daemon/core/requests.h"
#include "daemon/types/ids.h"

namespace hoistd {

class Tenure;

// A plan that can be granted in part has a wish: it asks plans that give way,
// the oldest first, for the rest of its model. They return it if they have been
// idle for as long as it takes to bring them back; it waits kWish for that, and
// takes the memory that is free then.
//
// A plan that cannot be granted at all has a need. After the same wish it asks
// one plan after another to end with its pass, until its deadline. It then gets
// no more than an equal share, or the two would take all from each other in
// every pass. A plan with a budget of its own gives way to admins alone.
//
// A plan that was granted in part is asked to end with its pass once there is
// room for more of it: its next pass sets it anew, with all that is free.
//
// A stage that waits for device memory has a need, too.
//
// Threads:  one at a time.
// Owns:     the waiting requests, and the loans. Borrows the rest, which must
// outlive it. Bounds:   the caller bounds requests.
class Reclaim {
 public:
  static constexpr absl::Duration kWish = absl::Milliseconds(250);

  Reclaim(const Tenure& tenure, const PlanOffers& offers, Counters& counters)
      : tenure_(tenure), offers_(offers), loans_(counters) {}
  Reclaim(const Reclaim&) = delete;
  Reclaim& operator=(const Reclaim&) = delete;

  const PlanOffers& offers() const { return offers_; }
  LoanBook& loans() { return loans_; }
  const LoanBook& loans() const { return loans_; }

  // A request to decide now. Its deadline is the time left.
  struct Decided {
    RequestId request;
    PlanRequest asked;
    absl::StatusOr<PlanGrant> grant;
  };
  // Decides at once if there is nothing to wait for.
  std::optional<Decided> Begin(RequestId request, PlanRequest asked,
                               absl::Time now, Effects& effects);
  // A request that need not wait any longer. The grant is to be made before the
  // next one is decided.
  std::optional<Decided> Next(absl::Time now, Effects& effects);
  // Asks plans that were granted in part to end, if they would get more.
  void Grow(absl::Time now, Effects& effects);
  // Asks the session's plans to end once idle for so long, whoever needs their
  // memory.
  PlanTotals Ask(SessionId session, absl::Duration idle, absl::Time now,
                 Effects& effects);
  // Asks plans that give way, the oldest first, to end with their pass, until
  // those that were asked have so many bytes. Each is asked once.
  void AskForRoom(DeviceIndex device, uint64_t bytes, const Loan& loan,
                  Effects& effects);
  // The session is over, with its requests.
  void Leave(SessionId session);
  bool empty() const { return waiting_.empty(); }
  absl::Time NextDeadline() const;

 private:
  struct Waiting {
    PlanRequest asked;
    absl::Time deadline;       // The request's.
    absl::Time wish_until;     // InfinitePast: its wish is over.
    std::set<PlanId> lenders;  // That were asked.
  };

  std::optional<absl::StatusOr<PlanGrant>> Decide(Waiting& waiting,
                                                  absl::Time now,
                                                  Effects& effects);
  void AskForWish(Waiting& waiting, uint64_t missing, absl::Time now,
                  Effects& effects);
  std::vector<PlanId> Lenders(const Waiting& waiting) const;
  bool AskForNeed(Waiting& waiting, absl::Time now, Effects& effects);
  void AskOne(const StandingPlan& plan, absl::Duration idle, const Loan& loan,
              Effects& effects);
  uint64_t PlansBeside(const Waiting& waiting) const;
  bool Awaits(const Waiting& waiting) const;

  const Tenure& tenure_;
  const PlanOffers offers_;
  LoanBook loans_;
  std::map<RequestId, Waiting> waiting_;
  // Of plans that were asked to grow: the room then. Only more of it helps.
  std::map<std::pair<SessionId, ModelId>, uint64_t> grown_;
  std::set<PlanId> for_room_;  // Asked; may have ended.
  uint64_t looked_at_ = 0;     // The offers' epoch.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_RECLAIM_H_
