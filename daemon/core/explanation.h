// Why a group's copies are where they are, what would move them, and what it
// would cost: behind `hoistctl explain`.
#ifndef HOIST_DAEMON_CORE_EXPLANATION_H_
#define HOIST_DAEMON_CORE_EXPLANATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/residency.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/tier.h"

namespace hoistd {

// What keeps a copy where it is, or is about to have it there.
struct Keeper {
  enum class By {
    kLease,     // A session computes with it.
    kPin,       // An admin pinned it.
    kResident,  // A plan has it there for its life.
    kHold,      // A plan that streams it holds it on the host.
    kStream,   // A plan streams it through its ring; it has no copy of its own.
    kWait,     // A session waits for it.
    kCopying,  // Its bytes are on their way, in or out.
    kOnlyCopy,  // It would be lost: it is on no disk, and cannot be spilled
                // now.
  };
  By by = By::kLease;
  SessionId session;  // Of a lease, a plan or a wait.
  PlanId plan;        // Of a plan.
  std::string client_name;
};

// How a copy that was there went.
struct Leaving {
  enum class Why { kEvicted, kByAdmin };
  Why why = Why::kEvicted;
  absl::Time at;
};

struct CopyExplanation {
  TierAt at;
  Residency residency = Residency::kAbsent;
  std::vector<Keeper> keepers;
  // It may make room for others now: nothing keeps it.
  bool may_leave = false;
  // Then: who asks for more than this here is given it last of all. What is
  // free, and what is worth less and goes before.
  uint64_t free_bytes = 0;
  uint64_t before_bytes = 0;
  absl::Duration since_use;                 // Of one that is there.
  std::optional<absl::Duration> until_use;  // As an order tells.
  // About, to have it here again, or at last; nullopt: it is nowhere else.
  std::optional<absl::Duration> bring;
  Tier from = Tier::kDisk;      // Where it would come from.
  std::optional<Leaving> left;  // Of one that is not there any more.
  std::string blocked;          // Why who waits for it has to.
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
