// What is written down for hoistd's successor, to bytes and back
// (proto/hoist/v1/kept.proto).
#ifndef HOIST_DAEMON_CONVERT_KEPT_CONVERT_H_
#define HOIST_DAEMON_CONVERT_KEPT_CONVERT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/kept.h"
#include "daemon/core/requests.h"
#include "daemon/model/model.h"
#include "daemon/plan/link_share.h"
#include "daemon/terms/ids.h"

namespace hoistd {

struct KeptInstance {
  std::array<uint8_t, 16> id = {};
  uint64_t generation = 0;
  std::vector<std::array<uint8_t, 16>> devices;  // Their uuids, by index.
};

struct ModelRecord {
  User owner;
  Readers readers = Readers::kOwner;
  std::string name;
  // Of files, the numbers of their descriptors, and that of its spec; 0: it is
  // published.
  std::vector<uint64_t> files;
  uint64_t spec = 0;
  Fingerprint spec_hash = {};
};

// A plan that stands, with what its streaming needs.
struct PlanRecord {
  SessionId session;
  PlanGrant grant;  // But for its slabs.
  ShareOptions share;
  absl::Duration stage_deadline;
};

// On what is loaded to a device and nobody waits for, in bytes a second.
struct LoadCap {
  uint64_t set = 0;         // By an admin; 0: none.
  uint64_t configured = 0;  // By hoistd.toml, then.
};

std::string ToRecord(const KeptInstance& instance);
std::string ToRecord(const ModelRecord& model);
// Of files. May be large.
std::string ToRecord(const ModelSpec& spec);
std::string ToRecord(const KeptSlab& slab);  // But for its descriptor.
std::string ToRecord(const KeptCopy& copy);  // But for its place.
std::string ToRecord(const KeptSession& session);
std::string ToRecord(const KeptLease& lease);
std::string ToRecord(const KeptArena& arena);
std::string ToRecord(const PlanRecord& plan);
std::string ToRecord(const KeptPin& pin);
std::string ToRecord(const LoadCap& cap);

// InvalidArgument: bytes that no ToRecord makes. Whether they agree with
// anything else is NodeRestore's to say.
absl::StatusOr<KeptInstance> InstanceFromRecord(absl::string_view bytes);
absl::StatusOr<ModelRecord> ModelFromRecord(absl::string_view bytes);
absl::StatusOr<std::shared_ptr<const ModelSpec>> SpecFromRecord(
    absl::string_view bytes);
absl::StatusOr<KeptSlab> SlabFromRecord(absl::string_view bytes);
absl::StatusOr<KeptCopy> CopyFromRecord(absl::string_view bytes);
absl::StatusOr<KeptSession> SessionFromRecord(SessionId id,
                                              absl::string_view bytes);
absl::StatusOr<KeptLease> LeaseFromRecord(LeaseId id, absl::string_view bytes);
absl::StatusOr<KeptArena> ArenaFromRecord(ArenaId id, absl::string_view bytes);
absl::StatusOr<PlanRecord> PlanFromRecord(PlanId id, absl::string_view bytes);
absl::StatusOr<KeptPin> PinFromRecord(absl::string_view bytes);
absl::StatusOr<LoadCap> LoadCapFromRecord(absl::string_view bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONVERT_KEPT_CONVERT_H_
