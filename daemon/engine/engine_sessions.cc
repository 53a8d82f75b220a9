// The verbs of sessions.
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "daemon/core/node_arenas.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/model_opener.h"
#include "daemon/model/model_name.h"
#include "daemon/model/published_group.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {

void Engine::OpenSession(OpenSessionArgs args, OnSessionWord on_word,
                         Done<SessionId> done) {
  Post([this, args = std::move(args), on_word = std::move(on_word),
        done = std::move(done)](Effects& effects) mutable {
    absl::StatusOr<SessionId> session = node_.OpenSession(args, Now(), effects);
    if (session.ok() && on_word != nullptr) {
      listeners_[*session] = std::move(on_word);
    }
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
    // What admins wait for belongs to no session.
    if (node_.PeerOf(session) == nullptr) return;
    listeners_.erase(session);
    CloseCopiersOf(session);
    node_.CloseSession(session, Now(), effects);
    for (auto it = pending_.begin(); it != pending_.end();) {
      if (it->second.session != session) {
        ++it;
        continue;
      }
      if (it->second.waits.told) {
        TellAnswered(it->first, it->second, absl::CancelledError());
      }
      it->second.on_reply(
          {it->first, absl::CancelledError("the session was closed")});
      it = pending_.erase(it);
    }
    if (auto ended = ending_.extract(session)) {
      ended.mapped().done(std::move(ended.mapped().was));
    }
  });
}

// Memory that a living process has mapped cannot be taken from it: given to
// others meanwhile, it would compute with their bytes and not know. So it is
// told, and what it has stays its own until it has hung up.
void Engine::EndSession(Peer asker, SessionId session,
                        Done<SessionSnapshot> done) {
  Post([this, asker = std::move(asker), session,
        done = std::move(done)](Effects&) mutable {
    absl::StatusOr<SessionSnapshot> was = node_.Look(session, asker, Now());
    if (!was.ok()) return done(was.status());
    const auto listener = listeners_.find(session);
    if (listener == listeners_.end()) {
      return done(absl::FailedPreconditionError(absl::StrCat(
          "session ", session.number(), " came by ", was->via,
          " and cannot be asked to let go; cancel its call, or end its "
          "process")));
    }
    if (auto before = ending_.extract(session)) {
      before.mapped().done(absl::AbortedError(
          absl::StrCat("somebody else has asked for the end of session ",
                       session.number(), " since, and is told")));
    }
    ending_[session] = {*std::move(was), std::move(done)};
    listener->second(absl::UnavailableError(absl::StrCat(
        asker.admin ? "an admin" : "its user", " (uid ", asker.uid.number(),
        ") has ended this session; what it had is given back, and what was in "
        "use is void. Connect, or attach, again to go on")));
  });
}

// Opening and parsing may wait for a disk, so that is done elsewhere; what may
// hang, where its owner alone waits for it.
void Engine::RegisterModel(SessionId session, RegisterModelArgs args,
                           Done<ModelPtr> done) {
  Post([this, session, args = std::move(args),
        done = std::move(done)](Effects&) mutable {
    const Peer* peer = node_.PeerOf(session);
    if (peer == nullptr) {
      return done(absl::NotFoundError("the session is closed"));
    }
    ++opening_;
    auto add = [this, session, readers = args.readers, done = std::move(done)](
                   absl::StatusOr<OpenedModel> opened) mutable {
      AddOpened(session, readers, std::move(opened), std::move(done));
    };
    OpenOptions options = {.owner = peer->uid, .files = parts_.files};
    if (parts_.mover.errands == nullptr || !HasParked(args)) {
      openers_[next_opener_++ % std::size(openers_)]->Post(
          [this, options, args = std::move(args),
           add = std::move(add)]() mutable {
            add(OpenModel(std::move(args), options, open_files_));
          });
      return;
    }
    parts_.mover.errands->Post(
        options.owner, ErrandKind::kOpen,
        [this, options, args = std::move(args),
         add = std::move(add)](absl::StatusOr<ErrandRun*> run) mutable {
          if (!run.ok()) return add(run.status());
          options.errand = *run;
          add(OpenModel(std::move(args), options, open_files_));
        });
  });
}

