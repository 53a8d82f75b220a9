// A lane in a recording; called only during one.
#include "daemon/stream/lane.h"

namespace hoistd {

TraceEvent Lane::EventOf(TraceKind kind, LaneGroup group,
                         absl::Time begin) const {
  TraceEvent event;
  event.kind = kind;
  event.session = spec_.session;
  event.plan = spec_.plan;
  event.model = spec_.model;
  event.group = spec_.groups[group].group;
  event.bytes = spec_.groups[group].bytes;
  event.begin = begin;
  return event;
}

void Lane::TellOpen(TraceEvent event) const {
  event.open = true;
  parts_.trace->Add(event);
}

void Lane::TraceLook(absl::Time now) {
  if (traced_.recording != parts_.trace->number()) {
    traced_ = {};
    traced_.recording = parts_.trace->number();
    for (LaneGroup group = 0; group < hosts_.size(); ++group) {
      if (!hosts_[group].asked) continue;
      TellOpen(EventOf(TraceKind::kHostWait, group, hosts_[group].asked_at));
    }
  }
  // A wait that was released is over.
  if (!alive() && traced_.wanted.has_value()) TraceWaited(now);
  const std::optional<Wanted> wanted = alive() ? wanted_ : std::nullopt;
  if (wanted != traced_.wanted && wanted.has_value()) {
    TellOpen(EventOf(TraceKind::kLaneWait, schedule_.GroupAt(wanted->position),
                     wanted_since_));
  }
  traced_.wanted = wanted;
  const std::optional<Gap> gap = FindGap();
  if (gap == traced_.gap) return;
  EndGap(now);
  traced_.gap = gap;
  traced_.gap_since = now;
  if (!gap.has_value()) return;
  TraceEvent event = EventOf(TraceKind::kLaneGap, gap->group, now);
  event.why = gap->why;
  TellOpen(event);
}

// The client's wait has ended, or it waits for another group.
void Lane::TraceWaited(absl::Time now) {
  TraceEvent event =
      EventOf(TraceKind::kLaneWait, schedule_.GroupAt(wanted_->position),
              wanted_since_);
  event.end = now;
  event.failed = !alive();
  parts_.trace->Add(event);
  traced_.wanted = std::nullopt;
}

void Lane::TraceHostAsked(LaneGroup group) {
  hosts_[group].asked_at = parts_.trace->Now();
  TellOpen(EventOf(TraceKind::kHostWait, group, hosts_[group].asked_at));
}

void Lane::TraceHostCame(LaneGroup group) {
  if (!hosts_[group].asked) return;
  TraceEvent event =
      EventOf(TraceKind::kHostWait, group, hosts_[group].asked_at);
  event.end = parts_.trace->Now();
  parts_.trace->Add(event);
}

std::optional<Lane::Gap> Lane::FindGap() const {
  if (!alive() || !wanted_.has_value() || !under_way_.empty()) {
    return std::nullopt;
  }
  const LaneGroup group = schedule_.GroupAt(wanted_->position);
  return Gap{group, current_.has_value() ? TraceWhy::kTurn : why_idle()};
}

void Lane::EndGap(absl::Time now) {
  if (!traced_.gap.has_value()) return;
  TraceEvent event =
      EventOf(TraceKind::kLaneGap, traced_.gap->group, traced_.gap_since);
  event.why = traced_.gap->why;
  event.end = now;
  parts_.trace->Add(event);
}

// The causes are WaitCause's; but a slot whose group is not staged yet holds up
// nobody: until then the client has what it wants.
TraceWhy Lane::why_idle() const {
  if (!alive()) return TraceWhy::kNotDue;
  if (schedule_.blocked_on_host().has_value()) return TraceWhy::kNotOnHost;
  const std::optional<LaneGroup> holder = schedule_.holder();
  if (!holder.has_value() || !Staged(*holder)) return TraceWhy::kNotDue;
  return *holder == schedule_.GroupAt(schedule_.head()) ? TraceWhy::kNotDone
                                                        : TraceWhy::kPlaceInUse;
}

}  // namespace hoistd
