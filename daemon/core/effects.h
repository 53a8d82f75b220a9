// What Node says is to be done about an event.
#ifndef HOIST_DAEMON_CORE_EFFECTS_H_
#define HOIST_DAEMON_CORE_EFFECTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/device_space.h"
#include "daemon/core/requests.h"
#include "daemon/core/snapshot.h"
#include "daemon/core/transfer.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// One answer. Exactly one comes for each request that says so.
struct Answer {
  RequestId request;
  absl::Status status;
  std::optional<LeaseGrant> lease;  // Stage.
  std::optional<PlanGrant> plan;    // SetPlan.
  std::optional<ArenaGrant> arena;  // OpenArena.
  ModelPtr model;                   // Publish.
  CheckedGroup checked;             // Check.
};

// A group that a plan asked to be held on the host, or why it cannot be.
struct HeldGroup {
  PlanId plan;
  GroupIndex group;
  absl::StatusOr<ImageRanges> host;
};

// A plan that is to give back what it holds on the host and needs latest, for
// what a plan needs now: so that what that is of its own has room, or `bytes`
// of others.
struct CrowdedPlan {
  PlanId plan;
  uint64_t bytes = 0;
};

struct EndedPlan {
  PlanId plan;
  DeviceIndex device;
};

// A published model has so many groups by now; 0: it is forgotten.
struct PublishedCount {
  User owner;
  std::string model;
  uint32_t groups = 0;
};

// What is to be done about an event, in order.
struct Effects {
  // Of each device in this order, one after another. Node::SlabMade tells of
  // those that are made; until then nobody was told of them, and no transfer
  // goes there.
  std::vector<SlabWork> slabs;
  std::vector<SlabAsk> asks;  // To be sent before what `answers` brings.
  std::vector<Answer> answers;
  std::vector<Transfer> transfers;
  std::vector<TransferId> urgent;  // Transfers that a stage now waits for.
  std::vector<SpillId> unspill;    // Spilled images to remove.
  std::vector<ModelId> forgotten;  // Their files can be closed.
  std::vector<PublishedCount> published;
  std::vector<NodeEvent> events;
  std::vector<HeldGroup> held;
  std::vector<CrowdedPlan> crowded;
  // Plans that are over: when nothing copies into their rings any more,
  // FreePlan gives these back.
  std::vector<EndedPlan> ended;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_EFFECTS_H_
