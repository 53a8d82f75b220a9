// What a recording is told of requests, and what its numbers mean.
#include <utility>

#include "daemon/engine/engine.h"

namespace hoistd {
namespace {

// Of what of a tier is used.
constexpr absl::Duration kBetweenSamples = absl::Milliseconds(10);

}  // namespace

void Engine::Trace(Done<std::unique_ptr<TraceRecording>> done) {
  // Not on the engine's thread: it makes room for many events.
  absl::StatusOr<std::unique_ptr<TraceRecording>> started =
      absl::UnimplementedError("this hoistd records nothing");
  if (trace() != nullptr) started = trace()->Start();
  Post([this, started = std::move(started),
        done = std::move(done)](Effects&) mutable {
    if (!started.ok()) return done(std::move(started));
    NameAll();
    new_waits_.clear();
    for (const auto& [id, pending] : pending_) new_waits_.push_back(id);
    TellWaits();
    told_used_ = absl::InfinitePast();
    used_.clear();
    TellUsed(Now());
    // A lane says what it waits for when its link's thread looks.
    for (Link* link : parts_.mover.links) link->Post([] {});
    done(std::move(started));
  });
}

void Engine::NameAll() {
  NodeSnapshot snapshot = node_.Snapshot(Now());
  for (SessionSnapshot& session : snapshot.sessions) {
    trace()->Name(TraceSession{session.id, std::move(session.client_name),
                               std::move(session.via), session.uid,
                               session.pid});
  }
  for (const PlanSnapshot& plan : snapshot.plans) {
    const PlanGrant* grant = node_.FindPlan(plan.id);
    if (grant != nullptr) NamePlan(*grant, plan.session);
  }
}

void Engine::NameGroup(GroupKey key) {
  const auto spec = node_.SpecOf(key.model);
  if (!spec.ok() || key.group.number() >= (*spec)->groups.size()) return;
  trace()->Name(key, (*spec)->name, (*spec)->groups[key.group.number()]->name);
}

void Engine::NamePlan(const PlanGrant& grant, SessionId session) {
  trace()->Name(TracePlan{grant.id, session, grant.model, grant.device});
  for (const PlannedGroup& group : grant.groups) {
    if (!group.resident) NameGroup({grant.model, group.group});
  }
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

// What was not answered at once.
void Engine::TellWaits() {
  for (const RequestId id : std::exchange(new_waits_, {})) {
    const auto found = pending_.find(id);
    if (found == pending_.end()) continue;
    TracedWait& waits = found->second.waits;
    if (!waits.kind.has_value()) continue;
    if (waits.key.model != ModelId()) NameGroup(waits.key);
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
  if (event.model != ModelId() && node_.SpecOf(event.model).ok()) {
    event.bytes = node_.BytesOf(pending.waits.key);
  }
  trace()->Add(event);
}

void Engine::TellHandled(absl::Time begin, absl::Duration took) {
  if (!new_waits_.empty()) TellWaits();
  TellUsed(begin + took);
  if (took <= kSlowEvent) return;
  TraceEvent event;
  event.kind = TraceKind::kSlowEvent;
  event.begin = begin;
  event.end = begin + took;
  trace()->Add(event);
}

void Engine::TellUsed(absl::Time now) {
  if (now - told_used_ < kBetweenSamples) return;
  told_used_ = now;
  const NodeMeasurer measurer(node_);
  const size_t devices = parts_.mover.links.size();
  used_.resize(devices + 1, UINT64_MAX);
  for (size_t i = 0; i <= devices; ++i) {
    TraceEvent event;
    event.kind = i < devices ? TraceKind::kDeviceUsed : TraceKind::kHostUsed;
    event.device = DeviceIndex(static_cast<uint32_t>(i < devices ? i : 0));
    event.bytes =
        i < devices ? measurer.DeviceUsed(event.device) : measurer.HostUsed();
    event.begin = event.end = now;
    if (std::exchange(used_[i], event.bytes) == event.bytes) continue;
    trace()->Add(event);
  }
}

}  // namespace hoistd
