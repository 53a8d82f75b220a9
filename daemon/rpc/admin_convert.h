// admin.proto to the daemon's values and back; types.proto's words are
// daemon/convert's.
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

// The code is the same number. Long messages are cut: they travel in HTTP/2
// trailers, of which clients take 8 KiB.
grpc::Status ToGrpc(const absl::Status& status);

// Evict, unlike Pin, may leave the tier open: then it is both.
enum class TierNeeded { kYes, kNo };
absl::StatusOr<CopySelector> SelectorFromProto(
    const hoist::v1::CopySelector& selector, TierNeeded tier_needed);

// InvalidArgument: it names nobody.
absl::StatusOr<ShareOf> ShareOfFromProto(
    const hoist::v1::SetShareRequest& request);
// "plan 7", for the audit log.
std::string ShareOfText(const hoist::v1::SetShareRequest& request);
// InvalidArgument: nothing is to change, or to what no share may be.
absl::StatusOr<ShareChange> ShareChangeFromProto(
    const hoist::v1::ShareChange& change);

// The model that `name` means for `asker` (MeantBy). NotFound.
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
