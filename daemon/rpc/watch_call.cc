#include "daemon/rpc/watch_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/convert/types_convert.h"

namespace hoistd {

std::shared_ptr<WatchCall> WatchCall::Start(std::shared_ptr<CallEnv> env,
                                            const absl::Status& allowed) {
  std::shared_ptr<WatchCall> self(new WatchCall(std::move(env)));
  self->Own(self);
  if (!allowed.ok()) {
    self->End(allowed);
    return self;
  }
  self->env_->engine.Ask(
      SubscribeArgs{[self](const NodeEvent& event) { self->Push(event); }},
      [self](absl::StatusOr<uint64_t> id) {
        if (!id.ok()) return self->End(id.status());
        self->Subscribed(*id);
      });
  return self;
}

void WatchCall::Subscribed(uint64_t id) {
  {
    absl::MutexLock lock(&mu_);
    subscription_ = id;
    if (!gone()) return;
  }
  env_->engine.Ask(UnsubscribeArgs{id}, [](absl::Status) {});
}

void WatchCall::OnGone() {
  std::optional<uint64_t> id;
  {
    absl::MutexLock lock(&mu_);
    id = subscription_;
  }
  // The subscription is still pending; Subscribed will end it.
  if (!id.has_value()) return;
  env_->engine.Ask(UnsubscribeArgs{*id}, [](absl::Status) {});
}

void WatchCall::Push(const NodeEvent& event) {
  {
    absl::MutexLock lock(&mu_);
    if (gone()) return;
    // After a missed event, all later ones count as missed until the watcher
    // was told.
    if (missed_ > 0 || queue_.size() >= kMostQueued) {
      ++missed_;
      return;
    }
    EventToProto(event, absl::Now(), &queue_.emplace_back());
  }
  Wake();
}

bool WatchCall::Next(pb::Event* message) {
  if (!queue_.empty()) {
    *message = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }
  if (missed_ == 0) return false;
  NodeEvent event;
  event.kind = EventKind::kMissed;
  event.detail = absl::StrCat(
      missed_, " events were not sent: this watcher reads too slowly");
  EventToProto(event, absl::Now(), message);
  missed_ = 0;
  return true;
}

}  // namespace hoistd
