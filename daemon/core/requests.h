// What is asked of the node and what it answers, as plain values: the verbs'
// arguments and results, free of any way of talking.
#ifndef HOIST_DAEMON_CORE_REQUESTS_H_
#define HOIST_DAEMON_CORE_REQUESTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/heat_book.h"
#include "daemon/model/grouping.h"
#include "daemon/model/model.h"
#include "daemon/model/source_tensor.h"
#include "daemon/model/tensor.h"
#include "daemon/plan/link_share.h"
#include "daemon/plan/planner.h"
#include "daemon/terms/device.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/tier.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Who is at the other end, as the kernel says.
struct Peer {
  User uid;  // Or whose socket it came through.
  int32_t pid = 0;
  // Root, hoistd's own uid, or in the group hoist-admin; not from a container,
  // nor through a tenant's socket.
  bool admin = false;
  std::string via;  // "socket", "grpc".
  // It would be an admin, but lives in other user or pid namespaces.
  bool apart = false;
};

struct OpenSessionArgs {
  std::string client_name;
  Peer peer;
  uint64_t device_budget_bytes = 0;  // 0: no limit of its own.
  bool closes_slabs = false;         // It answers a SlabAsk.
  // Its end of the connection, by which the session goes on with hoistd's
  // successor; nullptr: it cannot.
  std::shared_ptr<hoist::UniqueFd> socket;
  uint32_t protocol = 0;  // Of the session protocol: what it speaks there.
};

// What a session's client has of it, whose hoistd has died.
struct OpenSlab {
  DeviceIndex device;
  SlabId slab;

  auto operator<=>(const OpenSlab&) const = default;
};
struct ResumeArgs {
  std::vector<LeaseId> leases;
  std::vector<PlanId> plans;
  std::vector<OpenSlab> slabs;
  std::vector<ArenaId> arenas;
};
// Of that, what the session does not have any more.
struct Resumed {
  std::vector<LeaseId> lost_leases;
  std::vector<PlanId> lost_plans;
  std::vector<ArenaId> lost_arenas;
};

// A file that the caller opened (or, for gRPC paths, that we opened below
// model_roots).
struct OpenFile {
  std::string name;  // Base name.
  hoist::UniqueFd fd;
};

struct RegisterModelArgs {
  std::string name;
  std::vector<OpenFile> shards;
  std::optional<OpenFile> index;
  std::vector<JoinedTensor> joined;
  GroupingSpec grouping;
  std::optional<Readers> readers;  // nullopt: as configured.
};

struct PublishArgs {
  std::string model;
  Group group;            // As the client says: hostile until checked.
  hoist::UniqueFd image;  // A memfd sealed against writes.
  std::optional<Readers> readers;
  absl::Duration deadline =
      absl::Seconds(60);            // To wait for space on the host.
  std::optional<Content> expected;  // Nothing else is kept.
  bool of_session = false;          // The model ends with it.
};

struct StageArgs {
  GroupKey key;
  DeviceIndex device;
  absl::Duration deadline;  // Zero: only if it need not wait for space.
  bool apart = false;       // In a slab of its own.
  // It evicts with care, and copies what others leave of the link.
  bool background = false;
};

struct ReadImageArgs {
  GroupKey key;
  absl::Duration deadline;  // Zero: only if it need not wait for space.
  // A memfd of the client's, of exactly this size and no other ever; hostile
  // until hoistd has sealed it.
  hoist::UniqueFd memfd;
  uint64_t memfd_bytes = 0;
};

struct HeatArgs {
  ModelId model;
  std::vector<GroupHeat> heat;
  DeviceIndex device;  // Which read them.
  uint64_t touched_hot_bytes = 0;
  uint64_t touched_cold_bytes = 0;
};

struct PrefetchArgs {
  ModelId model;
  std::vector<GroupIndex> groups;
  TierAt to;
};

// What another process needs to open a slab. `share.fd` is borrowed, and valid
// while the lease that it came with is held.
struct SlabUse {
  SlabSpec slab;
  SlabShare share;
};

// A session is to close slabs in which it has neither lease nor ring, since
// their memory is needed elsewhere. Its answer is Node::SlabsClosed. Slabs that
// it is given again later are not meant any more.
struct SlabAsk {
  SessionId session;
  DeviceIndex device;
  uint64_t number = 0;  // Not 0.
  std::vector<SlabId> slabs;
};

