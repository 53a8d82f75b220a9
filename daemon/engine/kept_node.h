// What lies on devices, and for whom, told to hoistd's successor.
#ifndef HOIST_DAEMON_ENGINE_KEPT_NODE_H_
#define HOIST_DAEMON_ENGINE_KEPT_NODE_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/convert/kept_convert.h"
#include "daemon/core/kept.h"
#include "daemon/keeper/keep.h"
#include "daemon/keeper/kept_key.h"
#include "daemon/stream/streamer.h"
#include "daemon/terms/ids.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// What the last hoistd wrote, each in the order of its key, and its
// descriptors.
struct FoundNode {
  absl::Status status;  // Not OK: it makes no sense, and nothing else is set.
  std::optional<KeptInstance> instance;
  std::map<ModelId, ModelRecord> models;
  std::vector<KeptSlab> slabs;  // By device and offset.
  std::vector<KeptCopy> copies;
  std::vector<KeptSession> sessions;
  std::vector<KeptLease> leases;
  std::vector<PlanRecord> plans;
  std::vector<KeptArena> arenas;
  std::map<uint64_t, CopyRef> pins;  // By the numbers of their records.
  std::map<DeviceIndex, LoadCap> load_caps;
  std::map<KeptKey, hoist::UniqueFd> descriptors;
};

// InvalidArgument: some of it makes no sense, so that none of it is to be
// believed.
absl::StatusOr<FoundNode> FindNode(
    const std::map<KeptKey, std::string>& records,
    std::map<KeptKey, hoist::UniqueFd> descriptors);

// A descriptor is kept before the record that names it is written, and dropped
// after that was erased. An error of any of these means that a successor would
// believe what is not so, and the whole book is to be abandoned.
absl::Status WriteModel(const KeptModel& model, Keep& keep);
// `descriptors`: those of its files, then its spec's.
absl::Status WriteFiles(ModelId id, const ModelRecord& record,
                        const std::vector<int>& descriptors, Keep& keep);
absl::Status WriteSlab(const KeptSlab& slab, Keep& keep);
absl::Status WriteCopy(const KeptCopy& copy, Keep& keep);
absl::Status WriteSession(const KeptSession& session, Keep& keep);
absl::Status WriteLease(const KeptLease& lease, Keep& keep);
absl::Status WriteArena(const KeptArena& arena, Keep& keep);
// `lane` has no descriptors if nothing is streamed.
absl::Status WritePlan(const PlanRecord& plan, const LaneShare& lane,
                       Keep& keep);
absl::Status ErasePlan(PlanId plan, Keep& keep);

// Where one of these cannot be written, an admin's word does not outlive
// hoistd, or does although it was taken back, and nothing worse.
absl::Status WritePin(uint64_t number, const CopyRef& copy, Keep& keep);
absl::Status ErasePin(uint64_t number, Keep& keep);
// Of a plan that was written. NotFound: it was not.
absl::Status WriteShare(PlanId plan, const ShareOptions& share, Keep& keep);
absl::Status WriteLoadCap(DeviceIndex device, const LoadCap& cap, Keep& keep);
absl::Status EraseLoadCap(DeviceIndex device, Keep& keep);

// Of what was found: nothing is kept of it any more.
absl::Status DropNode(const std::map<KeptKey, std::string>& records,
                      Keep& keep);

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_KEPT_NODE_H_
