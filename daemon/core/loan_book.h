// Loans: device memory of plans that gave way, or were asked to.
#ifndef HOIST_DAEMON_CORE_LOAN_BOOK_H_
#define HOIST_DAEMON_CORE_LOAN_BOOK_H_

#include <map>

#include "absl/time/time.h"
#include "daemon/core/counters.h"
#include "daemon/core/loan.h"
#include "daemon/core/plan_book.h"
#include "daemon/types/ids.h"

namespace hoistd {

// A plan's loan begins as an ask. The loan ends when its session has a plan of
// the model again, or is done with the model. A session gives no reason when it
// ends a plan: one that was asked has given way.
//
// Threads:  one at a time.
// Owns:     the loans. Borrows `counters`, which must outlive this object.
// Bounds:   one loan per session, model and device.
// Restart:  not persistent.
class LoanBook {
 public:
  explicit LoanBook(Counters& counters) : counters_(counters) {}
  LoanBook(const LoanBook&) = delete;
  LoanBook& operator=(const LoanBook&) = delete;

  // The plan is asked for its memory. The newest ask counts.
  void Ask(const StandingPlan& plan, Loan loan);
  // The session ends the plan.
  void Return(const StandingPlan& plan, absl::Time now);
  // The session has a plan of the model again.
  void Stand(const StandingPlan& plan);
  // The session is over, or done with the model.
  void Leave(SessionId session);
  void Leave(SessionId session, ModelId model);

  // Also of plans that were asked, as they were set, for when they are idle.
  const std::map<LoanKey, Loan>& all() const { return loans_; }

 private:
  Counters& counters_;
  std::map<LoanKey, Loan> loans_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_LOAN_BOOK_H_
