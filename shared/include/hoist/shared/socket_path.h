// Paths of hoistd's two sockets: the session's, and gRPC's beside it.
//
// A node may have a hoistd for everybody (/run/hoist), and users their own
// (`hoistd --user`). A user's socket is in a folder that only the user can
// write to: "hoist" below XDG_RUNTIME_DIR or /run/user/UID, or /tmp/hoist-UID
// without these. Another user may create that folder first, so its owner and
// mode are checked each time.
#ifndef HOIST_SHARED_SOCKET_PATH_H_
#define HOIST_SHARED_SOCKET_PATH_H_

#include <string>
#include <vector>

#include "hoist/shared/status.h"

namespace hoist {

// The one variable that names a hoistd: the path of its session socket.
inline constexpr char kSocketPathVariable[] = "HOIST_SOCKET";
// Of the node's hoistd.
inline constexpr char kDefaultSocketPath[] = "/run/hoist/hoistd.sock";

// Session sockets in the order of tries: $HOIST_SOCKET alone if it is set and
// not empty, else this user's own hoistd, then the node's. Never empty; omits
// paths whose folder is missing or may be another user's.
std::vector<std::string> SessionSocketsToTry();

// The path of gRPC's socket for this session socket, unless hoistd.toml has
// another: "hoistd.grpc.sock" for "hoistd.sock".
std::string GrpcSocketBeside(const std::string& session_socket);

// The folder of this user's own hoistd, created if missing, open to this user
// alone. FailedPrecondition: it belongs to another user or is open to others;
// the text says which, and the remedy.
Result<std::string> MakeUserSocketFolder();

}  // namespace hoist

#endif  // HOIST_SHARED_SOCKET_PATH_H_
