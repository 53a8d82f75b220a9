// Sessions' verbs.
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/base/overloaded.h"
#include "daemon/base/status.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/model_opener.h"
#include "daemon/model/model_name.h"
#include "daemon/model/published_group.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {
namespace {

// Gives one part of an answer, or its error, to `done`.
template <typename Part>
auto Giving(Done<Part> done, std::optional<Part> Answer::*part) {
  return [done = std::move(done), part](Answer answer) mutable {
    if (!answer.status.ok()) return done(std::move(answer.status));
    done(*std::move(answer.*part));
  };
}

auto GivingModel(Done<ModelPtr> done) {
  return [done = std::move(done)](Answer answer) mutable {
    if (!answer.status.ok()) return done(std::move(answer.status));
    done(std::move(answer.model));
  };
}

auto GivingStatus(Done<void> done) {
  return [done = std::move(done)](Answer answer) mutable {
    done(std::move(answer.status));
  };
}

}  // namespace

void Engine::OpenSession(OpenSessionArgs args, OnSessionWord on_word,
                         Done<SessionId> done) {
  Post([this, args = std::move(args), on_word = std::move(on_word),
        done = std::move(done)](Effects& effects) mutable {
    absl::StatusOr<SessionId> session = node_.OpenSession(args, Now(), effects);
    if (session.ok()) words_.Add(*session, std::move(on_word));
    if (session.ok() && Traces(trace())) {
      trace()->Name(TraceSession{*session, args.client_name, args.peer.via,
                                 args.peer.uid, args.peer.pid});
    }
    Refused(session.status());
    done(std::move(session));
  });
}

void Engine::CloseSession(SessionId session) {
  Post([this, session](Effects& effects) {
    // Admins' requests belong to no session.
    if (node_.tenure().PeerOf(session) == nullptr) return;
    words_.Drop(session);
    permits_.CloseAllOf(session);
    node_.CloseSession(session, Now(), effects);
    for (auto it = pending_.begin(); it != pending_.end();) {
      const auto at = it++;
      auto& [id, pending] = *at;
      if (pending.session != session) continue;
      const absl::Status closed =
          absl::CancelledError("the session was closed");
      if (pending.waits.told) TellAnswered(id, pending, closed);
      pending.on_reply({id, closed});
      pending_.erase(at);
    }
    if (auto ended = ending_.extract(session)) {
      ended.mapped()(absl::OkStatus());
    }
  });
}

void Engine::Accept(SessionId session, SessionCall call) {
  Post([this, session, call = std::move(call)](Effects& effects) mutable {
    Serve(session, call, effects);
  });
}

void Engine::Serve(SessionId session, SessionCall& call, Effects& effects) {
  std::visit(
      Overloaded{
          [&](Call<DescribeModelArgs>& c) {
            c.done(node_.tenure().Find(session, c.args.name));
          },
          [&](Call<FindContentArgs>& c) {
            c.done(node_.tenure().FindByContent(session, c.args.content));
          },
          [&](Call<ForgetModelArgs>& c) {
            c.done(node_.ForgetBy(session, c.args.model, Now(), effects));
          },
          [&](Call<PrefetchArgs>& c) {
            c.done(node_.Prefetch(session, c.args, Now(), effects));
          },
          [&](Call<ReleaseArgs>& c) {
            c.done(node_.Release(session, c.args.leases, Now(), effects));
          },
          [&](Call<HeatArgs>& c) { c.done(ReportHeat(session, c.args)); },
          [&](Call<SetOrderArgs>& c) {
            c.done(node_.SetOrder(session, std::move(c.args), Now(), effects));
          },
          [&](Call<SlabsClosedArgs>& c) {
            node_.SlabsClosed(session, c.args, Now(), effects);
            c.done(absl::OkStatus());
          },
          [&](Call<CloseArenaArgs>& c) {
            c.done(node_.EndArena(session, c.args.arena, Now(), effects));
          },
          [&](auto& c) { Start(session, std::move(c), effects); }},
      call);
}

// Opening and parsing may wait for a disk, so they run elsewhere; files that
// may hang run where only their owner waits.
void Engine::Start(SessionId session, Call<RegisterModelArgs> call, Effects&) {
  auto& [args, done] = call;
  const Peer* peer = node_.tenure().PeerOf(session);
  if (peer == nullptr) {
    return done(absl::NotFoundError("the session is closed"));
  }
  ++opening_;
  auto add = [this, session, readers = args.readers, done = std::move(done)](
                 absl::StatusOr<OpenedModel> opened) mutable {
    AddOpened(session, readers, std::move(opened), std::move(done));
  };
  OpenOptions options = {.owner = peer->uid, .files = parts_.files};
  if (parts_.mover.io_helpers == nullptr || !HasParked(args)) {
    openers_[next_opener_++ % std::size(openers_)]->Post(
        [this, options, args = std::move(args),
         add = std::move(add)]() mutable {
          add(OpenModel(std::move(args), options, open_files_));
        });
    return;
  }
  parts_.mover.io_helpers->Post(
      options.owner, HelperCallKind::kOpen,
      [this, options, args = std::move(args),
       add = std::move(add)](absl::StatusOr<IoHelper*> run) mutable {
        if (!run.ok()) return add(run.status());
        options.helper = *run;
        add(OpenModel(std::move(args), options, open_files_));
      });
}

