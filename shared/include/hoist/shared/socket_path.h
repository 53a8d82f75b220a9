// Where hoistd's two sockets lie: the session's, and gRPC's beside it.
//
// A node may have a hoistd for everybody (/run/hoist) and users ones of their
// own (`hoistd --user`). A user's lies in a folder that nobody else can write
// to: "hoist" below XDG_RUNTIME_DIR or /run/user/UID, or /tmp/hoist-UID where
// there is neither. Anybody may make a folder of such a name first, so who owns
// it and who may write to it is looked at each time.
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

// Session sockets in the order in which to try them: $HOIST_SOCKET alone if it
// is set and not empty, else this user's own hoistd, then the node's. Never
// empty; paths whose folder is missing or could be another user's are left out.
std::vector<std::string> SessionSocketsToTry();

// Where gRPC's socket lies for this session socket, unless hoistd.toml says
// otherwise: "hoistd.grpc.sock" for "hoistd.sock".
std::string GrpcSocketBeside(const std::string& session_socket);

// The folder of this user's own hoistd, made if it is not there, open to this
// user alone. FailedPrecondition: what lies there belongs to somebody else or
// is open to others; the text says which, and what would do.
Result<std::string> MakeUserSocketFolder();

}  // namespace hoist

#endif  // HOIST_SHARED_SOCKET_PATH_H_