struct SlabsClosedArgs {
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
  std::vector<SlabUse> new_slabs;  // Not given to this session before.
};

struct ArenaArgs {
  uint64_t bytes = 0;
  absl::Duration deadline;  // To wait for space.
};

// Memory that the session alone has, and may write to, until it closes it.
struct ArenaGrant {
  ArenaId id;
  DeviceIndex device;
  uint64_t bytes = 0;          // No less than was asked for.
  std::vector<SlabUse> slabs;  // It is these, end to end.
};

struct SetPlanArgs {
  ModelId model;
  DeviceIndex device;
  uint64_t budget_bytes = 0;      // 0: as much as can be promised.
  std::vector<GroupIndex> order;  // Of one pass; may repeat groups.
  absl::Duration deadline;        // To wait for the ring's space.
  // A plan of the session that ends for this one.
  std::optional<PlanId> replaces;
  absl::Duration stage_deadline = absl::Seconds(60);
  ShareOptions share;
};

struct PlannedGroup {
  GroupIndex group;
  bool resident = false;
  Slot slot;  // Streamed: in the ring.
  uint64_t image_bytes = 0;
};

// A plan that stands. Its residents are not leased yet; they are promised.
struct PlanGrant {
  PlanId id;
  ModelId model;
  DeviceIndex device;
  uint64_t budget_bytes = 0;
  std::vector<PlannedGroup> groups;  // In order of first use.
  std::vector<uint32_t> lane_order;  // Of the streamed ones, by their rank.
  uint64_t ring_offset = 0;          // In the device's span.
  uint64_t ring_bytes = 0;
  uint64_t resident_bytes = 0;
  uint64_t streamed_bytes = 0;  // A pass.
  uint32_t lead = 0;
  std::vector<SlabUse> new_slabs;  // Of the ring: Node::GiveSlabs.
};

// A plan with the lane that it runs over; no lane if nothing is streamed.
struct OpenedPlan {
  PlanGrant grant;
  hoist::UniqueFd lane;
  hoist::UniqueFd wake;
};

// Who will copy to a device by itself.
struct OpenCopierArgs {
  DeviceIndex device;
  ShareOptions share;
};

struct OpenedCopier {
  CopierId id;
  hoist::UniqueFd memory;  // See hoist/shared/copier_layout.h.
  hoist::UniqueFd wake;
};

// A model as it stands: publishing adds groups, under the same id.
struct Model {
  ModelId id;
  User owner;
  Readers readers = Readers::kOwner;
  std::shared_ptr<const ModelSpec> spec;
};
using ModelPtr = std::shared_ptr<const Model>;

// Which copies an admin means.
struct CopySelector {
  std::string model;
  std::string group;         // Empty: all of the model's.
  std::optional<TierAt> at;  // nullopt: device 0..n and host.
  Peer asker;                // Whose "llama" is meant; see MeantBy.
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
  uint32_t left_out_groups = 0;  // Did not fit; not an error.
};

struct CheckWish {
  Peer asker;
  std::string model;  // Empty: all published ones.
  bool repair = false;
};

// What a check found wrong, and what was done about it.
struct CheckFinding {
  std::string group;  // "model/group".
  TierAt at;
  std::string what;
};

// Of one group.
struct CheckedGroup {
  uint64_t bytes = 0;  // That were read, in all tiers.
  std::vector<CheckFinding> findings;
};

// What `hoistctl check` has done so far.
struct CheckProgress {
  // The first of them; the others are in the log.
  static constexpr size_t kMostFindings = 256;

  uint32_t done_groups = 0;
  uint32_t total_groups = 0;
  uint64_t read_bytes = 0;
  uint32_t damaged = 0;  // Copies; findings, however many.
  std::vector<CheckFinding> findings;
};

// A group that was published before this hoistd began, and where its bytes are.
struct RestoredGroup {
  std::string model;
  User owner;
  Readers readers = Readers::kOwner;
  std::shared_ptr<const Group> group;
  Content content = {};
  std::optional<SpillId> spill;
  // In the host pool, which is as it was: the image lies there, if its content
  // is still that.
  std::optional<uint64_t> host_offset;
  // The model's, if it was known; nullopt: a new one.
  std::optional<ModelId> model_id;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_REQUESTS_H_
