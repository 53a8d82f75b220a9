// The slabs that each session has open, and requests to close them.
//
// A slab's memory is freed when no process maps it. Workers keep slabs mapped
// for reuse; when others need the memory, they are asked to close idle ones.
#ifndef HOIST_DAEMON_CORE_SLAB_BOOK_H_
#define HOIST_DAEMON_CORE_SLAB_BOOK_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/device_space.h"
#include "daemon/core/requests.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"

namespace hoistd {

// A session is not asked to close a slab that it uses, that is, in which it has
// a lease or a ring. A new use cancels earlier requests to close the slab.
//
// Threads:  one at a time.
// Bounds:   one entry per session and slab given to it.
class SlabBook {
 public:
  // For an answer. A running worker needs milliseconds: once one needs longer
  // than kPrompt, all that may help are asked, so that their silences do not
  // add up.
  static constexpr absl::Duration kAnswerPatience = absl::Seconds(2);
  static constexpr absl::Duration kPrompt = absl::Milliseconds(100);
  // Before a session that refused is asked again.
  static constexpr absl::Duration kAskAgain = absl::Seconds(10);

  // Open, but unused by its user's sessions.
  struct Idle {
    SlabId slab;
    uint64_t bytes = 0;
    bool kept = false;  // A session that was asked to close it has not.
  };
  // Slabs in which a user has leases or rings.
  struct InUse {
    uint64_t bytes = 0;
    uint64_t largest = 0;
  };
  // A session that did not answer, and the slabs that it keeps open.
  struct Silent {
    SessionId session;
    User uid;
    DeviceIndex device;
    uint64_t bytes = 0;
  };
  struct Looked {
    bool changed = false;  // OpenedBy of some slab, or what Ask asks for.
    std::vector<Silent> silent;
  };

  // A session without `closes_slabs` keeps each slab it is asked to close.
  void AddSession(SessionId id, User uid, bool closes_slabs);
  // It has no slabs open any more.
  void RemoveSession(SessionId id);

  // Adds a lease or ring of the session there. True: send it the slab, which it
  // lacks or may have closed.
  bool Use(SessionId id, DeviceIndex device, const SlabSpec& slab);
  // Removes one. True: it was the last.
  bool Leave(SessionId id, DeviceIndex device, SlabId slab);

  // Adds to `asks` requests for the slabs that all sessions, or those of `uid`,
  // have open; none uses them. If an answer is late there, then also for all
  // other unused slabs. Skips sessions already asked. True: a session keeps its
  // slab.
  bool Ask(DeviceIndex device, const std::vector<SlabId>& slabs,
           std::optional<User> uid, absl::Time now, std::vector<SlabAsk>& asks);
  // The session's open slabs are unknown: this may be one of them.
  void MayBeOpen(SessionId id, DeviceIndex device, const SlabSpec& slab);
  // It has only these slabs open. A slab that it uses but has not open, since
  // it never heard of the use, is sent with its next use.
  void Keep(SessionId id, const std::set<OpenSlab>& slabs);
  // An answer to an ask. False: it is void here.
  bool Closed(SessionId id, const SlabsClosedArgs& closed, absl::Time now);
  // Sessions without an answer in time keep their slabs; those that refused may
  // be asked again. Answers may be late from now on.
  Looked LookAt(absl::Time now);
  // The earliest time at which LookAt has work.
  absl::Time due() const { return due_; }

  bool HasOpen(SessionId id, DeviceIndex device, SlabId slab) const;
  Opened OpenedBy(DeviceIndex device, SlabId slab) const;
  // Whether the session keeps one open against a request.
  bool Keeps(SessionId id, DeviceIndex device) const;
  // Bytes of slabs kept open against requests, by the user's sessions or by
  // all. A slab counts once.
  uint64_t KeptBytes(DeviceIndex device, std::optional<User> uid) const;
  std::vector<Idle> IdleOf(User uid, DeviceIndex device,
                           const std::vector<SlabSpec>& but) const;
  // Each once; `more` are about to be used.
  InUse UsedBy(User uid, DeviceIndex device,
               const std::vector<SlabSpec>& more) const;
  // Checks the book; an inconsistency is our bug. For tests.
  void Check() const;

 private:
  using Where = OpenSlab;
  struct Given {
    uint64_t bytes = 0;
    uint32_t uses = 0;
    uint64_t asked = 0;   // The unanswered ask; 0: none.
    bool late = false;    // Its answer is.
    bool kept = false;    // Was asked, and did not close it in time.
    bool unsent = false;  // Used, but not open: a use it never heard of.
    absl::Time look_at;   // When time alone changes that.
  };
  struct Session {
    User uid;
    bool closes_slabs = false;
    std::map<Where, Given> slabs;
  };

  const Given& At(SessionId id, const Where& where) const {
    return sessions_.at(id).slabs.at(where);
  }
  bool AnswerIsLate(DeviceIndex device) const;
  bool IsUsed(const Where& where) const;
  bool AskOne(SessionId id, const Where& where, absl::Time now,
              std::vector<SlabAsk>& asks);
  void NotOpen(SessionId id, const Where& where);
  void LookNoLaterThan(absl::Time then) { due_ = std::min(due_, then); }
  // Whether time alone changes its state.
  static bool Waits(const Session& session, const Given& given) {
    return session.closes_slabs && (given.asked != 0) != given.kept;
  }

  std::map<SessionId, Session> sessions_;
  std::map<Where, std::set<SessionId>> openers_;
  absl::Time due_ = absl::InfiniteFuture();
  uint64_t last_ask_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_SLAB_BOOK_H_
