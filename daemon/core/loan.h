// A loan: device memory of a plan that gave way, or was asked to.
#ifndef HOIST_DAEMON_CORE_LOAN_H_
#define HOIST_DAEMON_CORE_LOAN_H_

#include <compare>
#include <cstdint>

#include "absl/time/time.h"
#include "daemon/types/ids.h"

namespace hoistd {

struct Loan {
  // kNeed: another plan or a stage needs the memory. kIdle: idle.after.
  // kGrowth: the plan is set anew, with more. kHeadroom: other programs of the
  // device need it.
  enum class Why { kNeed, kAdmin, kIdle, kGrowth, kHeadroom };

  Why why = Why::kNeed;
  absl::Time since;  // The ask's time; once `lent`, the return's.
  // kNeed: who needs it.
  SessionId to = {};
  ModelId to_model = {};
  // Set by LoanBook.
  PlanId plan = {};
  uint64_t bytes = 0;  // Of the plan's residents and ring.
  bool lent = false;   // The plan has ended since.

  // No ask of a plan in use to give way once it is idle: each lender has one.
  bool is_shown() const { return lent || why != Why::kIdle; }
};

// The lender.
struct LoanKey {
  SessionId session;
  ModelId model;
  DeviceIndex device;

  auto operator<=>(const LoanKey&) const = default;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_LOAN_H_
