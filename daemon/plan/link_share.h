// Who may use a device's link next: fair by bytes among those who copy.
#ifndef HOIST_DAEMON_PLAN_LINK_SHARE_H_
#define HOIST_DAEMON_PLAN_LINK_SHARE_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// What a copy is for.
enum class LinkClass {
  kPlans,       // A ring that a plan streams through; a worker's own copies.
  kLeases,      // A group that somebody waits for.
  kBackground,  // What was loaded or prefetched, or is read back to be looked
                // at, and nobody waits for.
};
inline constexpr size_t kLinkClasses = 3;

// Who copies: a plan or a copier, who waits for leases, and of the background
// what goes to the device and what comes from it.
struct LinkParty {
  LinkClass of = LinkClass::kPlans;
  PlanId plan;         // kPlans alone: this
  CopierId copier;     // or this is set.
  bool reads = false;  // From the device.

  static constexpr LinkParty Of(PlanId plan) {
    return {.of = LinkClass::kPlans, .plan = plan};
  }
  static constexpr LinkParty Of(CopierId copier) {
    return {.of = LinkClass::kPlans, .copier = copier};
  }
  static constexpr LinkParty Leases() { return {.of = LinkClass::kLeases}; }
  static constexpr LinkParty Background() {
    return {.of = LinkClass::kBackground};
  }
  static constexpr LinkParty Reads() {
    return {.of = LinkClass::kBackground, .reads = true};
  }
  auto operator<=>(const LinkParty&) const = default;
};

struct ShareOptions {
  // Bytes are shared in proportion among plans and copiers of one priority.
  uint32_t weight = 1;  // 1 to kMaxWeight.
  // Who has a higher one goes before the others whenever it has something to
  // copy.
  int32_t priority = 0;
  uint64_t max_bytes_per_second = 0;  // 0: no cap.

  static constexpr uint32_t kMaxWeight = 1000;
  static constexpr int32_t kMaxPriority = 10;  // And -10 at the least.
};

// What is to be different from now on; the rest stays as it is.
struct ShareChange {
  std::optional<uint32_t> weight;
  std::optional<int32_t> priority;
  std::optional<uint64_t> max_bytes_per_second;

  ShareOptions AppliedTo(ShareOptions share) const {
    share.weight = weight.value_or(share.weight);
    share.priority = priority.value_or(share.priority);
    share.max_bytes_per_second =
        max_bytes_per_second.value_or(share.max_bytes_per_second);
    return share;
  }
};

// A plan; a copier; or what is loaded to a device and nobody waits for, of
// which the cap alone can change.
using ShareOf = std::variant<PlanId, DeviceIndex, CopierId>;

// What a change did.
struct ShareChanged {
  ShareOptions before;
  ShareOptions after;
};

// Start-time fair queueing (Goyal, Vin, Cheng; SIGCOMM 1996) in two levels:
// between the classes, whose weights are fixed, and in a class among the
// parties of its highest priority that have something to copy. A token bucket
// keeps each cap. Who had nothing to copy for a while does not save up a claim,
// nor does one that its cap held back.
//
// So of the bytes that all three want, 48 of 65 are plans' and copiers', 16
// leases' and one the background's: whatever plans' priorities are, who waits
// for a lease has a quarter, and a load ends some day. What one class does not
// want is the others', by the same weights.
//
// In any stretch a party copies at most what its cap allows, kBurstBytes and
// one copy more. Naming a party that was not added is a bug of the caller.
//
// Threads: one at a time.
// Bounds:  a call costs at most one pass over the parties.
class LinkShare {
 public:
  // Two of the Link's pieces: fewer would leave it idle while nobody looks.
  static constexpr uint64_t kBurstBytes = uint64_t{64} << 20;
  // By LinkClass.
  static constexpr std::array<uint32_t, kLinkClasses> kWeights = {48, 16, 1};

  void Add(LinkParty party, const ShareOptions& options);
  void Remove(LinkParty party);
  // Takes effect with the next copy. What is owed to an old cap is paid at the
  // rate of the new one; without a cap nothing is owed.
  void Set(LinkParty party, const ShareOptions& options);

  // Of the parties in `ready`, which all have a copy to start, the one whose
  // turn it is; nullopt: all are held back by their caps, until NextTurn.
  std::optional<LinkParty> Pick(const std::vector<LinkParty>& ready,
                                absl::Time now);
  // `bytes` of the party's go over the link now.
  void Charge(LinkParty party, uint64_t bytes, absl::Time now);
  // The class has had no more than its part: if it had something to copy it
  // would be its turn now, whoever else is ready.
  bool IsOwed(LinkClass of) const;
  // When the first of `ready` that has a cap may go on; InfiniteFuture: none
  // has one. Pick is not nullopt then.
  absl::Time NextTurn(const std::vector<LinkParty>& ready) const;

 private:
  // Of one who takes turns: when its last copy began, in the virtual time of
  // those it takes them with (bytes at weight 1), and how long it was. With the
  // weight of today they say when it ends.
  struct Turn {
    double start = 0;
    uint64_t bytes = 0;

    double finish(uint32_t weight) const {
      return start + double(bytes) / weight;
    }
  };
  struct Entry {
    ShareOptions options;
    Turn turn;
    // What was copied beyond the cap's rate, at `as_of`.
    double owed = 0;
    absl::Time as_of = absl::InfinitePast();

    absl::Time AllowedAt() const;
  };
  // Parties that take turns with each other.
  using Level = std::pair<LinkClass, int32_t>;
  static Level LevelOf(LinkParty party, const ShareOptions& options) {
    return {party.of, options.priority};
  }

  Entry& Of(LinkParty party);
  double StartOfNext(LinkParty party, const Entry& entry) const;
  double StartOfNext(LinkClass of) const;
  void ChargeCap(Entry& entry, uint64_t bytes, absl::Time now);
  void Rebase(Level level);

  std::map<LinkParty, Entry> parties_;
  // When the copy that was begun last began.
  std::map<Level, double> virtual_time_;
  std::array<Turn, kLinkClasses> classes_;
  double classes_time_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_LINK_SHARE_H_
