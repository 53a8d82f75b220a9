// Requests that wait for copies, and those that could proceed now.
//
// A need is tried when it is new, when the bytes it waits for have come, or
// when the space it waits for comes free. Nothing else scans needs: an event
// costs what it changes, however many wait.
#ifndef HOIST_DAEMON_CORE_NEED_BOOK_H_
#define HOIST_DAEMON_CORE_NEED_BOOK_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/copy_table.h"
#include "daemon/types/ids.h"
#include "daemon/types/tier.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Why there is no space yet. It names nobody, since users may wait together;
// NodePicture::TextFor adds the names that an asker may know.
struct Blocked {
  absl::Status why;
  std::optional<TierAt> at;  // Where space is short, and
  uint64_t bytes = 0;        // how much is needed.
  // An image on the host: while an urgent need finds no hole, no other one of
  // as many bytes does.
  bool alike = false;
};

// A request to bring up a copy, and its purpose.
struct BringArgs {
  RequestId request;
  SessionId session;  // Of a lease; others have none.
  CopyRef copy;
  absl::Time deadline;           // Past: no wait for space.
  bool lease = false;            // Else only bring it up,
  bool pin = false;              // and perhaps pinned.
  std::optional<ModelId> spare;  // Spares this model from eviction.
  bool urgent = true;            // Prefetches are not, and evict with care.
  std::optional<PlanId> hold;    // A host copy, held for this plan.
  // A host copy to copy into this memfd; kept until then.
  std::shared_ptr<hoist::UniqueFd> memfd;
  std::optional<Place> repair;  // A host copy to repair the copy there.
};

struct Waiter {
  RequestId request;
  SessionId session;
  absl::Time deadline;
  bool lease = false;
  bool pin = false;
  absl::Time since;              // Of a lease: when it was requested, and
  Tier nearest = Tier::kDevice;  // the nearest tier with the bytes then.
  bool waited = false;           // A transfer was needed.
  bool no_wait = false;          // Refused instead of waiting for space.
  std::optional<PlanId> hold;
  std::shared_ptr<hoist::UniqueFd> memfd;  // Target for the image.
  std::optional<Place> repair;             // Or copy to repair.
};

// A wanted copy that is not there yet.
struct Need {
  CopyRef copy;
  std::vector<Waiter> waiters;  // None: a prefetch.
  bool urgent = false;
  absl::Time give_up;  // Of a prefetch.
  std::optional<ModelId> spare;
  uint64_t tried_at = 0;  // Node's space epoch when space was refused.
  Blocked blocked;
  bool gated = false;  // Present, but plans may need its place.
};

// Threads: one at a time. References stay valid until their need is erased.
// Bounds:  when space comes free, only the oldest of needs that are blocked
//          alike is tried, and per place the oldest kPrefetchesTried
//          prefetches.
class NeedBook {
 public:
  static constexpr size_t kPrefetchesTried = 32;
  using Age = uint64_t;  // Grows: the older need has the smaller.

  // nullptr: nobody waits for the copy.
  Need* Find(const CopyRef& copy);
  const Need* Find(const CopyRef& copy) const;
  Need& At(Age age) { return needs_.at(age).need; }
  Age AgeOf(const CopyRef& copy) const { return ages_.at(copy); }
  // A new need, to be tried; nobody waits for the copy yet.
  Need& Add(const CopyRef& copy, Age age);
  void Erase(Age age);
  // Must follow each change of a need's waiters, urgency or `give_up`.
  void Changed(const Need& need);

  // Marks the need as to be tried.
  void Wake(const CopyRef& copy);
  // The same for all needs of the group.
  void Wake(GroupKey key);
  // The same for all that wait for space, within Bounds.
  void WakeBlocked();
  // Must follow the try of a need; erases it if it was met.
  void Tried(Age age, bool met);
  // Rest: not tried until woken. Block: until woken or space comes free.
  void Rest(const Need& need) { SetState(need, State::kResting); }
  void Block(const Need& need) { SetState(need, State::kBlocked); }
  // To call before a prefetch tries for space: the first of the blocked
  // prefetches ahead of it. nullptr: fewer than the bound are ahead.
  const Need* CrowdedBy(const Need& need) const;

  // Needs to be tried, oldest first.
  std::vector<Age> Ready(bool urgent) const;
  bool AnyReady() const;
  bool IsReady(Age age) const;

  // Needs with a waiter's deadline, or a prefetch's `give_up`, by `now`; and
  // blocked needs with waiters that do not wait for space.
  std::vector<Age> Due(absl::Time now) const;
  // The earliest deadline.
  absl::Time NextDeadline() const;

  bool empty() const { return needs_.empty(); }
  // Oldest first.
  std::vector<Age> Ages() const;
  std::vector<Age> AgesOf(GroupKey key) const;
  std::set<ModelId> Models() const;
  // Checks that each need is filed correctly; a mismatch is our bug. For tests.
  void Check() const;

 private:
  enum class State { kReady, kResting, kBlocked };
  // The keys by which a need is found.
  struct Filed {
    State state = State::kReady;
    bool urgent = false;
    bool prefetch = false;
    bool no_wait = false;           // And blocked.
    std::optional<uint64_t> alike;  // Blocked with others: for these bytes.
    absl::Time due;

    bool operator==(const Filed&) const = default;
  };
  struct Entry {
    Need need;
    Filed filed;
  };

  static Filed FiledAs(const Need& need, State state);
  void SetState(const Need& need, State state);
  void File(Age age, const Need& need, const Filed& filed);
  void Unfile(Age age, const Need& need, const Filed& filed);
  // The oldest of those that are blocked for these bytes.
  void WakeOldest(uint64_t alike);
  // If the need was woken as such, and is blocked no more: the next.
  void WakeNext(Age age);

  std::map<Age, Entry> needs_;
  std::map<CopyRef, Age> ages_;
  std::array<std::set<Age>, 2> ready_;                  // Not urgent, urgent.
  std::set<Age> blocked_;                               // Except prefetches,
  std::map<TierAt, std::set<Age>> blocked_prefetches_;  // which are here, and
  std::map<uint64_t, std::set<Age>> blocked_alike_;     // these, by bytes.
  std::map<Age, uint64_t> oldest_;  // Woken as the oldest for these bytes.
  std::set<std::pair<absl::Time, Age>> due_;
  std::set<Age> no_wait_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NEED_BOOK_H_
