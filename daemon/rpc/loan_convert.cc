#include "daemon/rpc/loan_convert.h"

#include <algorithm>
#include <string>

namespace hoistd {
namespace {

std::string ClientOf(const NodeBooks& node, SessionId session) {
  const auto* found = node.tenure.sessions().Find(session);
  return found == nullptr ? "" : found->args.client_name;  // It is over.
}

std::string NameOf(const NodeBooks& node, ModelId model) {
  const ModelEntry* found = node.copies.FindModel(model);
  return found == nullptr ? "" : found->model->spec->name;  // It is forgotten.
}

pb::Loan::Cause CauseOf(Loan::Why why) {
  switch (why) {
    case Loan::Why::kPlan:
      return pb::Loan::CAUSE_PLAN;
    case Loan::Why::kAdmin:
      return pb::Loan::CAUSE_ADMIN;
    case Loan::Why::kIdle:
      return pb::Loan::CAUSE_IDLE;
    case Loan::Why::kGrowth:
      return pb::Loan::CAUSE_GROWTH;
  }
  return pb::Loan::CAUSE_UNSPECIFIED;
}

}  // namespace

void LoanToProto(const NodeBooks& node, const LoanKey& lender, const Loan& loan,
                 absl::Time now, bool shows_to, pb::Loan* out) {
  out->set_session_id(lender.session.number());
  out->set_client(ClientOf(node, lender.session));
  out->set_model(NameOf(node, lender.model));
  out->set_device(lender.device.number());
  out->set_bytes(loan.bytes);
  out->set_cause(CauseOf(loan.why));
  out->set_lent(loan.lent);
  out->set_age_ms(static_cast<uint64_t>(
      std::max<int64_t>(0, absl::ToInt64Milliseconds(now - loan.since))));
  if (!shows_to) return;
  out->set_to_session_id(loan.to.number());
  out->set_to_client(ClientOf(node, loan.to));
  out->set_to_model(NameOf(node, loan.to_model));
}

}  // namespace hoistd
