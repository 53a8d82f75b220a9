#include "daemon/session/verb_router.h"

#include <utility>

#include "daemon/base/status.h"
#include "daemon/session/request_convert.h"

namespace hoistd {
namespace {

using MailboxPtr = std::shared_ptr<Mailbox>;

Done<ModelPtr> ModelTo(MailboxPtr mailbox, const Ticket& ticket) {
  return [mailbox, ticket](absl::StatusOr<ModelPtr> model) {
    Reply reply;
    reply.ticket = ticket;
    reply.status = model.status();
    if (model.ok()) reply.model = *std::move(model);
    mailbox->Post(std::move(reply));
  };
}

DoneStatus StatusTo(MailboxPtr mailbox, const Ticket& ticket) {
  return [mailbox, ticket](absl::Status status) {
    Reply reply;
    reply.ticket = ticket;
    reply.status = std::move(status);
    mailbox->Post(std::move(reply));
  };
}

Done<LeaseGrant> LeaseTo(MailboxPtr mailbox, const Ticket& ticket) {
  return [mailbox, ticket](absl::StatusOr<LeaseGrant> grant) {
    Reply reply;
    reply.ticket = ticket;
    reply.status = grant.status();
    if (grant.ok()) {
      absl::StatusOr<OwnedGrant> owned = OwnGrant(*std::move(grant));
      reply.status = owned.status();
      reply.fatal = !owned.ok();
      if (owned.ok()) {
        reply.lease = std::make_unique<OwnedGrant>(*std::move(owned));
      }
    }
    mailbox->Post(std::move(reply));
  };
}

Done<std::vector<GroupHeat>> HeatTo(MailboxPtr mailbox, const Ticket& ticket) {
  return [mailbox, ticket](absl::StatusOr<std::vector<GroupHeat>> heat) {
    Reply reply;
    reply.ticket = ticket;
    reply.status = heat.status();
    if (heat.ok()) {
      reply.heat = std::make_unique<std::vector<GroupHeat>>(*std::move(heat));
    }
    mailbox->Post(std::move(reply));
  };
}

Done<OpenedPlan> PlanTo(MailboxPtr mailbox, const Ticket& ticket) {
  return [mailbox, ticket](absl::StatusOr<OpenedPlan> opened) {
    Reply reply;
    reply.ticket = ticket;
    reply.status = opened.status();
    if (opened.ok()) {
      absl::StatusOr<OwnedPlan> owned = OwnPlan(*std::move(opened));
      reply.status = owned.status();
      reply.fatal = !owned.ok();
      if (owned.ok()) {
        reply.plan = std::make_unique<OwnedPlan>(*std::move(owned));
      }
    }
    mailbox->Post(std::move(reply));
  };
}

Done<ArenaGrant> ArenaTo(MailboxPtr mailbox, const Ticket& ticket) {
  return [mailbox, ticket](absl::StatusOr<ArenaGrant> grant) {
    Reply reply;
    reply.ticket = ticket;
    reply.status = grant.status();
    if (grant.ok()) {
      absl::StatusOr<OwnedArena> owned = OwnArena(*std::move(grant));
      reply.status = owned.status();
      reply.fatal = !owned.ok();
      if (owned.ok()) {
        reply.arena = std::make_unique<OwnedArena>(*std::move(owned));
      }
    }
    mailbox->Post(std::move(reply));
  };
}

Done<OpenedCopier> CopierTo(MailboxPtr mailbox, const Ticket& ticket) {
  return [mailbox, ticket](absl::StatusOr<OpenedCopier> opened) {
    Reply reply;
    reply.ticket = ticket;
    reply.status = opened.status();
    if (opened.ok()) {
      reply.copier = std::make_unique<OpenedCopier>(*std::move(opened));
    }
    mailbox->Post(std::move(reply));
  };
}

// As replies to a request that nobody has made.
OnSessionWord WordsTo(MailboxPtr mailbox, ConnectionId connection) {
  return [mailbox, connection](const SessionWord& word) {
    Reply reply;
    reply.ticket = {.connection = connection, .admitted = false};
    if (const auto* ask = std::get_if<SlabAsk>(&word)) {
      reply.ask = std::make_unique<SlabAsk>(*ask);
    } else {
      reply.status = std::get<absl::Status>(word);
      reply.fatal = true;
    }
    mailbox->Post(std::move(reply));
  };
}

absl::Status RefuseFds(const std::vector<hoist::UniqueFd>& fds) {
  if (fds.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "descriptors came with a verb that takes none");
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
  engine_.Resume(
      session, ResumeFromProto(request), WordsTo(mailbox_, ticket.connection),
      [mailbox = mailbox_, ticket](absl::StatusOr<Resumed> resumed) {
        Reply reply;
        reply.ticket = ticket;
        reply.status = resumed.status();
        if (resumed.ok()) {
          reply.resumed = std::make_unique<Resumed>(*std::move(resumed));
        }
        mailbox->Post(std::move(reply));
      });
}

absl::Status VerbRouter::Route(const Ticket& ticket, SessionId session,
                               const hoist::v1::ClientMessage& message,
                               std::vector<hoist::UniqueFd> fds) {
  using Body = hoist::v1::ClientMessage;
  switch (message.body_case()) {
    case Body::kRegisterModel: {
      HOIST_ASSIGN_OR_RETURN(
          RegisterModelArgs args,
          RegisterModelFromProto(message.register_model(), std::move(fds)));
      engine_.RegisterModel(session, std::move(args),
                            ModelTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::kPublish: {
      HOIST_ASSIGN_OR_RETURN(
          PublishArgs args,
          PublishFromProto(message.publish(), std::move(fds)));
      engine_.Publish(session, std::move(args), ModelTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::kReadImage: {
      HOIST_ASSIGN_OR_RETURN(
          ReadImageArgs args,
          ReadImageFromProto(message.read_image(), std::move(fds)));
      engine_.ReadImage(session, std::move(args), StatusTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::BODY_NOT_SET:  // A verb that is not known may take some.
      return RouteWithoutFds(ticket, session, message);
    default:
      HOIST_RETURN_IF_ERROR(RefuseFds(fds));
      return RouteWithoutFds(ticket, session, message);
  }
}

absl::Status VerbRouter::RouteWithoutFds(
    const Ticket& ticket, SessionId session,
    const hoist::v1::ClientMessage& message) {
  using Body = hoist::v1::ClientMessage;
  switch (message.body_case()) {
    case Body::kStage: {
      HOIST_ASSIGN_OR_RETURN(const StageArgs args,
                             StageFromProto(message.stage()));
      engine_.Stage(session, args, LeaseTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::kPrefetch: {
      HOIST_ASSIGN_OR_RETURN(PrefetchArgs args,
                             PrefetchFromProto(message.prefetch()));
      engine_.Prefetch(session, std::move(args), StatusTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::kRelease: {
      HOIST_ASSIGN_OR_RETURN(std::vector<LeaseId> leases,
                             ReleaseFromProto(message.release()));
      engine_.Release(session, std::move(leases), StatusTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::kSlabsClosed: {
      HOIST_ASSIGN_OR_RETURN(SlabsClosedArgs closed,
                             SlabsClosedFromProto(message.slabs_closed()));
      engine_.SlabsClosed(session, std::move(closed),
                          StatusTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::kSetOrder: {
      HOIST_ASSIGN_OR_RETURN(OrderArgs args,
                             SetOrderFromProto(message.set_order()));
      engine_.SetOrder(session, args.model, std::move(args.groups),
                       StatusTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::kSetPlan: {
      HOIST_ASSIGN_OR_RETURN(SetPlanArgs args,
                             SetPlanFromProto(message.set_plan()));
      engine_.SetPlan(session, std::move(args), PlanTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::kClearPlan:
      engine_.ClearPlan(session, PlanId(message.clear_plan().plan_id()),
                        StatusTo(mailbox_, ticket));
      return absl::OkStatus();
    case Body::kOpenArena:
      engine_.OpenArena(session, OpenArenaFromProto(message.open_arena()),
                        ArenaTo(mailbox_, ticket));
      return absl::OkStatus();
    case Body::kCloseArena:
      engine_.CloseArena(session, ArenaId(message.close_arena().arena_id()),
                         StatusTo(mailbox_, ticket));
      return absl::OkStatus();
    case Body::kOpenCopier: {
      HOIST_ASSIGN_OR_RETURN(const OpenCopierArgs args,
                             OpenCopierFromProto(message.open_copier()));
      engine_.OpenCopier(session, args, CopierTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::kCloseCopier:
      engine_.CloseCopier(session, CopierId(message.close_copier().copier_id()),
                          StatusTo(mailbox_, ticket));
      return absl::OkStatus();
    case Body::kResume:
    case Body::kOpenSession:
      return absl::FailedPreconditionError(
          "this session is open; close the connection to open another");
    default:
      return RouteOfModel(ticket, session, message);
  }
}

absl::Status VerbRouter::RouteOfModel(const Ticket& ticket, SessionId session,
                                      const hoist::v1::ClientMessage& message) {
  using Body = hoist::v1::ClientMessage;
  switch (message.body_case()) {
    case Body::kDescribeModel: {
      HOIST_ASSIGN_OR_RETURN(std::string name,
                             DescribeModelFromProto(message.describe_model()));
      engine_.DescribeModel(session, std::move(name),
                            ModelTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::kFindContent: {
      HOIST_ASSIGN_OR_RETURN(const Content content,
                             FindContentFromProto(message.find_content()));
      engine_.FindContent(session, content, ModelTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    case Body::kForgetModel:
      engine_.ForgetModel(session, ModelId(message.forget_model().model_id()),
                          StatusTo(mailbox_, ticket));
      return absl::OkStatus();
    case Body::kHeat: {
      HOIST_ASSIGN_OR_RETURN(HeatArgs args, HeatFromProto(message.heat()));
      engine_.ReportHeat(session, std::move(args), HeatTo(mailbox_, ticket));
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError(
          "the message carries no verb that this hoistd knows");
  }
}

}  // namespace hoistd
