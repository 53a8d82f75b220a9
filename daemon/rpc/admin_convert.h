// Converts admin.proto messages to the daemon's values and back. daemon/convert
// does this for types.proto.
#ifndef HOIST_DAEMON_RPC_ADMIN_CONVERT_H_
#define HOIST_DAEMON_RPC_ADMIN_CONVERT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/requests.h"
#include "daemon/core/snapshot.h"
#include "daemon/engine/engine_api.h"
#include "grpcpp/support/status.h"
#include "hoist/v1/admin.pb.h"

namespace hoistd {

// The codes have the same numbers. Long messages are truncated: they travel in
// HTTP/2 trailers, and clients accept 8 KiB of those.
grpc::Status ToGrpc(const absl::Status& status);

// Pin requires a tier. Evict may omit it, to mean both tiers.
enum class TierNeeded { kYes, kNo };
absl::StatusOr<CopySelector> SelectorFromProto(
    const hoist::v1::CopySelector& selector, TierNeeded tier_needed);

// InvalidArgument: the request names no target.
absl::StatusOr<ShareOf> ShareOfFromProto(
    const hoist::v1::SetShareRequest& request);
// "plan 7", for the audit log.
std::string ShareOfText(const hoist::v1::SetShareRequest& request);
// InvalidArgument: the change is empty, or has a value that a share cannot
// have.
absl::StatusOr<ShareChange> ShareChangeFromProto(
    const hoist::v1::ShareChange& change);

// The model that `asker` means by `name` (MeantBy). NotFound.
absl::StatusOr<const ModelSnapshot*> FindModel(const NodeSnapshot& snapshot,
                                               const Peer& asker,
                                               const std::string& name);

void StatusToProto(const NodeFacts& facts, const NodeNotes& notes,
                   absl::Time now, const NodeSnapshot& snapshot,
                   hoist::v1::NodeStatus* out);
void SummaryToProto(const ModelSnapshot& model, hoist::v1::ModelSummary* out);
void GroupStatusToProto(const GroupSnapshot& group,
                        hoist::v1::GroupStatus* out);
void SessionToProto(const SessionSnapshot& session,
                    hoist::v1::SessionStatus* out);
void PlanStatusToProto(const PlanSnapshot& plan, hoist::v1::PlanStatus* out);
void ProgressToProto(const LoadProgress& progress,
                     hoist::v1::LoadProgress* out);
void CheckProgressToProto(const CheckProgress& progress,
                          hoist::v1::CheckProgress* out);
void EventToProto(const NodeEvent& event, absl::Time at, hoist::v1::Event* out);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_ADMIN_CONVERT_H_
