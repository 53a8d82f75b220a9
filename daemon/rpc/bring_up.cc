#include "daemon/rpc/bring_up.h"

#include <memory>
#include <utility>

#include "daemon/rpc/call_env.h"

namespace hoistd {
namespace {

// A load in progress, owned by the callback of its current step.
struct OnItsWay {
  EngineApi& engine;
  Peer who;
  std::string what;
  TierAt to;
  absl::AnyInvocable<void(const LoadProgress&)> progress;
  Done<BroughtUp> done;
};
using OnItsWayPtr = std::shared_ptr<OnItsWay>;

void Load(OnItsWayPtr self, ModelPtr model) {
  LoadArgs load;
  load.model = model->id;
  load.to = self->to;
  load.progress = [self](const LoadProgress& at) { self->progress(at); };
  self->engine.Ask(std::move(load),
                   [self, model](absl::StatusOr<LoadProgress> last) mutable {
                     if (!last.ok()) return self->done(last.status());
                     self->done(BroughtUp{std::move(model), *last});
                   });
}

void Register(OnItsWayPtr self, RegisterModelArgs args) {
  OpenCallSession(
      self->engine, self->who, self->what,
      [self,
       args = std::move(args)](absl::StatusOr<CallSession> session) mutable {
        if (!session.ok()) return self->done(session.status());
        const SessionId id = session->id();
        self->engine.Ask(id, std::move(args),
                         [self, session = *std::move(session)](
                             absl::StatusOr<ModelPtr> model) mutable {
                           session.Close();
                           if (!model.ok()) return self->done(model.status());
                           Load(self, *std::move(model));
                         });
      });
}

}  // namespace

void BringUp(EngineApi& engine, PathEnv env, Peer who, std::string what,
             LoadWish wish,
             absl::AnyInvocable<void(const LoadProgress&)> progress,
             Done<BroughtUp> done) {
  const User user = who.uid;
  std::string path = wish.path;
  auto self = std::make_shared<OnItsWay>(
      OnItsWay{engine, std::move(who), std::move(what), wish.to,
               std::move(progress), std::move(done)});
  OpenPath(
      std::move(env), user, std::move(path),
      [self, wish = std::move(wish)](absl::StatusOr<ModelFiles> files) mutable {
        if (!files.ok()) return self->done(files.status());
        RegisterModelArgs args;
        args.name = wish.name.empty() ? files->name : wish.name;
        args.shards = std::move(files->shards);
        args.index = std::move(files->index);
        args.joined = std::move(wish.joined);
        args.grouping = std::move(wish.grouping);
        args.readers = wish.readers;
        Register(self, std::move(args));
      });
}

}  // namespace hoistd
