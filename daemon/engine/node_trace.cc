#include "daemon/engine/node_trace.h"

#include <utility>

#include "daemon/core/node_measure.h"

namespace hoistd {
namespace {

constexpr absl::Duration kBetweenSamples = absl::Milliseconds(10);

}  // namespace

void NodeTrace::Begin(absl::Time now) {
  for (const auto& [id, session] : node_.tenure().sessions().all()) {
    const Peer& peer = session.args.peer;
    recorder_->Name(TraceSession{id, session.args.client_name, peer.via,
                                 peer.uid, peer.pid});
  }
  for (const auto& [id, plan] : node_.tenure().plans().standing()) {
    if (!plan.ended) NamePlan(plan.grant, plan.session);
  }
  sampled_at_ = absl::InfinitePast();
  used_.clear();
  TellUsed(now);
}

void NodeTrace::NameGroup(GroupKey key) {
  if (!Traces(recorder_)) return;
  const auto spec = node_.copies().SpecOf(key.model);
  if (!spec.ok() || key.group.number() >= (*spec)->groups.size()) return;
  recorder_->Name(key, (*spec)->name,
                  (*spec)->groups[key.group.number()]->name);
}

void NodeTrace::NamePlan(const PlanGrant& grant, SessionId session) {
  if (!Traces(recorder_)) return;
  recorder_->Name(TracePlan{grant.id, session, grant.model, grant.device});
  for (const PlannedGroup& group : grant.groups) {
    if (!group.resident) NameGroup({grant.model, group.group});
  }
}

void NodeTrace::TellUsed(absl::Time now) {
  if (now - sampled_at_ < kBetweenSamples) return;
  sampled_at_ = now;
  const NodeMeasurer measurer(node_);
  used_.resize(devices_ + 1, UINT64_MAX);
  for (size_t i = 0; i <= devices_; ++i) {
    TraceEvent event;
    event.kind = i < devices_ ? TraceKind::kDeviceUsed : TraceKind::kHostUsed;
    event.device = DeviceIndex(static_cast<uint32_t>(i < devices_ ? i : 0));
    event.bytes =
        i < devices_ ? measurer.DeviceUsed(event.device) : measurer.HostUsed();
    event.begin = event.end = now;
    if (std::exchange(used_[i], event.bytes) == event.bytes) continue;
    recorder_->Add(event);
  }
}

void NodeTrace::AddSlowEvent(absl::Time begin, absl::Duration took) {
  TraceEvent event;
  event.kind = TraceKind::kSlowEvent;
  event.begin = begin;
  event.end = begin + took;
  recorder_->Add(event);
}

}  // namespace hoistd
