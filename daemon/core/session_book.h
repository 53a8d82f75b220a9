// Sessions: the models that each uses, its leases and its waiting stages.
#ifndef HOIST_DAEMON_CORE_SESSION_BOOK_H_
#define HOIST_DAEMON_CORE_SESSION_BOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/quota.h"
#include "daemon/core/requests.h"
#include "daemon/types/ids.h"

namespace hoistd {

// A stage claims its device copy from the request on: first as a waiting stage,
// then as a lease, until its release. So each claim is one waiting stage or one
// lease. In `quota` the copy counts for the session's user while the session
// has a claim on it.
//
// A session uses a model from the time it finds, registers, publishes or
// requests it, until it says that it is done with the model, or ends.
//
// Threads:  one at a time.
// Owns:     the claims. Borrows `quota`, which must outlive this object.
// Bounds:   as many sessions as quotas allow; claims as devices have room.
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
    std::map<CopyRef, uint32_t> claims;  // Number per copy.
    std::set<ModelId> models;            // In use.
    bool assumed = false;                // It has not said yet which it uses.
    uint32_t waiting = 0;                // Stages.

    User uid() const { return args.peer.uid; }
  };

  explicit SessionBook(QuotaBook& quota) : quota_(quota) {}
  SessionBook(const SessionBook&) = delete;
  SessionBook& operator=(const SessionBook&) = delete;

  // ResourceExhausted: the user has reached the quota of sessions.
  absl::Status CheckMore(User uid) const;
  void Open(SessionId id, const OpenSessionArgs& args, absl::Time now);
  // The session must have no lease and no waiting stage.
  void Close(SessionId id);

  // nullptr: there is none.
  const Session* Find(SessionId id) const;
  const Session& At(SessionId id) const { return sessions_.at(id); }
  const std::map<SessionId, Session>& all() const { return sessions_; }

  // ResourceExhausted: the copy would exceed the device quota of the session's
  // user.
  absl::Status CheckClaim(SessionId id, const CopyRef& copy,
                          uint64_t bytes) const;
  // Adds a waiting stage.
  void Claim(SessionId id, const CopyRef& copy, uint64_t bytes);
  // The waiting stage became a lease,
  void Grant(SessionId id, LeaseId lease, const CopyRef& copy);
  // or was refused. The session may be gone.
  void Refuse(SessionId id, const CopyRef& copy);
  // nullptr: there is none.
  const Lease* FindLease(LeaseId id) const;
  Lease EndLease(LeaseId id);
  size_t lease_count() const { return leases_.size(); }

  // It may use all of these: it is to say which, and else keeps all.
  void Assume(SessionId id, const std::vector<ModelId>& models);
  void Say(SessionId id, const std::optional<std::vector<ModelId>>& models);
  // Whether that is open for a session that may use it.
  bool Assumed(ModelId model) const;
  // The session must exist.
  void Use(SessionId id, ModelId model);
  void DoneWith(SessionId id, ModelId model);
  void ForgetModel(ModelId model);
  // Whether this session uses it; false if there is none.
  bool Uses(SessionId id, ModelId model) const;
  // Whether any session does.
  bool Used(ModelId model) const { return users_.contains(model); }

  // Checks that each claim is a lease or a waiting stage; a mismatch is our
  // bug. For tests.
  void Check() const;

 private:
  void Unclaim(Session& session, const CopyRef& copy);

  QuotaBook& quota_;
  std::map<SessionId, Session> sessions_;
  absl::flat_hash_map<ModelId, uint32_t> users_;  // Number of sessions, if any.
  absl::flat_hash_map<LeaseId, Lease> leases_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_SESSION_BOOK_H_
