// What a node holds, as features of Kubernetes' Node Feature Discovery: its
// "Customization guide", "Local feature source".
#ifndef HOIST_CLIENT_CTL_FEATURES_H_
#define HOIST_CLIENT_CTL_FEATURES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hoist/v1/admin.pb.h"

namespace hoist::ctl {

// By name, with NFD's own prefix, which every version of it takes without
// being told.
using Labels = std::map<std::string, std::string>;

// "feature.node.kubernetes.io/hoist-model.": and 32 digits of the SHA-256 of
// the name. Always hashed: one rule for all names, and a cluster's users, who
// read labels, are told none of a node's users' names.
std::string ModelLabel(std::string_view name);
// The same of the 16 bytes of a model's fingerprint.
std::string WeightsLabel(std::string_view fingerprint);

// Those that may be told of, those with most bytes on devices first, then on
// the host, then on disk. `all`: also what only their owners may read.
std::vector<v1::ModelSummary> ModelsToTell(const v1::ListModelsResponse& models,
                                           bool all);

// Those that are host memory, which the others read in place.
std::set<uint32_t> DevicesOnHost(const v1::NodeStatus& status);

// The fastest tier that has every group; of devices, one that has them all, or
// TIER_HOST if it is of `on_host`. TIER_UNSPECIFIED: none has.
v1::Tier WholeOn(const v1::ModelSummary& model,
                 const v1::ListGroupsResponse& groups,
                 const std::set<uint32_t>& on_host);

// What may be filled with other weights, by evicting what may be evicted, in
// whole GiB: of the host, less what is read in place, and of the device that
// has most.
Labels RoomLabels(const v1::NodeStatus& status);

// Adds both of a model's; whether there was room for them below `limit`. Where
// several models have one name, the slowest tier is told; of several with the
// same weights, the fastest.
bool AddModel(const v1::ModelSummary& model, v1::Tier tier, size_t limit,
              Labels* labels);

// The file. `expires`: when NFD is to let go of it.
std::string FeatureFile(
    const Labels& labels,
    std::optional<std::chrono::system_clock::time_point> expires);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_FEATURES_H_