// Without it no lease of the model could go on, and so nothing on devices.
void Engine::KeepModel(const Model& model, const SourceFiles& files) {
  if (!Keeps()) return;
  if (!WriteModelOfFiles(model, files).ok()) Abandon();
}

absl::Status Engine::WriteModelOfFiles(const Model& model,
                                       const SourceFiles& files) {
  const std::string spec = ToRecord(*model.spec);
  HOIST_ASSIGN_OR_RETURN(const hoist::UniqueFd memfd,
                         ToAbsl(hoist::CreateMemfd("hoist-spec", spec.size())));
  HOIST_ASSIGN_OR_RETURN(
      const hoist::Mapping mapping,
      ToAbsl(hoist::Mapping::OfFd(memfd.get(), spec.size(),
                                  hoist::Mapping::Access::kReadWrite)));
  std::memcpy(mapping.data(), spec.data(), spec.size());
  ModelRecord record;
  record.owner = model.owner;
  record.readers = model.readers;
  record.name = model.spec->name;
  record.spec_hash = Xxh3(std::as_bytes(std::span(spec)));
  std::vector<int> fds;
  for (const std::shared_ptr<const SourceFile>& file : files) {
    record.files.push_back(++last_file_);
    fds.push_back(file->fd());
  }
  record.spec = ++last_file_;
  fds.push_back(memfd.get());
  return WriteFiles(model.id, record, fds, *parts_.keep);
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
        node_.AddModel(session, opened->spec, readers, effects);
    // Attached to the same model: its own files serve.
    if (model.ok() && (*model)->spec == opened->spec) {
      KeepModel(**model, *opened->files);
      mover_->AddFiles((*model)->id, std::move(opened->files));
    }
    Refused(model.status());
    done(std::move(model));
  });
}

void Engine::Publish(SessionId session, PublishArgs args, Done<ModelPtr> done) {
  Post([this, session, args = std::move(args),
        done = std::move(done)](Effects& effects) mutable {
    if (absl::Status named = ValidateModelName(args.model); !named.ok()) {
      return done(std::move(named));
    }
    if (args.of_session) {
      args.model = NameOfSession(session, args.model);
      if (args.model.size() > kLongestName) {
        return done(absl::InvalidArgumentError(absl::StrCat(
            "the model's name is too long by ",
            args.model.size() - kLongestName, " bytes for one of a session")));
      }
      args.readers = Readers::kOwner;
    }
    absl::StatusOr<std::shared_ptr<const Group>> group =
        CheckPublishedGroup(std::move(args.group));
    if (!group.ok()) return done(group.status());
    const RequestId request =
        Await(session,
              [done = std::move(done)](Answer answer) mutable {
                if (!answer.status.ok()) return done(std::move(answer.status));
                done(std::move(answer.model));
              },
              {.kind = TraceKind::kPublish});
    node_.Publish(request, session, args.model, *std::move(group),
                  std::make_shared<hoist::UniqueFd>(std::move(args.image)),
                  args.readers, args.expected, Now() + args.deadline, Now(),
                  effects);
  });
}

void Engine::DescribeModel(SessionId session, std::string name,
                           Done<ModelPtr> done) {
  Post([this, session, name = std::move(name), done = std::move(done)](
           Effects&) mutable { done(node_.Find(session, name)); });
}

void Engine::FindContent(SessionId session, Content content,
                         Done<ModelPtr> done) {
  Post([this, session, content, done = std::move(done)](Effects&) mutable {
    done(node_.FindContent(session, content));
  });
}

void Engine::ForgetModel(SessionId session, ModelId model, DoneStatus done) {
  Post(
      [this, session, model, done = std::move(done)](Effects& effects) mutable {
        done(node_.ForgetBy(session, model, Now(), effects));
      });
}

void Engine::SlabsClosed(SessionId session, SlabsClosedArgs closed,
                         DoneStatus done) {
  Post([this, session, closed = std::move(closed),
        done = std::move(done)](Effects& effects) mutable {
    node_.SlabsClosed(session, closed, Now(), effects);
    done(absl::OkStatus());
  });
}

void Engine::Stage(SessionId session, StageArgs args, Done<LeaseGrant> done) {
  StageIn(/*shared=*/false, session, std::move(args), std::move(done));
}

