// Who is at the other end of the session socket, as the kernel says.
#ifndef HOIST_DAEMON_SOCKET_PEER_PROCESS_H_
#define HOIST_DAEMON_SOCKET_PEER_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/requests.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct PeerProcess {
  Peer peer;
  // Readable once the process is dead. Invalid where there is none to be had:
  // a seccomp filter; before Linux 6.5, a process of another pid namespace.
  hoist::UniqueFd pidfd;
};

// The process that connected `socket`. Admin: root, our own uid, or a member of
// `admin_group`, if the process lives in our user and pid namespaces: root of
// a container is not root here, but uid 65534 (nobody). Where that cannot be
// seen, it is no admin.
//
// ResourceExhausted: no descriptor is left to find out with.
// Unavailable: that process is dead already. PermissionDenied: its uid has no
// number in our user namespace, where all such look like one user.
//
// Of a `tenant`'s socket all are the tenant, whatever their uids, which often
// are one in all containers; none is an admin.
absl::StatusOr<PeerProcess> PeerOf(
    int socket, std::optional<gid_t> admin_group,
    const std::optional<User>& tenant = std::nullopt);

// The number of a group of this host. NotFound says how to make it.
absl::StatusOr<gid_t> GroupByName(const std::string& name);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SOCKET_PEER_PROCESS_H_
