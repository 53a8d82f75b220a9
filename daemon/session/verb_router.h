#ifndef HOIST_DAEMON_SESSION_VERB_ROUTER_H_
#define HOIST_DAEMON_SESSION_VERB_ROUTER_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "daemon/engine/engine_api.h"
#include "daemon/session/mailbox.h"
#include "daemon/session/reply.h"
#include "hoist/shared/unique_fd.h"
#include "hoist/v1/session.pb.h"

namespace hoistd {

// Turns requests into calls of the engine, which answers to the mailbox.
//
// Threads:  thread-safe; the callbacks it leaves with the engine run on the
//           engine's thread.
// Owns:     nothing. The mailbox is shared with callbacks still in the engine,
//           which may outlive the server.
class VerbRouter {
 public:
  // `engine` must outlive this object.
  VerbRouter(EngineApi& engine, std::shared_ptr<Mailbox> mailbox)
      : engine_(engine), mailbox_(std::move(mailbox)) {}

  // OK: the mailbox will get one reply. InvalidArgument: the request was
  // refused here, and no reply will come. `socket` and `protocol`: the next
  // hoistd resumes the session on them, if the client supports it.
  absl::Status Open(const Ticket& ticket,
                    const hoist::v1::OpenSessionRequest& request,
                    const Peer& peer, std::shared_ptr<hoist::UniqueFd> socket,
                    uint32_t protocol = 0);
  // Resumes a session of the previous hoistd. One reply will come.
  void Resume(const Ticket& ticket, SessionId session,
              const hoist::v1::ResumeRequest& request);
  // Any verb but OpenSession.
  absl::Status Route(const Ticket& ticket, SessionId session,
                     const hoist::v1::ClientMessage& message,
                     std::vector<hoist::UniqueFd> fds);

 private:
  EngineApi& engine_;
  const std::shared_ptr<Mailbox> mailbox_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_VERB_ROUTER_H_