void Engine::AddOpened(SessionId session, std::optional<Readers> readers,
                       absl::StatusOr<OpenedModel> opened,
                       Done<ModelPtr> done) {
  Post([this, session, readers, opened = std::move(opened),
        done = std::move(done)](Effects& effects) mutable {
    --opening_;
    Refused(opened.status());
    if (!opened.ok()) return done(opened.status());
    absl::StatusOr<ModelPtr> model =
        node_.registry().AddModel(session, opened->spec, readers, effects);
    // Attached to the same model: its files are used.
    if (model.ok() && (*model)->spec == opened->spec) {
      book_.WriteModel(**model, *opened->files);
      mover_->AddFiles((*model)->id, std::move(opened->files));
    }
    Refused(model.status());
    done(std::move(model));
  });
}

void Engine::Start(SessionId session, Call<PublishArgs> call,
                   Effects& effects) {
  auto& [args, done] = call;
  if (absl::Status named = ValidateModelName(args.model); !named.ok()) {
    return done(std::move(named));
  }
  if (args.of_session) {
    args.model = NameOfSession(session, args.model);
    if (args.model.size() > kLongestName) {
      return done(absl::InvalidArgumentError(absl::StrCat(
          "the model's name is too long by ", args.model.size() - kLongestName,
          " bytes for one of a session")));
    }
    args.readers = Readers::kOwner;
  }
  absl::StatusOr<std::shared_ptr<const Group>> group =
      CheckPublishedGroup(std::move(args.group));
  if (!group.ok()) return done(group.status());
  const RequestId request = Await(session, GivingModel(std::move(done)),
                                  {.kind = TraceKind::kPublish});
  const absl::Time now = Now();
  node_.Publish(request, session, args.model, *std::move(group),
                std::make_shared<hoist::UniqueFd>(std::move(args.image)),
                args.readers, args.expected, now + args.deadline, now, effects);
}

// Two kinds of places exist only where the device's usual slabs have no IPC
// handle.
CopyRef Engine::PlaceOf(const StageArgs& args) const {
  bool ipc = false;
  if (args.shared && args.device.number() < parts_.device_views.size()) {
    const DeviceInfo& info = parts_.device_views[args.device.number()].info;
    ipc = info.ipc && info.backing != Backing::kIpc;
  }
  return {args.key, {OnDevice(args.device), ipc, args.apart}};
}

void Engine::Start(SessionId session, Call<StageArgs> call, Effects& effects) {
  const StageArgs& args = call.args;
  BringArgs bring;
  bring.session = session;
  bring.copy = PlaceOf(args);
  bring.deadline = Now() + args.deadline;
  bring.lease = true;
  bring.urgent = !args.background;
  bring.request = Await(
      session, Giving(std::move(call.done), &Answer::lease),
      {.kind = TraceKind::kStage, .key = args.key, .device = args.device});
  node_.Bring(bring, Now(), effects);
}

void Engine::Start(SessionId session, Call<ReadImageArgs> call,
                   Effects& effects) {
  auto& [args, done] = call;
  const RequestId request =
      Await(session, GivingStatus(std::move(done)),
            {.kind = TraceKind::kReadImage, .key = args.key});
  const absl::Time now = Now();  // One: a deadline of 0 is not after it.
  node_.ReadImage(request, session, args.key,
                  std::make_shared<hoist::UniqueFd>(std::move(args.memfd)),
                  args.memfd_bytes, now + args.deadline, now, effects);
}

absl::StatusOr<std::vector<GroupHeat>> Engine::ReportHeat(
    SessionId session, const HeatArgs& args) {
  absl::StatusOr<std::vector<GroupHeat>> known =
      node_.tenure().ReportHeat(session, args);
  if (!known.ok()) return known;
  const size_t device = args.device.number();
  parts_.mover.links[device]->ReadInPlace(args.touched_cold_bytes);
  return known;
}

void Engine::Start(SessionId session, Call<ArenaArgs> call, Effects& effects) {
  const RequestId request =
      Await(session, Giving(std::move(call.done), &Answer::arena));
  node_.LeaseArena(request, session, call.args, Now(), effects);
}

void Engine::Start(SessionId session, Call<SpareArgs> call, Effects& effects) {
  const DeviceIndex device = call.args.device;
  auto answered = [this, device,
                   done = std::move(call.done)](Answer answer) mutable {
    if (!answer.status.ok()) return done(std::move(answer.status));
    ++moving_;  // The memory is free once its slabs are destroyed.
    slab_makers_[device.number()]->Then(
        [this, done = std::move(done)]() mutable {
          Post([this, done = std::move(done)](Effects&) mutable {
            --moving_;
            done(absl::OkStatus());
          });
        });
  };
  const RequestId request = Await(session, std::move(answered));
  node_.tenure().Spare(request, session, call.args, Now(), effects);
  node_.Tick(Now(), effects);
}

void Engine::Start(SessionId session, Call<OpenPermitArgs> call, Effects&) {
  const Peer* peer = node_.tenure().PeerOf(session);
  if (peer == nullptr) {
    return call.done(absl::NotFoundError("the session is closed"));
  }
  permits_.Open(session, peer->uid, call.args.device, call.args.share,
                [this, done = std::move(call.done)](
                    absl::StatusOr<OpenedPermit> opened) mutable {
                  Refused(opened.status());
                  done(std::move(opened));
                });
}

void Engine::Start(SessionId session, Call<ClosePermitArgs> call, Effects&) {
  call.done(permits_.Close(session, call.args.permit));
}

}  // namespace hoistd
