#include "client/ctl/loans.h"

#include <string>

#include "client/ctl/table.h"
#include "client/ctl/text.h"

namespace hoist::ctl {
namespace {

std::string ForText(const v1::Loan& loan) {
  switch (loan.cause()) {
    case v1::Loan::CAUSE_NEED:
      if (loan.to_session_id() == 0) return "another user";
      return Shown(loan.to_model()) + " of session " +
             std::to_string(loan.to_session_id()) + " (" +
             Shown(loan.to_client()) + ")";
    case v1::Loan::CAUSE_ADMIN:
      return "an admin";
    case v1::Loan::CAUSE_IDLE:
      return "anyone: it was idle";
    case v1::Loan::CAUSE_GROWTH:
      return "itself: there is room for more of it";
    case v1::Loan::CAUSE_HEADROOM:
      return "other programs of the device";
    default:
      return "";
  }
}

}  // namespace

void PrintLoans(const google::protobuf::RepeatedPtrField<v1::Loan>& loans,
                std::ostream& out) {
  Table table(
      {">LENDER", "CLIENT", "MODEL", ">DEVICE", ">BYTES", "SINCE", "FOR"});
  for (const v1::Loan& loan : loans) {
    table.Add(
        {std::to_string(loan.session_id()), Shown(loan.client()),
         Shown(loan.model()), std::to_string(loan.device()),
         HumanBytes(loan.bytes()),
         (loan.lent() ? "lent " : "asked ") + HumanTime(loan.age_ms()) + " ago",
         ForText(loan)});
  }
  if (table.empty()) return;
  out << '\n';
  table.Print(out);
}

}  // namespace hoist::ctl
