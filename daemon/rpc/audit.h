// The audit log: acts of admins that succeeded, failed or were refused.
#ifndef HOIST_DAEMON_RPC_AUDIT_H_
#define HOIST_DAEMON_RPC_AUDIT_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/requests.h"
#include "daemon/engine/engine_api.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

// The changes of an act, as in "groups=3 bytes=12288".
std::string AuditText(const CopyTotals& totals);
std::string AuditText(const LoadProgress& progress);
std::string AuditText(const CheckProgress& progress);
std::string AuditText(const ShareChanged& changed);
std::string AuditText(const PlanTotals& totals);
std::string AuditText(const hoist::v1::SessionStatus& ended);

// One administrative act of a peer. Its end writes one line to the log:
//   audit: act=evict uid=0 pid=71 on="m on host" result=OK groups=3 bytes=12288
// Client text is escaped, so that a client cannot forge a line.
//
// CallEnv::AdminActOf makes acts, and logs those that it refuses.
class AdminAct {
 public:
  // `act`: hoistd's name for the act. `on`: its target, as the caller gave it.
  AdminAct(Peer who, std::string act, std::string on)
      : who_(std::move(who)), act_(std::move(act)), on_(std::move(on)) {}

  const Peer& who() const { return who_; }

  void Ended(const absl::Status& result, const std::string& changed = "") const;
  template <typename T>
  void Ended(const absl::StatusOr<T>& result) const {
    Ended(result.status(), result.ok() ? AuditText(*result) : std::string());
  }

 private:
  Peer who_;
  std::string act_;
  std::string on_;
};

// Logs the act's end, then calls `done`.
template <typename T>
Done<T> Audited(AdminAct act, Done<T> done) {
  return [act = std::move(act),
          done = std::move(done)](absl::StatusOr<T> result) mutable {
    act.Ended(result);
    done(std::move(result));
  };
}

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_AUDIT_H_
