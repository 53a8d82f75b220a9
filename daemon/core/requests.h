// Requests to the node and their answers as plain values: arguments and results
// of the verbs, independent of any transport.
#ifndef HOIST_DAEMON_CORE_REQUESTS_H_
#define HOIST_DAEMON_CORE_REQUESTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/heat_book.h"
#include "daemon/model/grouping.h"
#include "daemon/model/model.h"
#include "daemon/model/source_tensor.h"
#include "daemon/model/tensor.h"
#include "daemon/plan/link_share.h"
#include "daemon/plan/planner.h"
#include "daemon/types/device.h"
#include "daemon/types/ids.h"
#include "daemon/types/tier.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct Model;
using ModelPtr = std::shared_ptr<const Model>;
struct Resumed;
struct LeaseGrant;
struct OpenedPlan;
struct ArenaGrant;
struct OpenedPermit;

// The peer of a connection, as the kernel reports it.
struct Peer {
  User uid;  // Or the owner of the socket it used.
  int32_t pid = 0;
  // Root, hoistd's own uid, or a member of group hoist-admin; never from a
  // container or through a tenant's socket.
  bool admin = false;
  std::string via;  // "socket", "grpc".
  // Would be an admin, but has other user or pid namespaces.
  bool apart = false;
};

// Requests. `Result` is what the answer carries; void: only its status.
struct OpenSessionArgs {
  using Result = SessionId;

  std::string client_name;
  Peer peer;
  uint64_t device_budget_bytes = 0;  // 0: no limit of its own.
  bool closes_slabs = false;         // It answers a SlabAsk.
  // Its end of the connection, by which the session resumes with hoistd's
  // successor; nullptr: it cannot resume.
  std::shared_ptr<hoist::UniqueFd> socket;
  uint32_t protocol = 0;  // Its version of the session protocol.
};

// A session's client's holdings after the death of its hoistd.
struct OpenSlab {
  DeviceIndex device;
  SlabId slab;

  auto operator<=>(const OpenSlab&) const = default;
};
struct ResumeArgs {
  using Result = Resumed;

  std::vector<LeaseId> leases;
  std::vector<PlanId> plans;
  std::vector<OpenSlab> slabs;
  std::vector<ArenaId> arenas;
  std::optional<std::vector<ModelId>> models = {};  // In use, if it knows.
};
// The part of those that the session no longer has.
struct Resumed {
  std::vector<LeaseId> lost_leases;
  std::vector<PlanId> lost_plans;
  std::vector<ArenaId> lost_arenas;
};

// A file opened by the caller (or, for gRPC paths, by us below model_roots).
struct OpenFile {
  std::string name;  // Base name.
  hoist::UniqueFd fd;
};

// Requests of a session; SessionRequest, below, lists them.
struct RegisterModelArgs {
  using Result = ModelPtr;

  std::string name;
  std::vector<OpenFile> shards;
  std::optional<OpenFile> index;
  std::vector<JoinedTensor> joined;
  GroupingSpec grouping;
  std::optional<Readers> readers;  // nullopt: as configured.
};

struct PublishArgs {
  using Result = ModelPtr;

  std::string model;
  Group group;            // From the client: hostile until checked.
  hoist::UniqueFd image;  // A memfd sealed against writes.
  std::optional<Readers> readers;
  absl::Duration deadline =
      absl::Seconds(60);            // To wait for space on the host.
  std::optional<Content> expected;  // Other content is refused.
  bool of_session = false;          // The model ends with it.
};

struct DescribeModelArgs {
  using Result = ModelPtr;

  std::string name;
};

// By content, under any name; see Tenure::FindByContent.
struct FindContentArgs {
  using Result = ModelPtr;

  Content content;
};

// PermissionDenied: another user's model.
struct ForgetModelArgs {
  using Result = void;

  ModelId model;
};

struct StageArgs {
  using Result = LeaseGrant;

  GroupKey key;
  DeviceIndex device;
  absl::Duration deadline;  // Zero: no wait for space.
  bool apart = false;       // In a slab of its own.
  // Evicts with care, and copies with spare link bandwidth only.
  bool background = false;
  // In a slab with an IPC handle (gRPC workers on CUDA).
  bool shared = false;
};

// Copies a group's image into the client's memfd, by way of the host.
// InvalidArgument: the memfd is not what ReadImage needs.
struct ReadImageArgs {
  using Result = void;

  GroupKey key;
  absl::Duration deadline;  // Zero: no wait for space.
  // The client's memfd, of exactly this size for good; hostile until hoistd has
  // sealed it.
  hoist::UniqueFd memfd;
  uint64_t memfd_bytes = 0;
};

