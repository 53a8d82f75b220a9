// session.proto's requests to the engine's values; every number, length and
// descriptor of them is hostile until it has passed here.
//
// InvalidArgument says which field and what is allowed. Each request must name
// each descriptor that came with it exactly once; those that are not handed on
// are closed. What needs the model or the node to judge is the engine's to
// refuse.
#ifndef HOIST_DAEMON_SESSION_REQUEST_CONVERT_H_
#define HOIST_DAEMON_SESSION_REQUEST_CONVERT_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/requests.h"
#include "daemon/types/ids.h"
#include "hoist/shared/unique_fd.h"
#include "hoist/v1/session.pb.h"

namespace hoistd {

// A directory entry's name, as Linux's file systems limit it.
inline constexpr size_t kMaxFileNameBytes = 255;
inline constexpr int kMaxLeasesPerRelease = 65'536;
inline constexpr int kMaxSlabsClosed = 65'536;
// Planning is the engine's thread's; this many take it some 0.2 s.
inline constexpr int kMaxPlanOrder = 65'536;

absl::StatusOr<OpenSessionArgs> OpenSessionFromProto(
    const hoist::v1::OpenSessionRequest& request, const Peer& peer);

// However many there are: the message's size bounds them.
ResumeArgs ResumeFromProto(const hoist::v1::ResumeRequest& request);

// Any request of a session that is open. FailedPrecondition: one that opens it.
absl::StatusOr<SessionRequest> RequestFromProto(
    const hoist::v1::ClientMessage& message, std::vector<hoist::UniqueFd> fds);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_REQUEST_CONVERT_H_
