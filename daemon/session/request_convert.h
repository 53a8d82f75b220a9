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
#include "daemon/terms/ids.h"
#include "hoist/shared/unique_fd.h"
#include "hoist/v1/session.pb.h"

namespace hoistd {

// A directory entry's name, as Linux's file systems limit it.
inline constexpr size_t kMaxFileNameBytes = 255;
inline constexpr int kMaxLeasesPerRelease = 65'536;
inline constexpr int kMaxSlabsClosed = 65'536;
// Planning is the engine's thread's; this many take it some 0.2 s.
inline constexpr int kMaxPlanOrder = 65'536;

struct OrderArgs {
  ModelId model;
  std::vector<GroupIndex> groups;
};

absl::StatusOr<OpenSessionArgs> OpenSessionFromProto(
    const hoist::v1::OpenSessionRequest& request, const Peer& peer);

// The shards are open for reading. Whether they are regular files is not asked
// here: fstat can block on a network file system.
absl::StatusOr<RegisterModelArgs> RegisterModelFromProto(
    const hoist::v1::RegisterModelRequest& request,
    std::vector<hoist::UniqueFd> fds);

// The image is a memfd that nobody can change any more, and holds the group.
absl::StatusOr<PublishArgs> PublishFromProto(
    const hoist::v1::PublishRequest& request, std::vector<hoist::UniqueFd> fds);

absl::StatusOr<StageArgs> StageFromProto(
    const hoist::v1::StageRequest& request);
// The memfd's size can no longer change, and nobody has sealed it against our
// writes. Whether its memory is allocated is looked at when it is written.
absl::StatusOr<ReadImageArgs> ReadImageFromProto(
    const hoist::v1::ReadImageRequest& request,
    std::vector<hoist::UniqueFd> fds);
absl::StatusOr<PrefetchArgs> PrefetchFromProto(
    const hoist::v1::PrefetchRequest& request);
absl::StatusOr<std::vector<LeaseId>> ReleaseFromProto(
    const hoist::v1::ReleaseRequest& request);
// However many there are: the message's size bounds them.
ResumeArgs ResumeFromProto(const hoist::v1::ResumeRequest& request);
absl::StatusOr<SlabsClosedArgs> SlabsClosedFromProto(
    const hoist::v1::SlabsClosedRequest& request);
// The group numbers are the engine's to judge.
absl::StatusOr<SetPlanArgs> SetPlanFromProto(
    const hoist::v1::SetPlanRequest& request);
// The size is the engine's to judge.
ArenaArgs OpenArenaFromProto(const hoist::v1::OpenArenaRequest& request);
// Whether there is such a device is the engine's to judge.
absl::StatusOr<OpenCopierArgs> OpenCopierFromProto(
    const hoist::v1::OpenCopierRequest& request);
absl::StatusOr<std::string> DescribeModelFromProto(
    const hoist::v1::DescribeModelRequest& request);
absl::StatusOr<Content> FindContentFromProto(
    const hoist::v1::FindContentRequest& request);
// InvalidArgument: not a number for each group, or one that is none.
absl::StatusOr<HeatArgs> HeatFromProto(const hoist::v1::HeatRequest& request);
absl::StatusOr<OrderArgs> SetOrderFromProto(
    const hoist::v1::SetOrderRequest& request);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_REQUEST_CONVERT_H_
