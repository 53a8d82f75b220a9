// Converts proto/hoist/v1/types.proto to the daemon's values and back.
//
// Client input is validated here, once: lengths, counts, enums and numbers. The
// engine validates the rest, for which it needs the model or the node: layouts,
// device numbers.
#ifndef HOIST_DAEMON_CONVERT_TYPES_CONVERT_H_
#define HOIST_DAEMON_CONVERT_TYPES_CONVERT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/facts.h"
#include "daemon/core/requests.h"
#include "daemon/core/residency.h"
#include "daemon/model/grouping.h"
#include "daemon/model/source_tensor.h"
#include "daemon/model/tensor.h"
#include "daemon/types/tier.h"
#include "hoist/v1/session.pb.h"
#include "hoist/v1/types.pb.h"

namespace hoistd {

namespace pb = hoist::v1;

// Limits on client input. The transport bounds whole messages.
inline constexpr size_t kMaxModelNameBytes = 512;
inline constexpr size_t kMaxGroupNameBytes = 512;
inline constexpr size_t kMaxTensorNameBytes = 4096;
inline constexpr size_t kMaxClientNameBytes = 256;
inline constexpr int kMaxTensorsPerModel = 1'000'000;
inline constexpr int kMaxGroupsPerModel = 1'000'000;
inline constexpr int kMaxRank = 64;
// Longer deadlines are cut to this.
inline constexpr absl::Duration kMaxDeadline = absl::Hours(24);

// --- From a client. InvalidArgument names the field and allowed values. ---

// Checks that the name is not empty, at most `max_bytes`, without NUL bytes,
// and valid UTF-8. `what` names the field in errors.
absl::StatusOr<std::string> NameFromProto(absl::string_view what,
                                          absl::string_view name,
                                          size_t max_bytes);
// A SHA-256, 32 bytes.
absl::StatusOr<Content> ContentFromProto(absl::string_view content);
// READERS_UNSPECIFIED is nullopt: hoistd.toml's default.
absl::StatusOr<std::optional<Readers>> ReadersFromProto(pb::Readers readers);
// TIER_UNSPECIFIED is `fallback`; InvalidArgument if that is nullopt. `device`
// is read for TIER_DEVICE only.
absl::StatusOr<TierAt> TierFromProto(
    pb::Tier tier, uint32_t device,
    std::optional<TierAt> fallback = std::nullopt);
absl::StatusOr<GroupingSpec> GroupingFromProto(const pb::Grouping& grouping);
// The engine checks that the files have such parts.
absl::StatusOr<std::vector<JoinedTensor>> JoinedFromProto(
    const google::protobuf::RepeatedPtrField<pb::JoinedTensor>& joined);
// A group to publish; its index is ignored. Shapes, strides, offsets and sizes
// are within bounds and within the image. The engine checks that they are the
// one valid layout.
absl::StatusOr<Group> GroupFromProto(const pb::Group& group);
// Milliseconds from now, at most kMaxDeadline.
absl::Duration DeadlineFromProto(uint64_t deadline_ms);
absl::StatusOr<ShareOptions> ShareFromProto(const pb::Share& share);
// Validates a share, in whichever message it came.
absl::Status CheckShare(const ShareOptions& share);
// Group numbers of Prefetch, SetOrder and SetPlan.
template <typename Repeated>
std::vector<GroupIndex> GroupIndicesFromProto(const Repeated& groups) {
  std::vector<GroupIndex> indices;
  indices.reserve(groups.size());
  for (uint32_t group : groups) indices.emplace_back(group);
  return indices;
}

// --- To a client. ---

pb::Readers ReadersToProto(Readers readers);
void ShareToProto(const ShareOptions& share, pb::Share* out);
pb::Tier TierToProto(Tier tier);
pb::Residency ResidencyToProto(Residency residency);
pb::DeviceKind DeviceKindToProto(DeviceKind kind);
pb::Backing BackingToProto(Backing backing);
void GroupToProto(const Group& group, GroupIndex index, pb::Group* out);
void ModelToProto(const Model& model, pb::Model* out);
// As PublishRequest.group_alone says: of its groups, the one of this name.
void PublishedToProto(const Model& model, absl::string_view group,
                      pb::Model* out);
void DeviceToProto(const DeviceView& device, pb::Device* out);
// Sets all fields but the descriptor's: `fd_index` or `path`.
void SlabToProto(const SlabUse& use, DeviceIndex device, pb::Slab* out);
// Sets all fields but `slabs`.
void LeaseToProto(const LeaseGrant& grant, pb::Lease* out);
// For the session socket: with `slabs`. Appends the descriptors to attach to
// `fds` (borrowed, as SlabUse says); each slab refers to its place there.
void LeaseToProto(const LeaseGrant& grant, pb::Lease* out,
                  std::vector<int>* fds);
// Slabs as above.
void ArenaToProto(const ArenaGrant& grant, pb::Arena* out,
                  std::vector<int>* fds);
// Sets all fields but the lane's descriptors. Slabs as above.
void PlanToProto(const PlanGrant& grant, pb::Plan* out, std::vector<int>* fds);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CONVERT_TYPES_CONVERT_H_
