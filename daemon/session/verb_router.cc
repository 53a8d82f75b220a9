#include "daemon/session/verb_router.h"

#include <utility>
#include <variant>

#include "daemon/base/overloaded.h"
#include "daemon/base/status.h"
#include "daemon/session/request_convert.h"

namespace hoistd {
namespace {

using MailboxPtr = std::shared_ptr<Mailbox>;

// Posts the engine's answer, of any type.
auto ReplyTo(MailboxPtr mailbox, const Ticket& ticket) {
  return [mailbox = std::move(mailbox), ticket](auto result) {
    mailbox->Post(ReplyOf(ticket, std::move(result)));
  };
}

// Posts the engine's notices to a session, as replies without a request.
OnSessionWord WordsTo(MailboxPtr mailbox, ConnectionId connection) {
  return [mailbox, connection](const SessionWord& word) {
    Reply reply;
    reply.ticket = {.connection = connection, .admitted = false};
    std::visit(Overloaded{[&](const SlabAsk& ask) { reply.body = ask; },
                          [&](const GiveWay& ask) { reply.body = ask; },
                          [&](const Wake& ask) { reply.body = ask; },
                          [&](const absl::Status& why) {
                            reply.status = why;
                            reply.fatal = true;
                          }},
               word);
    mailbox->Post(std::move(reply));
  };
}

}  // namespace

absl::Status VerbRouter::Open(const Ticket& ticket,
                              const hoist::v1::OpenSessionRequest& request,
                              const Peer& peer,
                              std::shared_ptr<hoist::UniqueFd> socket,
                              uint32_t protocol) {
  HOIST_ASSIGN_OR_RETURN(OpenSessionArgs args,
                         OpenSessionFromProto(request, peer));
  if (request.resumes()) args.socket = std::move(socket);
  args.protocol = protocol;
  engine_.OpenSession(std::move(args), WordsTo(mailbox_, ticket.connection),
                      [&engine = engine_, mailbox = mailbox_,
                       ticket](absl::StatusOr<SessionId> session) {
                        Reply reply;
                        reply.ticket = ticket;
                        reply.status = session.status();
                        if (session.ok()) reply.session = *session;
                        const bool posted = mailbox->Post(std::move(reply));
                        if (!posted && session.ok())
                          engine.CloseSession(*session);
                      });
  return absl::OkStatus();
}

// Who does not answer asks to close slabs does not go on either.
void VerbRouter::Resume(const Ticket& ticket, SessionId session,
                        const hoist::v1::ResumeRequest& request) {
  engine_.Resume(session, ResumeFromProto(request),
                 WordsTo(mailbox_, ticket.connection),
                 ReplyTo(mailbox_, ticket));
}

absl::Status VerbRouter::Route(const Ticket& ticket, SessionId session,
                               const hoist::v1::ClientMessage& message,
                               std::vector<hoist::UniqueFd> fds) {
  Ticket to = ticket;
  if (message.publish().group_alone()) {
    to.group_alone = message.publish().group().name();
  }
  HOIST_ASSIGN_OR_RETURN(SessionRequest request,
                         RequestFromProto(message, std::move(fds)));
  std::visit(
      [&](auto& args) {
        engine_.Ask(session, std::move(args), ReplyTo(mailbox_, to));
      },
      request);
  return absl::OkStatus();
}

}  // namespace hoistd
