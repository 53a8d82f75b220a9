// Records of devices' contents and their holders for hoistd's successor.
#ifndef HOIST_DAEMON_SUCCESSOR_PERSISTED_NODE_H_
#define HOIST_DAEMON_SUCCESSOR_PERSISTED_NODE_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/convert/persisted_convert.h"
#include "daemon/core/persisted.h"
#include "daemon/keeper/keep.h"
#include "daemon/keeper/persisted_key.h"
#include "daemon/stream/streamer.h"
#include "daemon/types/ids.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Records of the last hoistd, ordered by key, and their descriptors.
struct FoundNode {
  absl::Status status;  // An error: malformed, and nothing else is set.
  std::optional<PersistedInstance> instance;
  std::map<ModelId, ModelRecord> models;
  std::vector<PersistedSlab> slabs;  // By device and offset.
  std::vector<PersistedCopy> copies;
  std::vector<PersistedSession> sessions;
  std::vector<PersistedLease> leases;
  std::vector<PlanRecord> plans;
  std::vector<PersistedArena> arenas;
  std::map<uint64_t, CopyRef> pins;  // By record number.
  std::map<DeviceIndex, LoadCap> load_caps;
  std::map<PersistedKey, hoist::UniqueFd> descriptors;
};

// InvalidArgument: part of it is malformed, so none of it may be trusted.
absl::StatusOr<FoundNode> FindNode(
    const std::map<PersistedKey, std::string>& records,
    std::map<PersistedKey, hoist::UniqueFd> descriptors);

// A descriptor is kept before the record that names it is written, and dropped
// after that is erased. After an error a successor would trust a false record:
// the whole book must be abandoned.
absl::Status WriteModel(const PersistedModel& model, Keep& keep);
// `descriptors`: of its files, then of its spec.
absl::Status WriteFiles(ModelId id, const ModelRecord& record,
                        const std::vector<int>& descriptors, Keep& keep);
absl::Status WriteSlab(const PersistedSlab& slab, Keep& keep);
absl::Status WriteCopy(const PersistedCopy& copy, Keep& keep);
absl::Status WriteSession(const PersistedSession& session, Keep& keep);
absl::Status WriteLease(const PersistedLease& lease, Keep& keep);
absl::Status WriteArena(const PersistedArena& arena, Keep& keep);
// `lane` has no descriptors if nothing is streamed.
absl::Status WritePlan(const PlanRecord& plan, const LaneShare& lane,
                       Keep& keep);
absl::Status ErasePlan(PlanId plan, Keep& keep);

// After an error an admin's setting is lost with hoistd, or outlives it
// although withdrawn; no worse.
absl::Status WritePin(uint64_t number, const CopyRef& copy, Keep& keep);
absl::Status ErasePin(uint64_t number, Keep& keep);
// Of a recorded plan. NotFound: not recorded.
absl::Status WriteShare(PlanId plan, const ShareOptions& share, Keep& keep);
absl::Status WriteLoadCap(DeviceIndex device, const LoadCap& cap, Keep& keep);
absl::Status EraseLoadCap(DeviceIndex device, Keep& keep);

// Drops all records that were found.
absl::Status DropNode(const std::map<PersistedKey, std::string>& records,
                      Keep& keep);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SUCCESSOR_PERSISTED_NODE_H_
