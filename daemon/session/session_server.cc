#include "daemon/session/session_server.h"

#include <google/protobuf/stubs/logging.h>
#include <sys/random.h>

#include <utility>

#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/session/session_loop.h"

namespace hoistd {

InstanceId NewInstanceId() {
  InstanceId id;
  // Up to 256 bytes come whole once the kernel has seeded its generator.
  HOIST_CHECK(getrandom(id.data(), id.size(), 0) ==
              static_cast<ssize_t>(id.size()));
  return id;
}

absl::StatusOr<std::unique_ptr<SessionServer>> SessionServer::Create(
    SessionServerOptions options, EngineApi& engine) {
  // Of a message that does not parse it would write to stderr, as often as a
  // hostile client likes. The client gets its error in any case.
  google::protobuf::SetLogHandler(nullptr);
  HOIST_ASSIGN_OR_RETURN(std::unique_ptr<SessionLoop> loop,
                         SessionLoop::Create(std::move(options), engine));
  return std::unique_ptr<SessionServer>(new SessionServer(std::move(loop)));
}

SessionServer::SessionServer(std::unique_ptr<SessionLoop> loop)
    : loop_(std::move(loop)),
      thread_([running = loop_.get()] { running->Run(); }) {}

SessionServer::~SessionServer() { Shutdown(); }

void SessionServer::Shutdown() {
  absl::MutexLock lock(&mu_);
  if (!thread_.joinable()) return;
  loop_->Stop();
  thread_.join();
  loop_.reset();
}

}  // namespace hoistd
