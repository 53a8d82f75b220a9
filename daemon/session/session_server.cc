#include "daemon/session/session_server.h"

#include <fcntl.h>
#include <google/protobuf/stubs/logging.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <utility>

#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/session/session_loop.h"

namespace hoistd {

absl::StatusOr<InstanceId> NewInstanceId() {
  InstanceId id;
  // Up to 256 bytes are returned whole once the kernel has seeded its
  // generator. A seccomp profile without getrandom allows /dev/urandom.
  if (getrandom(id.data(), id.size(), 0) == std::ssize(id)) return id;
  const hoist::UniqueFd file(open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  if (file.valid() &&
      read(file.get(), id.data(), id.size()) == std::ssize(id)) {
    return id;
  }
  return ErrnoToStatus(errno, "draw this hoistd's id: getrandom, /dev/urandom");
}

absl::StatusOr<std::unique_ptr<SessionServer>> SessionServer::Create(
    SessionServerOptions options, EngineApi& engine) {
  // protobuf logs each parse error to stderr, so a hostile client could flood
  // it. The client gets its error in any case.
  google::protobuf::SetLogHandler(nullptr);
  HOIST_ASSIGN_OR_RETURN(std::unique_ptr<SessionLoop> loop,
                         SessionLoop::Create(std::move(options), engine));
  HOIST_ASSIGN_OR_RETURN(
      std::thread thread,
      StartThread([running = loop.get()] { running->Run(); }));
  return std::unique_ptr<SessionServer>(
      new SessionServer(std::move(loop), std::move(thread)));
}

SessionServer::SessionServer(std::unique_ptr<SessionLoop> loop,
                             std::thread thread)
    : loop_(std::move(loop)), thread_(std::move(thread)) {}

SessionServer::~SessionServer() { Shutdown(); }

void SessionServer::Shutdown() {
  absl::MutexLock lock(&mu_);
  if (!thread_.joinable()) return;
  loop_->Stop();
  thread_.join();
  loop_.reset();
}

}  // namespace hoistd
