// Who is connected, which models each uses, what it leases or waits to lease.
#ifndef HOIST_DAEMON_CORE_SESSION_BOOK_H_
#define HOIST_DAEMON_CORE_SESSION_BOOK_H_

#include <cstdint>
#include <map>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/quota.h"
#include "daemon/core/requests.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// A stage is a claim on its device copy from when it is asked for: first while
// it waits, then as a lease, until that is released. So each claim of a session
// is one stage that waits or one lease, and the copy counts for the session's
// user, in `quota`, as long as the session has a claim on it.
//
// A session uses a model from when it has found, registered or published it, or
// asked for any of it, until it says that it is done with it, or ends.
//
// Threads:  one at a time.
// Owns:     the claims. Borrows `quota`, which must outlive this object.
// Bounds:   as many sessions as quotas allow; claims, by what devices hold.
class SessionBook {
 public:
  struct Lease {
    SessionId session;
    CopyRef copy;
  };
  struct Session {
    OpenSessionArgs args;
    absl::Time opened;
    std::set<LeaseId> leases;
    std::map<CopyRef, uint32_t> claims;  // How many of each copy.
    std::set<ModelId> models;            // That it uses.
    uint32_t waiting = 0;                // Stages.

    User uid() const { return args.peer.uid; }
  };

  explicit SessionBook(QuotaBook& quota) : quota_(quota) {}
  SessionBook(const SessionBook&) = delete;
  SessionBook& operator=(const SessionBook&) = delete;

  // ResourceExhausted: the user has as many as they may.
  absl::Status CheckMore(User uid) const;
  void Open(SessionId id, const OpenSessionArgs& args, absl::Time now);
  // It has no lease any more; nor does it wait for one.
  void Close(SessionId id);

  // nullptr: there is none.
  const Session* Find(SessionId id) const;
  const Session& At(SessionId id) const { return sessions_.at(id); }
  const std::map<SessionId, Session>& all() const { return sessions_; }

  // ResourceExhausted: the copy is one more than the session's user may have
  // of that device.
  absl::Status CheckClaim(SessionId id, const CopyRef& copy,
                          uint64_t bytes) const;
  // A stage of the session waits.
  void Claim(SessionId id, const CopyRef& copy, uint64_t bytes);
  // One that waited is a lease now,
  void Grant(SessionId id, LeaseId lease, const CopyRef& copy);
  // or is refused. It may be that the session is gone.
  void Refuse(SessionId id, const CopyRef& copy);
  // nullptr: there is none.
  const Lease* FindLease(LeaseId id) const;
  Lease EndLease(LeaseId id);
  size_t lease_count() const { return leases_.size(); }

  // There is such a session.
  void Use(SessionId id, ModelId model);
  void DoneWith(SessionId id, ModelId model);
  void ForgetModel(ModelId model);
  // Whether any session uses it.
  bool Used(ModelId model) const { return users_.contains(model); }

  // Puts what the sessions' users hold into `counted`, anew.
  void CountInto(QuotaBook& counted, const CopyTable& copies) const;
  // That each claim is a lease or waits; what is not so is our bug. For tests.
  void Check() const;

 private:
  void Unclaim(Session& session, const CopyRef& copy);

  QuotaBook& quota_;
  std::map<SessionId, Session> sessions_;
  absl::flat_hash_map<ModelId, uint32_t> users_;  // Sessions, if there are any.
  absl::flat_hash_map<LeaseId, Lease> leases_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_SESSION_BOOK_H_
