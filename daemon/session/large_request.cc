#include "daemon/session/large_request.h"

#include <string>
#include <utility>

#include "daemon/base/status.h"
#include "hoist/v1/session.pb.h"

namespace hoistd {
namespace {

// An error that sets `fatal` ends the connection.
absl::Status Route(LargeRequest request, VerbRouter& router, Reply& reply) {
  hoist::v1::ClientMessage message;
  {
    hoist::Result<std::string> body = hoist::ReadSealedBody(request.body);
    request.body.memfd.reset();
    reply.fatal = true;
    if (!body.ok()) return ToAbsl(body.status());
    if (!message.ParseFromString(*body)) {
      return absl::InvalidArgumentError(
          "the body is not a hoist.v1.ClientMessage");
    }
    reply.fatal = false;
  }
  request.ticket.request_id = message.request_id();
  reply.ticket = request.ticket;
  HOIST_RETURN_IF_ERROR(request.admitted);
  return router.Route(request.ticket, request.session, message,
                      std::move(request.fds));
}

}  // namespace

void ServeLarge(LargeRequest request, VerbRouter& router, Mailbox& mailbox) {
  Reply reply;
  reply.ticket = request.ticket;
  reply.read_on = true;
  reply.status = Route(std::move(request), router, reply);
  // The engine's answer is a separate reply, before or after this one.
  reply.answers = !reply.status.ok();
  mailbox.Post(std::move(reply));
}

}  // namespace hoistd
