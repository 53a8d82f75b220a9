// Requests in a memfd, which take long to read and parse.
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
  // The result of admission. A refusal needs the request's id, too, so the body
  // is read in any case.
  absl::Status admitted;
  hoist::SealedBody body;
  std::vector<hoist::UniqueFd> fds;
};

// Passes the request to the engine, or posts a refusal to the mailbox. The
// session's next message may be read after a reply with Reply::read_on. Any
// thread.
void ServeLarge(LargeRequest request, VerbRouter& router, Mailbox& mailbox);

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_LARGE_REQUEST_H_
