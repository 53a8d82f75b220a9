// Requests that came in a memfd, and take long to be read and parsed.
#ifndef HOIST_DAEMON_SESSION_LARGE_REQUEST_H_
#define HOIST_DAEMON_SESSION_LARGE_REQUEST_H_

#include <vector>

#include "absl/status/status.h"
#include "daemon/session/mailbox.h"
#include "daemon/session/reply.h"
#include "daemon/session/verb_router.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct LargeRequest {
  Ticket ticket;  // Its request id is in the body.
  SessionId session;
  // Whether it may be served; if not, its id is needed all the same to say so.
  absl::Status admitted;
  hoist::SealedBody body;
  std::vector<hoist::UniqueFd> fds;
};

// Hands it to the engine, or says in the mailbox why not. What follows in the
// session may be read when the mailbox says so (Reply::read_on). Any thread.
void ServeLarge(LargeRequest request, VerbRouter& router, Mailbox& mailbox);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_LARGE_REQUEST_H_
