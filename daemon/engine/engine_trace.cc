// Requests in a recording.
#include <utility>

#include "daemon/engine/engine.h"

namespace hoistd {

void Engine::Trace(Done<std::unique_ptr<TraceRecording>> done) {
  // Not on the engine's thread: it allocates room for many events.
  absl::StatusOr<std::unique_ptr<TraceRecording>> started =
      absl::UnimplementedError("this hoistd records nothing");
  if (trace() != nullptr) started = trace()->Start();
  Post([this, started = std::move(started),
        done = std::move(done)](Effects&) mutable {
    if (!started.ok()) return done(std::move(started));
    node_trace_.Begin(Now());
    new_waits_.clear();
    for (const auto& [id, pending] : pending_) new_waits_.push_back(id);
    TellWaits();
    // A lane records its wait when its link's thread looks.
    for (Link* link : parts_.mover.links) link->Post([] {});
    done(std::move(started));
  });
}

TraceEvent Engine::EventOf(RequestId id, const Pending& pending) const {
  TraceEvent event;
  event.kind = *pending.waits.kind;
  event.begin = pending.waits.since;
  event.session = pending.session;
  event.model = pending.waits.key.model;
  event.group = pending.waits.key.group;
  event.device = pending.waits.device;
  event.request = id;
  return event;
}

// Requests that were not answered at once.
void Engine::TellWaits() {
  for (const RequestId id : std::exchange(new_waits_, {})) {
    const auto found = pending_.find(id);
    if (found == pending_.end()) continue;
    TracedWait& waits = found->second.waits;
    if (!waits.kind.has_value()) continue;
    if (waits.key.model != ModelId()) node_trace_.NameGroup(waits.key);
    waits.told = true;
    TraceEvent event = EventOf(id, found->second);
    event.open = true;
    trace()->Add(event);
  }
}

void Engine::TellAnswered(RequestId id, const Pending& pending,
                          const absl::Status& status) {
  if (!Traces(trace())) return;
  TraceEvent event = EventOf(id, pending);
  event.end = Now();
  event.failed = !status.ok();
  if (event.model != ModelId() && node_.copies().SpecOf(event.model).ok()) {
    event.bytes = node_.copies().BytesOf(pending.waits.key);
  }
  trace()->Add(event);
}

void Engine::TellHandled(absl::Time begin, absl::Duration took) {
  if (!new_waits_.empty()) TellWaits();
  node_trace_.TellUsed(begin + took);
  if (took > kSlowEvent) node_trace_.AddSlowEvent(begin, took);
}

}  // namespace hoistd
