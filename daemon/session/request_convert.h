// Converts session.proto's requests to the engine's values. Every number,
// length and descriptor is hostile until it is validated here.
//
// InvalidArgument names the field and the allowed values. A request must name
// each of its descriptors exactly once; those that are not passed on are
// closed. The engine makes the checks that need the model or the node.
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
// Planning runs on the engine's thread; this many groups take some 0.2 s.
inline constexpr int kMaxPlanOrder = 65'536;

absl::StatusOr<OpenSessionArgs> OpenSessionFromProto(
    const hoist::v1::OpenSessionRequest& request, const Peer& peer);

// No limit on the number of entries: the message's size bounds it.
ResumeArgs ResumeFromProto(const hoist::v1::ResumeRequest& request);

// Any request of an open session. FailedPrecondition: OpenSession.
absl::StatusOr<SessionRequest> RequestFromProto(
    const hoist::v1::ClientMessage& message, std::vector<hoist::UniqueFd> fds);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_REQUEST_CONVERT_H_
