// What readers see, and the engine's own figures.
#include "daemon/engine/engine.h"

namespace hoistd {

// Counts refusals of all verbs.
void Engine::Refused(const absl::Status& status) {
  if (!status.ok()) ++refused_[static_cast<size_t>(status.code())];
}

Counters Engine::CountersNow() const {
  Counters counters = node_.books().counters;
  counters.slow_events = slow_events_;
  counters.longest_event = longest_event_;
  for (const auto& link : parts_.mover.links) {
    counters.host_to_device_bytes += link->copied_bytes(LinkClass::kPlans);
  }
  return counters;
}

EngineStats Engine::StatsNow() const {
  EngineStats stats;
  for (const auto& link : parts_.mover.links) {
    LinkStats& of = stats.links.emplace_back();
    of.device = DeviceIndex(static_cast<uint32_t>(stats.links.size() - 1));
    of.plan_bytes = link->copied_bytes(LinkClass::kPlans);
    of.lease_bytes = link->copied_bytes(LinkClass::kLeases);
    of.background_bytes = link->copied_bytes(LinkClass::kBackground);
    const PermitDesk::Totals own = permits_.Totals(of.device);
    of.own_bytes = own.copied_bytes;
    of.own_read_bytes = own.read_bytes;
    of.bytes_per_second = static_cast<uint64_t>(link->Rate());
    of.read_bytes_per_second = static_cast<uint64_t>(link->ReadRate());
    of.load_max_bytes_per_second = link->load_rate();
  }
  for (const std::unique_ptr<Streamer>& streamer : streamers_) {
    const LaneBoard::Totals totals = streamer->Totals();
    stats.waits.push_back({absl::ToDoubleSeconds(totals.waited), totals.waits,
                           totals.host_waits, totals.loads,
                           totals.wasted_loads});
  }
  stats.events = handled_;
  stats.slow_events = slow_event_times_;
  stats.refused = refused_;
  return stats;
}

NodeView Engine::View() const {
  NodeView view{node_, Now(), CountersNow(), StatsNow(), {}, {}};
  for (const LinkStats& link : view.engine.links) {
    view.permits.push_back(permits_.Stats(link.device));
  }
  for (const std::unique_ptr<Streamer>& streamer : streamers_) {
    const std::vector<LaneStats> lanes = streamer->Stats();
    view.lanes.insert(view.lanes.end(), lanes.begin(), lanes.end());
  }
  return view;
}

}  // namespace hoistd
