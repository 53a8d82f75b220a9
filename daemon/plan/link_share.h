// Shares a device's link among its users, fairly by bytes.
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
#include "daemon/types/ids.h"

namespace hoistd {

// The purpose of a copy.
enum class LinkClass {
  kPlans,       // A plan's ring; a worker's own copies.
  kLeases,      // A group with a waiter.
  kBackground,  // Loads, prefetches and reads for checks,
                // all without a waiter.
};
inline constexpr size_t kLinkClasses = 3;

// A party that copies: a plan, a permit, all leases, or the background's loads
// or reads.
struct LinkParty {
  LinkClass of = LinkClass::kPlans;
  PlanId plan;         // kPlans: this
  PermitId permit;     // or this is set.
  bool reads = false;  // From the device.

  static constexpr LinkParty Of(PlanId plan) {
    return {.of = LinkClass::kPlans, .plan = plan};
  }
  static constexpr LinkParty Of(PermitId permit) {
    return {.of = LinkClass::kPlans, .permit = permit};
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
  // Plans and permits of one priority share bytes in this proportion.
  uint32_t weight = 1;  // 1 to kMaxWeight.
  // Strict: while a party of higher priority has copies, lower ones wait.
  int32_t priority = 0;
  uint64_t max_bytes_per_second = 0;  // 0: no cap.

  static constexpr uint32_t kMaxWeight = 1000;
  static constexpr int32_t kMaxPriority = 10;  // Minimum: -10.
};

// A change of options; unset ones stay.
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

// A plan; a permit; or a device's loads without waiters, of which only the cap
// can change.
using ShareOf = std::variant<PlanId, DeviceIndex, PermitId>;

// The effect of a change.
struct ShareChanged {
  ShareOptions before;
  ShareOptions after;
};

// Start-time fair queueing (Goyal, Vin, Cheng; SIGCOMM 1996) in two levels:
// between classes with fixed weights, and in a class among the ready parties of
// its highest priority. A token bucket enforces each cap (rate limit). A party
// that was idle or held back by its cap saves up no claim.
//
// When all three classes are ready, 48 of 65 bytes go to plans and permits, 16
// to leases, 1 to the background. So at any plan priority, leases get a
// quarter, and a load makes progress. A class's unused part goes to the others,
// by the same weights.
//
// In any interval a party copies at most its cap, plus kBurstBytes and one
// copy. Naming a party that was not added is a bug of the caller.
//
// Threads: one at a time.
// Bounds:  a call costs at most one pass over the parties.
class LinkShare {
 public:
  // Two of the Link's pieces: fewer would idle the link between two looks.
  static constexpr uint64_t kBurstBytes = uint64_t{64} << 20;
  // By LinkClass.
  static constexpr std::array<uint32_t, kLinkClasses> kWeights = {48, 16, 1};

  void Add(LinkParty party, const ShareOptions& options);
  void Remove(LinkParty party);
  // Takes effect with the next copy. Debt to an old cap is paid at the new
  // rate; without a cap it is void.
  void Set(LinkParty party, const ShareOptions& options);

  // The next of the parties in `ready`, which all have a copy to start;
  // nullopt: caps hold back all of them, until NextTurn.
  std::optional<LinkParty> Pick(const std::vector<LinkParty>& ready,
                                absl::Time now);
  // `bytes` of the party go over the link now.
  void Charge(LinkParty party, uint64_t bytes, absl::Time now);
  // The class has had at most its part: with a copy ready it would be next,
  // whatever other classes are ready.
  bool IsOwed(LinkClass of) const;
  // The earliest time at which a capped party of `ready` may go on.
  // InfiniteFuture: none is capped; then Pick returns a party.
  absl::Time NextTurn(const std::vector<LinkParty>& ready) const;

 private:
  // A party's turn: the start of its last copy in its level's virtual time
  // (bytes at weight 1), and its length. Its end follows from the current
  // weight.
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
    // Bytes copied beyond the cap's rate, at `as_of`.
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
  // The virtual start of the last copy begun.
  std::map<Level, double> virtual_time_;
  std::array<Turn, kLinkClasses> classes_;
  double classes_time_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_PLAN_LINK_SHARE_H_
