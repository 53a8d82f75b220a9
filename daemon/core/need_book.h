// Who waits for which copy, and who of them could go on now.
//
// A need is tried when it is new, when the bytes that it waits for have come,
// or when space came free that it waits for; nothing else looks at it. So an
// event costs what it changes, however many wait.
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
#include "daemon/terms/ids.h"
#include "daemon/terms/tier.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Why there is no space yet. It names nobody, since users may wait together:
// Node::TextFor says to each what it may know.
struct Blocked {
  absl::Status why;
  std::optional<TierAt> at;  // Where space is short, and
  uint64_t bytes = 0;        // how much is needed.
};

// A copy that is to be brought up, and what for.
struct BringArgs {
  RequestId request;
  SessionId session;  // Of a lease; any other need has none.
  CopyRef copy;
  absl::Time deadline;           // Past: only if it need not wait for space.
  bool lease = false;            // Else it is only brought up,
  bool pin = false;              // and perhaps pinned.
  std::optional<ModelId> spare;  // Evict none of this model.
  bool urgent = true;            // A prefetch is not, and evicts with care.
  std::optional<PlanId> hold;    // A host copy, for this plan's streaming.
  // A host copy, to be copied there; kept meanwhile.
  std::shared_ptr<hoist::UniqueFd> memfd;
  std::optional<Place> mend;  // A host copy, to be copied over that there.
};

struct Waiter {
  RequestId request;
  SessionId session;
  absl::Time deadline;
  bool lease = false;
  bool pin = false;
  absl::Time since;              // Of a lease: when it was asked for, and
  Tier nearest = Tier::kDevice;  // which tier had the bytes then.
  bool waited = false;           // A transfer was needed.
  bool no_wait = false;          // Refused rather than let wait for space.
  std::optional<PlanId> hold;
  std::shared_ptr<hoist::UniqueFd> memfd;  // The image is copied there.
  std::optional<Place> mend;               // Or over the copy there.
};

// Somebody wants a copy that is not there yet.
struct Need {
  CopyRef copy;
  std::vector<Waiter> waiters;  // None: it is a prefetch.
  bool urgent = false;
  absl::Time give_up;  // Of a prefetch.
  std::optional<ModelId> spare;
  uint64_t tried_at = 0;  // Node's space epoch when space was refused.
  Blocked blocked;
  bool gated = false;  // The copy is there, and plans may need its place.
};

// Threads: one at a time. References stay valid until their need is erased.
// Bounds:  of the prefetches that wait for space in one place the oldest
//          kPrefetchesTried are tried when some comes free.
class NeedBook {
 public:
  static constexpr size_t kPrefetchesTried = 32;
  using Age = uint64_t;  // Grows: who came first has the smaller one.

  // nullptr: nobody waits for it.
  Need* Find(const CopyRef& copy);
  const Need* Find(const CopyRef& copy) const;
  Need& At(Age age) { return needs_.at(age).need; }
  bool Has(Age age) const { return needs_.contains(age); }
  Age AgeOf(const CopyRef& copy) const { return ages_.at(copy); }
  // One for a copy that nobody waits for; it is to be tried.
  Need& Add(const CopyRef& copy, Age age);
  void Erase(Age age);
  // Must follow each change of a need's waiters, urgency or `give_up`.
  void Changed(const Need& need);

  // It is to be tried.
  void Wake(const CopyRef& copy);
  // All needs of the group are.
  void Wake(GroupKey key);
  // All that wait for space are, as far as Bounds says.
  void WakeBlocked();
  // It is tried no more until something wakes it; or until space comes free.
  void Rest(const Need& need) { SetState(need, State::kResting); }
  void Block(const Need& need) { SetState(need, State::kBlocked); }
  // Before it tries for space: a prefetch that others of its kind, which do not
  // get any, go before. The first of those; nullptr: there are not that many.
  const Need* CrowdedBy(const Need& need) const;

  // Those to be tried, oldest first.
  std::vector<Age> Ready(bool urgent) const;
  bool AnyReady() const;
  bool IsReady(Age age) const;

  // Those with a waiter, or a prefetch's patience, that ends by `now`, and
  // those blocked with waiters who would rather be refused than wait for space.
  std::vector<Age> Due(absl::Time now) const;
  // When the next deadline ends.
  absl::Time NextDeadline() const;

  bool empty() const { return needs_.empty(); }
  // Oldest first.
  std::vector<Age> Ages() const;
  std::vector<Age> AgesOf(GroupKey key) const;
  std::set<ModelId> Models() const;
  // That each need is filed as it is; what is not so is our bug. For tests.
  void Check() const;

 private:
  enum class State { kReady, kResting, kBlocked };
  // Under what a need is found.
  struct Filed {
    State state = State::kReady;
    bool urgent = false;
    bool prefetch = false;
    bool no_wait = false;  // And it waits for space.
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

  std::map<Age, Entry> needs_;
  std::map<CopyRef, Age> ages_;
  std::array<std::set<Age>, 2> ready_;                  // Not urgent, urgent.
  std::set<Age> blocked_;                               // But for prefetches,
  std::map<TierAt, std::set<Age>> blocked_prefetches_;  // which are here.
  std::set<std::pair<absl::Time, Age>> due_;
  std::set<Age> no_wait_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NEED_BOOK_H_
