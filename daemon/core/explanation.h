// Why a group's copies are where they are, what would move them, and at what
// cost: behind `hoistctl explain`.
#ifndef HOIST_DAEMON_CORE_EXPLANATION_H_
#define HOIST_DAEMON_CORE_EXPLANATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/residency.h"
#include "daemon/types/ids.h"
#include "daemon/types/tier.h"

namespace hoistd {

// The reason why a copy stays in its place, or is about to come there.
struct Keeper {
  enum class By {
    kLease,     // A session computes with it.
    kPin,       // An admin pinned it.
    kResident,  // A plan has it there for its life.
    kHold,      // A streaming plan holds it on the host.
    kStream,    // Streamed through a plan's ring; no copy of its own.
    kWait,      // A session waits for it.
    kCopying,   // Being copied, in or out.
    kOnlyCopy,  // Would be lost: not on disk, and not to be
                // spilled now.
  };
  By by = By::kLease;
  SessionId session;  // Of a lease, a plan or a wait.
  PlanId plan;        // Of a plan.
  std::string client_name;
};

// How a former copy left.
struct Leaving {
  enum class Why { kEvicted, kByAdmin };
  Why why = Why::kEvicted;
  absl::Time at;
};

struct CopyExplanation {
  TierAt at;
  Residency residency = Residency::kAbsent;
  std::vector<Keeper> keepers;
  // An eviction candidate: nothing keeps it.
  bool may_leave = false;
  // For a candidate: a request for more than this evicts it. Free bytes plus
  // those of copies worth less, which leave first.
  uint64_t free_bytes = 0;
  uint64_t before_bytes = 0;
  absl::Duration since_use;                 // Of a present copy.
  std::optional<absl::Duration> until_use;  // From an order hint.
  // Time to bring it here again, or for the first time; nullopt: no other copy.
  std::optional<absl::Duration> bring;
  Tier from = Tier::kDisk;      // Where that copy comes from.
  std::optional<Leaving> left;  // Of a former copy.
  std::string blocked;          // Why its waiter is blocked.
};

struct GroupExplanation {
  std::string name;
  GroupIndex index;
  uint64_t image_bytes = 0;
  std::vector<CopyExplanation> copies;  // Devices, the host, the disk.
  std::string lost;                     // Not empty: no tier has its bytes.
};

struct ModelExplanation {
  std::string model;
  bool published = false;
  std::vector<std::string> files;
  std::vector<GroupExplanation> groups;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_EXPLANATION_H_
