// What admins did, asked for in vain or were refused, for the log.
#ifndef HOIST_DAEMON_RPC_AUDIT_H_
#define HOIST_DAEMON_RPC_AUDIT_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/requests.h"
#include "daemon/engine/engine_api.h"

namespace hoistd {

// "groups=3 bytes=12288": what an act has changed.
std::string AuditText(const CopyTotals& totals);
std::string AuditText(const LoadProgress& progress);
std::string AuditText(const CheckProgress& progress);
std::string AuditText(const ShareChanged& changed);
std::string AuditText(const SessionSnapshot& ended);

// One act of a peer's, of those that take an admin: its end is one line of the
// log,
//   audit: act=evict uid=0 pid=71 on="m on host" result=OK groups=3 bytes=12288
// What comes from clients is escaped, so that nobody can write another line.
//
// CallEnv::AdminActOf makes them, and logs those that it refuses.
class AdminAct {
 public:
  // `act`: a word of ours; `on`: what it is done to, as the caller says.
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

// `done`, with the act's end told before.
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
