#include "daemon/app/serve_metrics.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "daemon/base/status.h"
#include "daemon/core/node_measure.h"
#include "daemon/engine/node_view.h"
#include "daemon/metrics/node_metrics.h"
#include "daemon/metrics/process_stats.h"
#include "daemon/socket/peer_process.h"

namespace hoistd {
namespace {

MetricsFacts FactsOf(const Config& config, const MetricsStart& start,
                     const Engine& engine) {
  MetricsFacts facts;
  facts.node = engine.facts();
  facts.revision = HOIST_REVISION;
  const NodeFacts& node = facts.node;
  const bool ipc =
      !node.devices.empty() && node.devices[0].info.backing == Backing::kIpc;
  facts.degraded = {
      {"no_io_uring", config.disk.io != DiskConfig::Io::kThreads &&
                          !absl::StrContains(node.io.engine, "io_uring")},
      {"no_registered_buffers", absl::StrContains(node.io.engine, "io_uring") &&
                                    !node.io.registered_buffers},
      {"gpu_unusable", start.stands_in},
      {"no_vmm_export", ipc},
      {"no_stream_memory_operations",
       std::any_of(
           node.devices.begin(), node.devices.end(),
           [](const DeviceView& view) { return !view.info.stream_words; })},
      {"no_in_place",
       config.host.in_place_bytes != 0 && !node.no_in_place.empty()},
      {"nothing_outlives_hoistd", !start.keeps},
  };
  return facts;
}

// In steps that let other events run. Unavailable: the engine is stopping.
void Measure(EngineApi& engine, std::shared_ptr<MeasureWalk> walk,
             Done<NodeMeasure> done) {
  auto more = std::make_shared<bool>(false);
  engine.Ask(LookArgs{[walk, more](const NodeView& view) {
               *more = NodeMeasurer(view.node).Step(*walk);
               if (*more) return;
               walk->found.counters = view.counters;
               walk->found.engine = view.engine;
             }},
             [&engine, walk, more,
              done = std::move(done)](absl::Status looked) mutable {
               if (!looked.ok()) return done(std::move(looked));
               if (*more)
                 return Measure(engine, std::move(walk), std::move(done));
               done(std::move(walk->found));
             });
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(
    const Config& config, const MetricsStart& start, Engine& engine,
    const Clock& clock) {
  MetricsOptions options;
  if (!config.metrics.socket.empty()) {
    options.socket.emplace();
    options.socket->path = config.metrics.socket;
    options.socket->mode = config.server.socket_mode;
    if (!config.server.group.empty()) {
      const absl::StatusOr<gid_t> group = GroupByName(config.server.group);
      if (!group.ok()) return Annotate(group.status(), "server.group");
      options.socket->group = *group;
    }
    options.admin_group_name = config.server.admin_group;
    const auto admins = GroupByName(config.server.admin_group);
    if (admins.ok()) options.admin_group = *admins;
  }
  if (!config.metrics.listen.empty()) {
    const auto listen = ParseLoopback(config.metrics.listen);
    if (!listen.ok()) return Annotate(listen.status(), "metrics.listen");
    options.listen = *listen;
  }
  if (!options.socket.has_value() && !options.listen.has_value()) {
    return nullptr;
  }
  options.measure = [&engine,
                     models = config.metrics.models](Done<NodeMeasure> done) {
    Measure(engine, std::make_shared<MeasureWalk>(models), std::move(done));
  };
  options.render = [&engine, &host = *start.host,
                    fixed = FactsOf(config, start, engine)](
                       const NodeMeasure& node, MetricsFormat format) {
    const NodeNotes notes = engine.notes();
    MetricsFacts facts = fixed;
    facts.degraded.emplace_back("host_pool_unpinned",
                                host.unpinned_bytes() > 0);
    return RenderMetrics(facts, notes.notes.size() + notes.dropped, node,
                         ReadProcessStats(), format);
  };
  absl::StatusOr<std::unique_ptr<MetricsServer>> server =
      MetricsServer::Create(std::move(options), clock);
  if (!server.ok()) return Annotate(server.status(), "[metrics]");
  return server;
}

}  // namespace hoistd