struct HeatArgs {
  using Result = std::vector<GroupHeat>;  // The model's known heat.

  ModelId model;
  std::vector<GroupHeat> heat;
  DeviceIndex device;  // The device that read them.
  uint64_t touched_hot_bytes = 0;
  uint64_t touched_cold_bytes = 0;
};

// Answered when the groups are queued, before they arrive.
struct PrefetchArgs {
  using Result = void;

  ModelId model;
  std::vector<GroupIndex> groups;
  TierAt to;
};

struct ReleaseArgs {
  using Result = void;

  std::vector<LeaseId> leases;
};

struct SetOrderArgs {
  using Result = void;

  ModelId model;
  std::vector<GroupIndex> groups;
  bool forget = false;  // The model, if no session uses it; see Registry.
};

// What another process needs to open a slab. `share.fd` is borrowed and valid
// while its lease is held.
struct SlabUse {
  SlabSpec slab;
  SlabShare share;
};

// Asks a session to close slabs in which it has neither lease nor ring, since
// others need their memory. The answer is Node::SlabsClosed. Slabs given to it
// again later are exempt.
struct SlabAsk {
  SessionId session;
  DeviceIndex device;
  uint64_t number = 0;  // Not 0.
  std::vector<SlabId> slabs;
};

// The session has closed these slabs of the ask.
struct SlabsClosedArgs {
  using Result = void;

  DeviceIndex device;
  uint64_t number = 0;  // The ask's.
  std::vector<SlabId> slabs;
};

struct LeaseGrant {
  LeaseId id;
  GroupKey key;
  DeviceIndex device;
  uint64_t offset = 0;  // Of the image, in the device's span.
  uint64_t bytes = 0;
  bool was_resident = false;
  bool apart = false;              // In a slab of its own.
  std::vector<SlabUse> new_slabs;  // New to this session.
};

// The device's pool leaves memory to the session; see Headroom::Spare.
struct SpareArgs {
  using Result = void;

  DeviceIndex device;
  uint64_t bytes = 0;
  absl::Duration deadline;  // To wait for others to give way.
};

// Leases memory that the session writes to; see Arenas::Open. Its slabs'
// descriptors are borrowed, as a lease's are. Unimplemented: the node has no
// such memory.
struct ArenaArgs {
  using Result = ArenaGrant;

  uint64_t bytes = 0;
  absl::Duration deadline;  // To wait for space.
};

// Memory of this session alone, writable until its close.
struct ArenaGrant {
  ArenaId id;
  DeviceIndex device;
  uint64_t bytes = 0;          // At least as requested.
  std::vector<SlabUse> slabs;  // The memory is these, end to end.
};

struct CloseArenaArgs {
  using Result = void;

  ArenaId arena;
};

// Sets a plan and opens its lane. The replaced plan ends first, unless the
// request itself is refused: then it stands, and the code is ResourceExhausted
// or InvalidArgument, which no later refusal has. Aborted: it ended, and the
// new plan found no space.
struct SetPlanArgs {
  using Result = OpenedPlan;

  ModelId model;
  DeviceIndex device;
  uint64_t budget_bytes = 0;      // 0: the most that can be promised.
  std::vector<GroupIndex> order;  // One pass; may repeat groups.
  absl::Duration deadline;        // To wait for the ring's space.
  // A plan of the session to end for this one.
  std::optional<PlanId> replaces;
  absl::Duration stage_deadline = absl::Seconds(60);
  ShareOptions share;
  bool gives_way = false;  // The session heeds GiveWay and Wake.
  // By group of the model: its block, whose groups are staged together. Empty:
  // each group is a block.
  std::vector<uint32_t> blocks;
};

// A session's request for a plan.
struct PlanRequest {
  SessionId session;
  SetPlanArgs args;

  bool takes_all() const { return args.budget_bytes == 0; }  // That is free.
};

// Asks a session for the memory of a plan that gives way: once no pass has used
// the plan for `idle`, the session ends it.
struct GiveWay {
  SessionId session;
  PlanId plan;
  absl::Duration idle;
};

// Asks a session whose plans gave way to set them again.
struct Wake {
  SessionId session;
};

// Plans that were asked to give way, and those that do not.
struct PlanTotals {
  uint32_t asked = 0;
  uint64_t asked_bytes = 0;  // Of the device.
  uint32_t kept = 0;
  uint64_t kept_bytes = 0;
};

struct ClearPlanArgs {
  using Result = void;

  PlanId plan;
};

struct PlannedGroup {
  GroupIndex group;
  bool resident = false;
  Slot slot;  // Streamed: in the ring.
  uint64_t image_bytes = 0;
};

