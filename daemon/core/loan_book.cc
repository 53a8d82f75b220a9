#include "daemon/core/loan_book.h"

namespace hoistd {
namespace {

LoanKey KeyOf(const StandingPlan& plan) {
  return {plan.session, plan.grant.model, plan.grant.device};
}

uint64_t& LentBytes(Counters& counters, Loan::Why why) {
  switch (why) {
    case Loan::Why::kNeed:
      break;
    case Loan::Why::kAdmin:
      return counters.lent_bytes_by_admins;
    case Loan::Why::kIdle:
      return counters.lent_bytes_when_idle;
    case Loan::Why::kGrowth:
      return counters.lent_bytes_to_grow;
    case Loan::Why::kHeadroom:
      return counters.lent_bytes_for_headroom;
  }
  return counters.lent_bytes_to_needs;
}

}  // namespace

void LoanBook::Ask(const StandingPlan& plan, Loan loan) {
  loan.plan = plan.grant.id;
  loan.bytes = plan.grant.ring_bytes + plan.grant.resident_bytes;
  loans_[KeyOf(plan)] = loan;
}

void LoanBook::Return(const StandingPlan& plan, absl::Time now) {
  const auto found = loans_.find(KeyOf(plan));
  if (found == loans_.end() || found->second.plan != plan.grant.id) return;
  Loan& loan = found->second;
  loan.lent = true;
  loan.since = now;
  LentBytes(counters_, loan.why) += loan.bytes;
}

void LoanBook::Stand(const StandingPlan& plan) { loans_.erase(KeyOf(plan)); }

void LoanBook::Leave(SessionId session) {
  std::erase_if(loans_, [&](const auto& entry) {
    return entry.first.session == session;
  });
}

void LoanBook::Leave(SessionId session, ModelId model) {
  std::erase_if(loans_, [&](const auto& entry) {
    return entry.first.session == session && entry.first.model == model;
  });
}

}  // namespace hoistd
