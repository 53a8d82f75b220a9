#include "daemon/rpc/drain_call.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/convert/types_convert.h"
#include "daemon/rpc/node_reader.h"

namespace hoistd {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(100);
constexpr int kMostHolders = 256;

absl::Status StillHeld(const pb::DrainProgress& progress) {
  std::string who;
  for (const pb::SessionStatus& holder : progress.holders()) {
    if (who.size() > 1000) {
      absl::StrAppend(&who, ", ...");
      break;
    }
    absl::StrAppend(&who, who.empty() ? "" : ", ", "session ", holder.id(),
                    " (", holder.client_name(), ", pid ", holder.pid(), ", ",
                    holder.leases(), " leases)");
  }
  return absl::DeadlineExceededError(absl::StrCat(
      progress.leases(), " leases are still held by ", who,
      "; the node takes no new work until it is resumed (hoistctl drain "
      "--resume)"));
}

}  // namespace

DrainCall::DrainCall(std::shared_ptr<CallEnv> env, DrainWish wish)
    : env_(std::move(env)),
      wish_(wish),
      until_(MonotonicClock().Now() + wish.deadline) {}

std::shared_ptr<DrainCall> DrainCall::Start(std::shared_ptr<CallEnv> env,
                                            absl::StatusOr<AdminAct> act,
                                            DrainWish wish) {
  std::shared_ptr<DrainCall> self(new DrainCall(std::move(env), wish));
  self->Own(self);
  if (!act.ok()) {
    self->End(act.status());
    return self;
  }
  self->env_->engine.Ask(SetDrainingArgs{!wish.resume},
                         [self, act = *std::move(act)](absl::Status status) {
                           act.Ended(status);
                           if (!status.ok()) return self->End(status);
                           Look(self);
                         });
  return self;
}

void DrainCall::Look(std::shared_ptr<DrainCall> self) {
  EngineApi& engine = self->env_->engine;
  engine.Ask(LookArgs{[self](const NodeView& view) { Saw(self, view); }},
             [self](absl::Status looked) {
               if (!looked.ok()) self->End(looked);
             });
}

void DrainCall::Saw(std::shared_ptr<DrainCall> self, const NodeView& view) {
  pb::DrainProgress progress;
  uint32_t leases = 0;
  std::string said;
  for (const auto& [id, session] : view.node.tenure().sessions().all()) {
    pb::SessionStatus status;
    NodeReader(view).Session(id, &status);
    // Plans hold their rings, and sessions their arenas, as a lease holds its
    // image.
    const uint32_t held = status.leases() + status.plans() + status.arenas();
    if (held == 0) continue;
    leases += held;
    absl::StrAppend(&said, id.number(), ":", held, " ");
    if (progress.holders_size() < kMostHolders) {
      *progress.add_holders() = std::move(status);
    }
  }
  progress.set_leases(leases);
  progress.set_drained(leases == 0 && !self->wish_.resume);
  if (said != self->last_ || said.empty()) {
    self->last_ = std::move(said);
    self->Put(progress);
  }
  if (leases == 0 || self->wish_.resume) return self->End(absl::OkStatus());
  if (MonotonicClock().Now() >= self->until_) {
    return self->End(StillHeld(progress));
  }
  LookLater(std::move(self));
}

void DrainCall::LookLater(std::shared_ptr<DrainCall> self) {
  {
    absl::MutexLock lock(&self->mu_);
    if (self->gone()) return;
  }
  // The alarm owns its callback. A strong reference here would be a cycle.
  std::weak_ptr<StreamCall<pb::DrainProgress>> weak = self->weak_from_this();
  self->alarm_.Set(
      std::chrono::system_clock::now() + kBetweenLooks, [weak](bool) {
        auto again = std::static_pointer_cast<DrainCall>(weak.lock());
        if (again != nullptr) Look(std::move(again));
      });
}

}  // namespace hoistd
