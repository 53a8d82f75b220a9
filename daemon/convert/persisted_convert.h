// Converts the records for hoistd's successor to bytes and back
// (proto/hoist/v1/persisted.proto).
#ifndef HOIST_DAEMON_CONVERT_PERSISTED_CONVERT_H_
#define HOIST_DAEMON_CONVERT_PERSISTED_CONVERT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/persisted.h"
#include "daemon/core/requests.h"
#include "daemon/model/model.h"
#include "daemon/plan/link_share.h"
#include "daemon/types/ids.h"

namespace hoistd {

struct PersistedInstance {
  std::array<uint8_t, 16> id = {};
  uint64_t generation = 0;
  std::vector<std::array<uint8_t, 16>> devices;  // Their uuids, by index.
};

struct ModelRecord {
  User owner;
  Readers readers = Readers::kOwner;
  std::string name;
  // A model of files: the numbers of their descriptors, and that of its spec;
  // 0: a published model.
  std::vector<uint64_t> files;
  uint64_t spec = 0;
  Fingerprint spec_hash = {};
  // A published model: its groups that were missing already, in ascending
  // order.
  std::vector<uint32_t> missing_groups;
};

// A live plan, with the parameters of its streaming.
struct PlanRecord {
  SessionId session;
  PlanGrant grant;  // Without its slabs.
  ShareOptions share;
  absl::Duration stage_deadline;
};

// A rate limit on background loads to a device, in bytes per second.
struct LoadCap {
  uint64_t set = 0;         // By an admin; 0: none.
  uint64_t configured = 0;  // By hoistd.toml, then.
};

std::string ToRecord(const PersistedInstance& instance);
std::string ToRecord(const ModelRecord& model);
// For a model of files. May be large.
std::string ToRecord(const ModelSpec& spec);
std::string ToRecord(const PersistedSlab& slab);  // Not its descriptor.
std::string ToRecord(const PersistedCopy& copy);  // Not its place.
std::string ToRecord(const PersistedSession& session);
std::string ToRecord(const PersistedLease& lease);
std::string ToRecord(const PersistedArena& arena);
std::string ToRecord(const PlanRecord& plan);
std::string ToRecord(const PersistedPin& pin);
std::string ToRecord(const LoadCap& cap);

// InvalidArgument: bytes that no ToRecord makes. NodeRestore checks that
// records agree with each other.
absl::StatusOr<PersistedInstance> InstanceFromRecord(absl::string_view bytes);
absl::StatusOr<ModelRecord> ModelFromRecord(absl::string_view bytes);
absl::StatusOr<std::shared_ptr<const ModelSpec>> SpecFromRecord(
    absl::string_view bytes);
absl::StatusOr<PersistedSlab> SlabFromRecord(absl::string_view bytes);
absl::StatusOr<PersistedCopy> CopyFromRecord(absl::string_view bytes);
absl::StatusOr<PersistedSession> SessionFromRecord(SessionId id,
                                                   absl::string_view bytes);
absl::StatusOr<PersistedLease> LeaseFromRecord(LeaseId id,
                                               absl::string_view bytes);
absl::StatusOr<PersistedArena> ArenaFromRecord(ArenaId id,
                                               absl::string_view bytes);
absl::StatusOr<PlanRecord> PlanFromRecord(PlanId id, absl::string_view bytes);
absl::StatusOr<PersistedPin> PinFromRecord(absl::string_view bytes);
absl::StatusOr<LoadCap> LoadCapFromRecord(absl::string_view bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONVERT_PERSISTED_CONVERT_H_
