// Loans as messages of Admin.
#ifndef HOIST_DAEMON_RPC_LOAN_CONVERT_H_
#define HOIST_DAEMON_RPC_LOAN_CONVERT_H_

#include "absl/time/time.h"
#include "daemon/core/loan.h"
#include "daemon/core/node.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

// shows_to: which session needs the memory.
void LoanToProto(const NodeBooks& node, const LoanKey& lender, const Loan& loan,
                 absl::Time now, bool shows_to, hoist::v1::Loan* out);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_LOAN_CONVERT_H_
