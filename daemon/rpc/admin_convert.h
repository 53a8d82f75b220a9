// Converts admin.proto messages to the daemon's values and back. daemon/convert
// does this for types.proto; NodeReader fills what describes the node.
#ifndef HOIST_DAEMON_RPC_ADMIN_CONVERT_H_
#define HOIST_DAEMON_RPC_ADMIN_CONVERT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/node_event.h"
#include "daemon/core/requests.h"
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

void ProgressToProto(const LoadProgress& progress,
                     hoist::v1::LoadProgress* out);
void CheckProgressToProto(const CheckProgress& progress,
                          hoist::v1::CheckProgress* out);
void EventToProto(const NodeEvent& event, absl::Time at, hoist::v1::Event* out);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_ADMIN_CONVERT_H_
