// Which session has which slab open, and who was asked to close one.
//
// A slab's memory comes free when nobody maps it any more. Workers keep what
// they once mapped, since they will most likely need it again; where another
// needs the memory they are asked to close what they have no use for.
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
#include "daemon/terms/device.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// A slab that a session uses, which is to say has a lease or a ring in, is not
// one that it is asked to close; and when it uses it again, what it was asked
// before no longer means it.
//
// Threads:  one at a time.
// Bounds:   an entry for each session and slab that it was given.
class SlabBook {
 public:
  // For an answer to come. A worker that runs needs milliseconds.
  static constexpr absl::Duration kAnswerPatience = absl::Seconds(2);
  // Until who has said no is asked again.
  static constexpr absl::Duration kAskAgain = absl::Seconds(10);

  // Open, and used by none of its user's sessions.
  struct Idle {
    SlabId slab;
    uint64_t bytes = 0;
    bool kept = false;  // Who was asked to close it has not.
  };
  // A session that did not answer, and what it keeps open.
  struct Silent {
    SessionId session;
    User uid;
    DeviceIndex device;
    uint64_t bytes = 0;
  };
  struct Looked {
    bool changed = false;  // What OpenedBy says of some slab.
    std::vector<Silent> silent;
  };

  // One that does not close slabs keeps each that it is asked for.
  void AddSession(SessionId id, User uid, bool closes_slabs);
  // It has none open any more.
  void RemoveSession(SessionId id);

  // One more of the session's leases and rings lies there. True: the slab must
  // be sent to it, which does not have it, or may have closed it.
  bool Use(SessionId id, DeviceIndex device, const SlabSpec& slab);
  // One less. True: it was the last.
  bool Leave(SessionId id, DeviceIndex device, SlabId slab);

  // Puts what those who have the slabs open are to be asked into `asks`: all of
  // them, or `uid`'s alone. They use none of them. Who was asked before is not
  // asked again. True: one of them keeps its slab.
  bool Ask(DeviceIndex device, const std::vector<SlabId>& slabs,
           std::optional<User> uid, absl::Time now, std::vector<SlabAsk>& asks);
  // Nobody knows which slabs the session has open: this may be one of them.
  void MayBeOpen(SessionId id, DeviceIndex device, const SlabSpec& slab);
  // It has no other slabs open than these. What it is said to use and has not
  // open, since it never heard of that use, is sent with its next one.
  void Keep(SessionId id, const std::set<OpenSlab>& slabs);
  // The answer to an ask. False: it means nothing here.
  bool Closed(SessionId id, const SlabsClosedArgs& closed, absl::Time now);
  // Who has not answered in time keeps its slabs; who said no may be asked
  // again.
  Looked LookAt(absl::Time now);
  // When LookAt has something to do, at the earliest.
  absl::Time due() const { return due_; }

  bool HasOpen(SessionId id, DeviceIndex device, SlabId slab) const;
  Opened OpenedBy(DeviceIndex device, SlabId slab) const;
  // What was asked for and is kept open, by the user's sessions or by all. A
  // slab counts once.
  uint64_t KeptBytes(DeviceIndex device, std::optional<User> uid) const;
  std::vector<Idle> IdleOf(User uid, DeviceIndex device,
                           const std::vector<SlabSpec>& but) const;
  // That what is said above is so; what is not is our bug. For tests.
  void Check() const;

 private:
  using Where = OpenSlab;
  struct Given {
    uint64_t bytes = 0;
    uint32_t uses = 0;
    uint64_t asked = 0;   // The ask that it has not answered; 0: none.
    bool kept = false;    // It was asked, and did not close it in time.
    bool unsent = false;  // It is used, and not open: a use it never heard of.
    absl::Time look_at;   // When that changes, if nothing happens.
  };
  struct Session {
    User uid;
    bool closes_slabs = false;
    std::map<Where, Given> slabs;
  };

  const Given& At(SessionId id, const Where& where) const {
    return sessions_.at(id).slabs.at(where);
  }
  bool AskOne(SessionId id, const Where& where, absl::Time now,
              std::vector<SlabAsk>& asks);
  void NotOpen(SessionId id, const Where& where);
  void LookNoLaterThan(absl::Time then) { due_ = std::min(due_, then); }
  // Whether time alone changes something about it.
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
