// Metrics of the books, and of the engine itself.
#include <utility>

#include "daemon/engine/engine.h"

namespace hoistd {

// Counts refusals of all verbs.
void Engine::Refused(const absl::Status& status) {
  if (!status.ok()) ++refused_[static_cast<size_t>(status.code())];
}

void Engine::Measure(size_t models, Done<NodeMeasure> done) {
  MeasureNext(std::make_shared<MeasureWalk>(models), std::move(done));
}

void Engine::MeasureNext(std::shared_ptr<MeasureWalk> walk,
                         Done<NodeMeasure> done) {
  Post(
      [this, walk = std::move(walk), done = std::move(done)](Effects&) mutable {
        if (Stopping())
          return done(absl::UnavailableError("hoistd is stopping"));
        if (NodeMeasurer(node_).Step(*walk)) {
          return MeasureNext(std::move(walk), std::move(done));
        }
        NodeMeasure& found = walk->found;
        found.events = handled_;
        found.counters = CountersNow();
        found.slow_events = slow_event_times_;
        found.refused = refused_;
        found.links = LinksNow();
        for (const std::unique_ptr<Streamer>& streamer : streamers_) {
          const LaneBoard::Totals totals = streamer->Totals();
          found.waits.push_back({absl::ToDoubleSeconds(totals.waited),
                                 totals.waits, totals.host_waits, totals.loads,
                                 totals.wasted_loads});
        }
        done(std::move(found));
      });
}

}  // namespace hoistd
