// hoistd's holdings, to the byte, as an operator sees them.
#ifndef HOIST_TESTS_FAULT_DEATHS_LEDGER_H_
#define HOIST_TESTS_FAULT_DEATHS_LEDGER_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "hoist/v1/admin.grpc.pb.h"

namespace hoistd::testing {

// Threads: one.
class Ledger {
 public:
  Ledger(const std::string& grpc_socket, pid_t hoistd);

  // Sessions, plans, leases, holdings by tier and holder, and hoistd's
  // descriptors: one line each.
  std::string Read();
  // Drops a model, if it exists.
  void Forget(const std::string& model);
  // The sessions' pids.
  std::vector<uint32_t> Pids();

 private:
  std::string Descriptors() const;
  bool IsOfWorker(const std::string& pidfd) const;

  const pid_t hoistd_;
  std::unique_ptr<hoist::v1::Admin::Stub> admin_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_FAULT_DEATHS_LEDGER_H_