void Engine::StageShared(SessionId session, StageArgs args,
                         Done<LeaseGrant> done) {
  StageIn(/*shared=*/true, session, std::move(args), std::move(done));
}

// Only where the device's usual slabs cannot be opened by an IPC handle are
// there two kinds of places.
CopyRef Engine::PlaceOf(const StageArgs& args, bool shared) const {
  bool ipc = false;
  if (shared && args.device.number() < parts_.device_views.size()) {
    const DeviceInfo& info = parts_.device_views[args.device.number()].info;
    ipc = info.ipc && info.backing != Backing::kIpc;
  }
  return {args.key, {OnDevice(args.device), ipc, args.apart}};
}

void Engine::StageIn(bool shared, SessionId session, StageArgs args,
                     Done<LeaseGrant> done) {
  Post([this, shared, session, args = std::move(args),
        done = std::move(done)](Effects& effects) mutable {
    BringArgs bring;
    bring.session = session;
    bring.copy = PlaceOf(args, shared);
    bring.deadline = Now() + args.deadline;
    bring.lease = true;
    bring.urgent = !args.background;
    bring.request = Await(
        session,
        [done = std::move(done)](Answer answer) mutable {
          if (!answer.status.ok()) return done(std::move(answer.status));
          done(*std::move(answer.lease));
        },
        {.kind = TraceKind::kStage, .key = args.key, .device = args.device});
    node_.Bring(bring, Now(), effects);
  });
}

void Engine::ReadImage(SessionId session, ReadImageArgs args, DoneStatus done) {
  Post([this, session, args = std::move(args),
        done = std::move(done)](Effects& effects) mutable {
    const RequestId request =
        Await(session,
              [done = std::move(done)](Answer answer) mutable {
                done(std::move(answer.status));
              },
              {.kind = TraceKind::kReadImage, .key = args.key});
    const absl::Time now = Now();
    node_.ReadImage(request, session, args.key,
                    std::make_shared<hoist::UniqueFd>(std::move(args.memfd)),
                    args.memfd_bytes, now + args.deadline, now, effects);
  });
}

void Engine::Prefetch(SessionId session, PrefetchArgs args, DoneStatus done) {
  Post([this, session, args = std::move(args),
        done = std::move(done)](Effects& effects) mutable {
    done(node_.Prefetch(session, args, Now(), effects));
  });
}

void Engine::Release(SessionId session, std::vector<LeaseId> leases,
                     DoneStatus done) {
  Post([this, session, leases = std::move(leases),
        done = std::move(done)](Effects& effects) mutable {
    done(node_.Release(session, leases, Now(), effects));
  });
}

void Engine::ReportHeat(SessionId session, HeatArgs args,
                        Done<std::vector<GroupHeat>> done) {
  Post([this, session, args = std::move(args),
        done = std::move(done)](Effects&) mutable {
    absl::StatusOr<std::vector<GroupHeat>> known =
        node_.ReportHeat(session, args);
    if (known.ok()) {
      const size_t device = args.device.number();
      parts_.mover.links[device]->ReadInPlace(args.touched_cold_bytes);
    }
    done(std::move(known));
  });
}

void Engine::OpenArena(SessionId session, ArenaArgs args,
                       Done<ArenaGrant> done) {
  Post([this, session, args, done = std::move(done)](Effects& effects) mutable {
    const RequestId request =
        Await(session, [done = std::move(done)](Answer answer) mutable {
          if (!answer.status.ok()) return done(std::move(answer.status));
          done(*std::move(answer.arena));
        });
    NodeArenas(node_).Open(request, session, args, Now(), effects);
  });
}

void Engine::CloseArena(SessionId session, ArenaId arena, DoneStatus done) {
  Post(
      [this, session, arena, done = std::move(done)](Effects& effects) mutable {
        done(NodeArenas(node_).Close(session, arena, Now(), effects));
      });
}

void Engine::SetOrder(SessionId session, ModelId model,
                      std::vector<GroupIndex> order, DoneStatus done) {
  Post([this, session, model, order = std::move(order),
        done = std::move(done)](Effects& effects) mutable {
    done(node_.SetOrder(session, model, std::move(order), Now(), effects));
  });
}

}  // namespace hoistd
