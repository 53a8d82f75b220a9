// hoistd's one door: every verb, once, whoever asks.
//
// The session socket and gRPC both end here. A verb runs on the engine's
// thread, which alone owns core's Node; work that waits (opening files, disk,
// copies) goes elsewhere and comes back. So the brain needs no lock, and the
// order of events is one order.
#ifndef HOIST_DAEMON_ENGINE_ENGINE_API_H_
#define HOIST_DAEMON_ENGINE_ENGINE_API_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/device.h"
#include "daemon/core/grouping.h"
#include "daemon/core/ids.h"
#include "daemon/core/io_engine.h"
#include "daemon/core/model.h"
#include "daemon/core/snapshot.h"
#include "daemon/core/tier.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

template <typename T>
using Done = absl::AnyInvocable<void(absl::StatusOr<T>)>;
using DoneStatus = absl::AnyInvocable<void(absl::Status)>;

// Who is at the other end, as the kernel says.
struct Peer {
  Uid uid;
  int32_t pid = 0;
  bool admin = false;  // Root, hoistd's own uid, or in the group hoist-admin.
  std::string via;     // "socket", "grpc".
};

struct OpenSessionArgs {
  std::string client_name;
  Peer peer;
  uint64_t device_budget_bytes = 0;  // 0: no limit of its own.
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
  GroupingSpec grouping;
  std::optional<Readers> readers;  // nullopt: as configured.
};

struct PublishArgs {
  std::string model;
  Group group;            // As the client says: hostile until checked.
  hoist::UniqueFd image;  // A memfd sealed against writes.
  std::optional<Readers> readers;
};

struct StageArgs {
  GroupKey key;
  DeviceIndex device;
  absl::Duration deadline;  // Zero: only if it need not wait for space.
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

struct LeaseGrant {
  LeaseId id;
  GroupKey key;
  DeviceIndex device;
  uint64_t offset = 0;  // Of the image, in the device's span.
  uint64_t bytes = 0;
  bool was_resident = false;
  std::vector<SlabUse> new_slabs;  // Not given to this session before.
};

// A model as it stands: publishing adds groups, under the same id.
struct Model {
  ModelId id;
  Uid owner;
  Readers readers = Readers::kOwner;
  std::shared_ptr<const ModelSpec> spec;
};
using ModelPtr = std::shared_ptr<const Model>;

// Which copies an admin means.
struct CopySelector {
  std::string model;
  std::string group;         // Empty: all of the model's.
  std::optional<TierAt> at;  // nullopt: device 0..n and host.
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

// What a device looks like to clients.
struct DeviceView {
  DeviceInfo info;
  uint64_t pool_bytes = 0;
  uint64_t slab_bytes = 0;
};

// What does not change while the daemon runs, and the state of its I/O.
struct NodeFacts {
  std::string version;
  absl::Time started;  // By the engine's clock.
  std::vector<DeviceView> devices;
  IoInfo io;
  bool direct_io = false;
  std::vector<std::string> notes;
};

// Threads:  thread-safe; every call returns at once. Callbacks run on the
//           engine's thread, once each, and must not block; they may call the
//           engine. After Stop() they get Unavailable.
// Errors:   NotFound (no such session, model, group, lease), PermissionDenied,
//           ResourceExhausted (with what would be enough), Unavailable
//           (draining, stopping), DataLoss.
class EngineApi {
 public:
  virtual ~EngineApi() = default;

  // Sessions and their verbs.
  virtual void OpenSession(OpenSessionArgs args, Done<SessionId> done) = 0;
  // Gives back all that the session holds. Again, or unknown: nothing happens.
  virtual void CloseSession(SessionId session) = 0;
  virtual void RegisterModel(SessionId session, RegisterModelArgs args,
                             Done<ModelPtr> done) = 0;
  virtual void Publish(SessionId session, PublishArgs args,
                       Done<ModelPtr> done) = 0;
  virtual void DescribeModel(SessionId session, std::string name,
                             Done<ModelPtr> done) = 0;
  virtual void Stage(SessionId session, StageArgs args,
                     Done<LeaseGrant> done) = 0;
  // As Stage, but the image lies in an IPC slab (gRPC workers on CUDA).
  virtual void StageShared(SessionId session, StageArgs args,
                           Done<LeaseGrant> done) = 0;
  // Returns when the groups are queued, not when they have arrived.
  virtual void Prefetch(SessionId session, PrefetchArgs args,
                        DoneStatus done) = 0;
  virtual void Release(SessionId session, std::vector<LeaseId> leases,
                       DoneStatus done) = 0;
  virtual void SetOrder(SessionId session, ModelId model,
                        std::vector<GroupIndex> order, DoneStatus done) = 0;

  // Admin's verbs; the caller has checked that the peer is an admin. Models
  // are found by name among all owners': a name that several owners use is
  // written "uid:name" (InvalidArgument says so).
  virtual void Snapshot(Done<NodeSnapshot> done) = 0;
  // Brings all groups of a model up to `to`, evicting other models' idle copies
  // but none of its own. `progress` runs after each group.
  virtual void Load(ModelId model, TierAt to,
                    absl::AnyInvocable<void(const LoadProgress&)> progress,
                    Done<LoadProgress> done) = 0;
  virtual void Pin(CopySelector which, absl::Duration deadline,
                   Done<CopyTotals> done) = 0;
  virtual void Unpin(CopySelector which, Done<CopyTotals> done) = 0;
  virtual void Evict(CopySelector which, bool forget,
                     Done<CopyTotals> done) = 0;
  // From now on sessions and stages are refused; false takes that back.
  virtual void SetDraining(bool draining, DoneStatus done) = 0;
  // `on_event` runs on the engine's thread until Unsubscribe has called back.
  virtual void Subscribe(absl::AnyInvocable<void(const NodeEvent&)> on_event,
                         Done<uint64_t> done) = 0;
  virtual void Unsubscribe(uint64_t subscription, DoneStatus done) = 0;

  virtual NodeFacts facts() const = 0;
  virtual absl::Time Now() const = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_ENGINE_API_H_
