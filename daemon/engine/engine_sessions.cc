// The verbs of sessions.
#include <fcntl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/model_opener.h"
#include "daemon/model/model_name.h"
#include "daemon/model/published_group.h"

namespace hoistd {

void Engine::OpenSession(OpenSessionArgs args, OnSlabAsk on_ask,
                         Done<SessionId> done) {
  args.closes_slabs = on_ask != nullptr;
  Post([this, args = std::move(args), on_ask = std::move(on_ask),
        done = std::move(done)](Effects& effects) mutable {
    absl::StatusOr<SessionId> session = node_.OpenSession(args, Now(), effects);
    if (session.ok() && on_ask != nullptr)
      askers_[*session] = std::move(on_ask);
    done(std::move(session));
  });
}

void Engine::CloseSession(SessionId session) {
  Post([this, session](Effects& effects) {
    // What admins wait for belongs to no session.
    if (node_.PeerOf(session) == nullptr) return;
    askers_.erase(session);
    node_.CloseSession(session, Now(), effects);
    for (auto it = pending_.begin(); it != pending_.end();) {
      if (it->second.session != session) {
        ++it;
        continue;
      }
      it->second.on_reply(
          {it->first, absl::CancelledError("the session was closed")});
      it = pending_.erase(it);
    }
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
    const bool may_hang = parts_.mover.errands != nullptr && HasParked(args);
    auto add = [this, session, readers = args.readers,
                recipe = may_hang ? nullptr : RecipeOf(args),
                done = std::move(done)](
                   absl::StatusOr<OpenedModel> opened) mutable {
      AddOpened(session, readers, std::move(recipe), std::move(opened),
                std::move(done));
    };
    OpenOptions options = {.owner = peer->uid, .files = parts_.files};
    if (!may_hang) {
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

// nullptr: nothing is kept, or no descriptors are left to keep it by.
std::shared_ptr<Engine::Recipe> Engine::RecipeOf(
    const RegisterModelArgs& args) const {
  if (parts_.keep == nullptr) return nullptr;
  auto recipe = std::make_shared<Recipe>();
  const auto add = [&](const OpenFile& file) {
    recipe->files.emplace_back(fcntl(file.fd.get(), F_DUPFD_CLOEXEC, 0));
    return recipe->files.back().valid();
  };
  recipe->request.name = args.name;
  recipe->request.joined = args.joined;
  recipe->request.grouping = args.grouping;
  for (const OpenFile& shard : args.shards) {
    recipe->request.shards.push_back(shard.name);
    if (!add(shard)) return nullptr;
  }
  if (!args.index.has_value()) return recipe;
  recipe->request.index = args.index->name;
  return add(*args.index) ? recipe : nullptr;
}

void Engine::KeepFiles(const Model& model, const Recipe& recipe) {
  if (abandoned_) return;
  ModelRecord record;
  record.owner = model.owner;
  record.readers = model.readers;
  record.name = model.spec->name;
  record.content = model.spec->content;
  record.request = recipe.request;
  for (size_t i = 0; i < recipe.files.size(); ++i) {
    record.descriptors.push_back(++last_file_);
  }
  if (!WriteFiles(model.id, record, recipe.files, *parts_.keep).ok()) Abandon();
}

void Engine::AddOpened(SessionId session, std::optional<Readers> readers,
                       std::shared_ptr<Recipe> recipe,
                       absl::StatusOr<OpenedModel> opened,
                       Done<ModelPtr> done) {
  Post([this, session, readers, recipe = std::move(recipe),
        opened = std::move(opened),
        done = std::move(done)](Effects& effects) mutable {
    --opening_;
    if (!opened.ok()) return done(opened.status());
    absl::StatusOr<ModelPtr> model =
        node_.AddModel(session, opened->spec, readers, effects);
    // Attached to the same model: its own files serve.
    if (model.ok() && (*model)->spec == opened->spec) {
      mover_->AddFiles((*model)->id, std::move(opened->files));
      if (recipe != nullptr) KeepFiles(**model, *recipe);
    }
    done(std::move(model));
  });
}

void Engine::Publish(SessionId session, PublishArgs args, Done<ModelPtr> done) {
  Post([this, session, args = std::move(args),
        done = std::move(done)](Effects& effects) mutable {
    if (absl::Status named = ValidateModelName(args.model); !named.ok()) {
      return done(std::move(named));
    }
    absl::StatusOr<std::shared_ptr<const Group>> group =
        CheckPublishedGroup(std::move(args.group));
    if (!group.ok()) return done(group.status());
    const RequestId request =
        Await(session, [done = std::move(done)](Answer answer) mutable {
          if (!answer.status.ok()) return done(std::move(answer.status));
          done(std::move(answer.model));
        });
    node_.Publish(request, session, args.model, *std::move(group),
                  std::make_shared<hoist::UniqueFd>(std::move(args.image)),
                  args.readers, Now() + args.deadline, Now(), effects);
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
  bool apart = false;
  if (shared && args.device.number() < parts_.device_views.size()) {
    const DeviceInfo& info = parts_.device_views[args.device.number()].info;
    apart = info.ipc && info.backing != Backing::kIpc;
  }
  return {args.key, {OnDevice(args.device), apart}};
}

void Engine::StageIn(bool shared, SessionId session, StageArgs args,
                     Done<LeaseGrant> done) {
  Post([this, shared, session, args = std::move(args),
        done = std::move(done)](Effects& effects) mutable {
    Node::BringArgs bring;
    bring.session = session;
    bring.copy = PlaceOf(args, shared);
    bring.deadline = Now() + args.deadline;
    bring.lease = true;
    bring.request =
        Await(session, [done = std::move(done)](Answer answer) mutable {
          if (!answer.status.ok()) return done(std::move(answer.status));
          done(*std::move(answer.lease));
        });
    node_.Bring(bring, Now(), effects);
  });
}

void Engine::ReadImage(SessionId session, ReadImageArgs args, DoneStatus done) {
  Post([this, session, args = std::move(args),
        done = std::move(done)](Effects& effects) mutable {
    const RequestId request =
        Await(session, [done = std::move(done)](Answer answer) mutable {
          done(std::move(answer.status));
        });
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

void Engine::SetOrder(SessionId session, ModelId model,
                      std::vector<GroupIndex> order, DoneStatus done) {
  Post([this, session, model, order = std::move(order),
        done = std::move(done)](Effects&) mutable {
    done(node_.SetOrder(session, model, std::move(order)));
  });
}

}  // namespace hoistd
