// The effects of an event, as Node decides them.
#ifndef HOIST_DAEMON_CORE_EFFECTS_H_
#define HOIST_DAEMON_CORE_EFFECTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/counters.h"
#include "daemon/core/device_space.h"
#include "daemon/core/node_event.h"
#include "daemon/core/requests.h"
#include "daemon/core/transfer.h"
#include "daemon/types/ids.h"

namespace hoistd {

// One answer. Each request that announces one gets exactly one.
struct Answer {
  RequestId request;
  absl::Status status;
  std::optional<LeaseGrant> lease;  // Stage.
  std::optional<PlanGrant> plan;    // SetPlan.
  std::optional<ArenaGrant> arena;  // OpenArena.
  ModelPtr model;                   // Publish.
  CheckedGroup checked;             // Check.
};

// A group that a plan asked to hold on the host, or why it cannot be held.
struct HeldGroup {
  PlanId plan;
  GroupIndex group;
  absl::StatusOr<ImageRanges> host;
};

// Asks a plan to release the host copies that it needs last, to make room: for
// its own next group, or for `bytes` of another plan's.
struct CrowdedPlan {
  PlanId plan;
  uint64_t bytes = 0;
};

struct EndedPlan {
  PlanId plan;
  DeviceIndex device;
};

// The published model has this many groups now; 0: it is forgotten.
struct PublishedCount {
  User owner;
  std::string model;
  uint32_t groups = 0;
};

// The effects of an event, in order.
struct Effects {
  // In this order, each device in sequence. Node::SlabMade reports those that
  // are made. Until then no client learns of them, and no transfer goes there.
  std::vector<SlabWork> slabs;
  std::vector<SlabAsk> asks;  // To be sent before the `answers`.
  std::vector<GiveWay> give_way;
  std::vector<Answer> answers;
  std::vector<Transfer> transfers;
  std::vector<TransferId> urgent;  // Transfers that a stage now waits for.
  std::vector<SpillId> unspill;    // Spilled images to remove.
  std::vector<ModelId> forgotten;  // Their files can be closed.
  std::vector<PublishedCount> published;
  std::vector<NodeEvent> events;
  std::vector<HeldGroup> held;
  std::vector<CrowdedPlan> crowded;
  // Ended plans: once no copy goes to their rings, FreePlan frees the rings.
  std::vector<EndedPlan> ended;
};

// What happened to a copy, for Watch.
void Note(Effects& effects, const CopyTable& copies, EventKind kind,
          const CopyRef& ref, std::string detail = "");
// The same for an evicted copy, which it counts.
void NoteEviction(Effects& effects, const CopyTable& copies, Counters& counters,
                  const CopyRef& ref, Leaving::Why why);

// Counts the bytes of a transfer that succeeded.
void Count(const Transfer& transfer, Counters& counters);

// Answers the request if `status` is an error. True: it was.
bool Refuses(Effects& effects, RequestId request, const absl::Status& status);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_EFFECTS_H_
