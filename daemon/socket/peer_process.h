// Identifies the peer of the session socket, by the kernel's data.
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
  // Readable once the process is dead. Invalid if unavailable: under a seccomp
  // filter; before Linux 6.5, for a process of another pid namespace.
  hoist::UniqueFd pidfd;
};

// The process that connected `socket`. Admins are root, our own uid, and
// members of `admin_group`, if the process is in our user and pid namespaces. A
// container's root is uid 65534 (nobody) here, not root. If the namespaces
// cannot be inspected, the process is no admin.
//
// On a `tenant`'s socket every peer is the tenant, whatever its uid, which is
// often the same in all containers. None is an admin.
//
// ResourceExhausted: no descriptor is free for the checks. Unavailable: the
// process is dead already. PermissionDenied: its uid has no mapping in our user
// namespace, where all such users look alike.
absl::StatusOr<PeerProcess> PeerOf(
    int socket, std::optional<gid_t> admin_group,
    const std::optional<User>& tenant = std::nullopt);

// The number of a group of this host. NotFound says how to create it.
absl::StatusOr<gid_t> GroupByName(const std::string& name);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SOCKET_PEER_PROCESS_H_