// A standing plan. Its residents are promised, not yet leased.
struct PlanGrant {
  PlanId id;
  ModelId model;
  DeviceIndex device;
  uint64_t budget_bytes = 0;
  std::vector<PlannedGroup> groups;  // In order of first use.
  std::vector<uint32_t> lane_order;  // The streamed groups, by rank.
  uint64_t ring_offset = 0;          // In the device's span.
  uint64_t ring_bytes = 0;
  uint64_t resident_bytes = 0;
  uint64_t streamed_bytes = 0;  // Per pass.
  uint32_t lead = 0;
  bool gives_way = false;
  bool takes_all = false;  // The request named no budget.
  bool lends() const { return gives_way && takes_all; }
  std::vector<SlabUse> new_slabs;  // Of the ring: Tenure::GiveSlabs.
};

// A plan and its lane; no lane if nothing is streamed.
struct OpenedPlan {
  PlanGrant grant;
  hoist::UniqueFd lane;
  hoist::UniqueFd wake;
};

// Opens a permit for the session's own copies to a device. It ends with the
// session. ResourceExhausted: the session, or its user, has too many.
struct OpenPermitArgs {
  using Result = OpenedPermit;

  DeviceIndex device;
  ShareOptions share;
};

struct OpenedPermit {
  PermitId id;
  hoist::UniqueFd memory;  // See hoist/shared/permit_layout.h.
  hoist::UniqueFd wake;
};

struct ClosePermitArgs {
  using Result = void;

  PermitId permit;
};

// All requests of a session. Each place that serves them visits this variant,
// so the compiler finds those that lack a new verb.
using SessionRequest =
    std::variant<RegisterModelArgs, PublishArgs, DescribeModelArgs,
                 FindContentArgs, ForgetModelArgs, StageArgs, ReadImageArgs,
                 PrefetchArgs, ReleaseArgs, HeatArgs, SetOrderArgs,
                 SlabsClosedArgs, SetPlanArgs, ClearPlanArgs, ArenaArgs,
                 CloseArenaArgs, OpenPermitArgs, ClosePermitArgs, SpareArgs>;

// A model at a moment: publishing adds groups under the same id.
struct Model {
  ModelId id;
  User owner;
  Readers readers = Readers::kOwner;
  std::shared_ptr<const ModelSpec> spec;
};

// The copies that an admin names.
struct CopySelector {
  std::string model;
  std::string group;         // Empty: all of the model's.
  std::optional<TierAt> at;  // nullopt: device 0..n and host.
  Peer asker;                // Gives names their meaning; see MeantBy.
};

struct CopyTotals {
  uint32_t groups = 0;
  uint64_t bytes = 0;
  uint32_t kept = 0;  // Evict: leased, pinned or being copied.
  std::string kept_reason;
};

struct LoadProgress {
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;
  uint32_t done_groups = 0;
  uint32_t total_groups = 0;
  uint32_t left_out_groups = 0;  // Without room; not an error.
  std::string left_out_reason;   // Of one of them.
};

// A check's finding, and its remedy.
struct CheckFinding {
  std::string group;  // "model/group".
  TierAt at;
  std::string what;
};

// Of one group.
struct CheckedGroup {
  uint64_t bytes = 0;  // Read, in all tiers.
  std::vector<CheckFinding> findings;
};

// The progress of `hoistctl check`.
struct CheckProgress {
  // The first findings; the others are only logged.
  static constexpr size_t kMostFindings = 256;

  uint32_t done_groups = 0;
  uint32_t total_groups = 0;
  uint64_t read_bytes = 0;
  uint32_t damaged = 0;  // Copies, including those not in `findings`.
  std::vector<CheckFinding> findings;
};

// A group published before this hoistd started, and where its bytes are.
struct RestoredGroup {
  std::string model;
  User owner;
  Readers readers = Readers::kOwner;
  std::shared_ptr<const Group> group;
  Content content = {};
  std::optional<SpillId> spill;
  // In the unchanged host pool: the image lies there if its content still
  // matches.
  std::optional<uint64_t> host_offset;
  // Its place in the model. Earlier ones are missing until they are restored or
  // published.
  GroupIndex index;
  // The model's former id; nullopt: a new one.
  std::optional<ModelId> model_id;
};

// A session of the last hoistd that resumes over its socket; or one that ends,
// whose client must be told.
struct ResumedSession {
  SessionId id;
  Peer peer;
  std::shared_ptr<hoist::UniqueFd> socket;
  uint32_t protocol = 0;  // As in OpenSessionArgs.
  // An error: why it ends. The node then does not know it.
  absl::Status ended;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_REQUESTS_H_
