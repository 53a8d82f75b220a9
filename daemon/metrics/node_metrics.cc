#include "daemon/metrics/node_metrics.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace hoistd {
namespace {

// The labels of a tier on a device; in-place memory is a tier of its own.
struct Where {
  std::string tier;
  std::string device;
};

class Renderer {
 public:
  Renderer(const MetricsFacts& facts, const NodeMeasure& node,
           MetricsFormat format)
      : facts_(facts), node_(node), out_(format) {}

  std::string Render(uint64_t notes, const ProcessStats& process) {
    About(notes);
    Tiers();
    Models();
    Workers();
    Stages();
    Streams();
    Bytes();
    Counted();
    Engine();
    Process(process);
    return out_.Take();
  }

 private:
  void About(uint64_t notes);
  void Tiers();
  void Models();
  void Workers();
  void Stages();
  void Streams();
  void Bytes();
  void Counted();
  void Engine();
  void Process(const ProcessStats& process);

  const DeviceInfo& InfoOf(size_t device) const {
    return facts_.node.devices[device].info;
  }
  Where WhereIs(TierAt at) const;
  // One sample per tier, with the result of `value`.
  template <typename Value>
  void EachTier(Value value) {
    for (const TierMeasure& tier : node_.tiers) {
      const Where where = WhereIs(tier.at);
      out_.Sample(value(tier),
                  {{"tier", where.tier}, {"device", where.device}});
    }
  }

  const MetricsFacts& facts_;
  const NodeMeasure& node_;
  Exposition out_;
};

Where Renderer::WhereIs(TierAt at) const {
  if (at.tier == Tier::kHost) return {"host", ""};
  if (at.tier == Tier::kPageable) return {"pageable", ""};
  if (at.tier == Tier::kDisk) return {"disk", ""};
  const std::string device = DeviceLabel(InfoOf(at.device.number()));
  return {device.empty() ? "in_place" : "device", device};
}

void Renderer::About(uint64_t notes) {
  out_.Gauge("hoist_build_info", "Which hoistd this is; always 1.");
  out_.Sample(
      1, {{"version", facts_.node.version}, {"revision", facts_.revision}});
  out_.Gauge("hoist_draining", "1 while no new work is taken.");
  out_.Sample(node_.draining ? 1 : 0);
  out_.Gauge("hoist_degraded",
             "1 for what this machine could not give; hoistctl status says "
             "why, and what it costs.");
  for (const auto& [what, is] : facts_.degraded) {
    out_.Sample(is ? 1 : 0, {{"what", what}});
  }
  out_.Counter("hoist_notes_total",
               "What hoistctl status tells operators, those that newer ones "
               "have pushed out included.");
  out_.Sample(notes);
}

void Renderer::Tiers() {
  out_.Gauge("hoist_tier_capacity_bytes",
             "What hoist may use of a tier. The host's grows while its pool is "
             "pinned.");
  EachTier([](const TierMeasure& tier) { return tier.capacity_bytes; });
  out_.Gauge("hoist_disk_full",
             "1 while the disk has no room for what is published and on none "
             "(hoist_tier_bytes, held_by unsaved).");
  out_.Sample(node_.disk_full ? 1 : 0);
  out_.Gauge("hoist_tier_used_bytes",
             "Of that, what images, rings and arenas take.");
  EachTier([](const TierMeasure& tier) { return tier.used_bytes; });
  out_.Gauge("hoist_tier_bytes",
             "A tier's capacity by what holds it, each byte once. What several "
             "groups share is the first one's.");
  for (const TierMeasure& tier : node_.tiers) {
    const Where where = WhereIs(tier.at);
    for (size_t i = 0; i < kHoldings; ++i) {
      // Below the host nothing is in use.
      const bool possible = tier.at.tier < Tier::kPageable ||
                            static_cast<Holding>(i) == Holding::kCache;
      if (!possible) continue;
      out_.Sample(tier.held[i],
                  {{"tier", where.tier},
                   {"device", where.device},
                   {"held_by", ToString(static_cast<Holding>(i))}});
    }
    const uint64_t used = std::min(tier.used_bytes, tier.capacity_bytes);
    out_.Sample(
        tier.capacity_bytes - used,
        {{"tier", where.tier}, {"device", where.device}, {"held_by", "free"}});
  }
  out_.Gauge("hoist_tier_allocated_bytes",
             "On devices, what is in slabs; on the host, what of the pool is "
             "ready.");
  EachTier([](const TierMeasure& tier) { return tier.allocated_bytes; });
  out_.Gauge("hoist_tier_largest_free_bytes", "The largest free piece.");
  EachTier([](const TierMeasure& tier) { return tier.largest_free_bytes; });
}

void Renderer::Models() {
  out_.Gauge("hoist_models", "Models that are known.");
  out_.Sample(node_.model_count);
  out_.Gauge("hoist_model_bytes",
             "What a model's groups take of a tier, all devices together. "
             "Those that use most are named (metrics.models); the others are "
             "model=\"other\", without a user.");
  const auto add = [&](const ModelMeasure& model, const std::string& name,
                       const std::string& user) {
    const std::pair<absl::string_view, uint64_t> tiers[] = {
        {"device", model.device_bytes},
        {"in_place", model.in_place_bytes},
        {"host", model.host_bytes},
        {"disk", model.disk_bytes}};
    for (const auto& [tier, bytes] : tiers) {
      out_.Sample(bytes, {{"model", name}, {"user", user}, {"tier", tier}});
    }
  };
  for (const ModelMeasure& model : node_.models) {
    add(model, model.name, ShortName(model.owner));
  }
  add(node_.other_models, "other", "");
}

void Renderer::Workers() {
  out_.Gauge("hoist_sessions", "Workers' sessions.");
  out_.Sample(node_.sessions);
  out_.Gauge("hoist_leases", "Leases that sessions hold.");
  out_.Sample(node_.leases);
  out_.Gauge("hoist_plans", "Plans that stand, or wait for their ring.");
  out_.Sample(node_.plans, {{"state", "standing"}});
  out_.Sample(node_.waiting_plans, {{"state", "waiting"}});
  out_.Counter("hoist_refusals_total",
               "Sessions, models, plans, stages and other requests that were "
               "refused, by code.");
  for (int code = 1; code < static_cast<int>(node_.engine.refused.size());
       ++code) {
    out_.Sample(node_.engine.refused[static_cast<size_t>(code)],
                {{"code", absl::AsciiStrToLower(absl::StatusCodeToString(
                              static_cast<absl::StatusCode>(code)))}});
  }
}

void Renderer::Stages() {
  const char* const kFrom[] = {"device", "host", "pageable",
                               "disk"};  // By Tier.
  out_.Counter("hoist_stages_total",
               "Leases that were given, by where the bytes were when one was "
               "asked for: on the device (a hit), on the host or in pageable "
               "memory (copied), or on no tier (read).");
  for (size_t i = 0; i < node_.counters.stage_times.size(); ++i) {
    out_.Sample(node_.counters.stage_times[i].total, {{"from", kFrom[i]}});
  }
  out_.Histogram("hoist_stage_seconds",
                 "From when a lease was asked for until it was given, by from "
                 "as in hoist_stages_total.");
  for (size_t i = 0; i < node_.counters.stage_times.size(); ++i) {
    out_.Times(node_.counters.stage_times[i], {{"from", kFrom[i]}});
  }
}

void Renderer::Streams() {
  const auto each = [&](auto add) {
    for (size_t d = 0; d < node_.engine.waits.size(); ++d) {
      const std::string device = DeviceLabel(InfoOf(d));
      if (!device.empty()) add(node_.engine.waits[d], device);
    }
  };
  using Waits = EngineStats::Waits;
  out_.Counter("hoist_stream_wait_seconds_total",
               "For how long plans' workers had asked for a streamed group "
               "that was not ready, all plans added up.");
  each([&](const Waits& of, const std::string& device) {
    out_.Seconds(of.seconds, {{"device", device}});
  });
  out_.Counter("hoist_stream_waits_total", "How often they had.");
  each([&](const Waits& of, const std::string& device) {
    out_.Sample(of.count, {{"device", device}});
  });
  out_.Counter("hoist_stream_loads_total", "Groups copied into plans' rings.");
  each([&](const Waits& of, const std::string& device) {
    out_.Sample(of.loads, {{"device", device}});
  });
  out_.Counter("hoist_stream_wasted_loads_total",
               "Of those, for positions that were skipped.");
  each([&](const Waits& of, const std::string& device) {
    out_.Sample(of.wasted_loads, {{"device", device}});
  });
  out_.Counter("hoist_stream_host_waits_total",
               "Of those, that waited for the host tier.");
  each([&](const Waits& of, const std::string& device) {
    out_.Sample(of.host_waits, {{"device", device}});
  });
}

void Renderer::Bytes() {
  out_.Counter("hoist_link_bytes_total",
               "Copied from the host to a device, by what for.");
  for (const LinkStats& link : node_.engine.links) {
    const std::string device = DeviceLabel(InfoOf(link.device.number()));
    if (device.empty()) continue;
    out_.Sample(link.plan_bytes, {{"device", device}, {"class", "plans"}});
    out_.Sample(link.lease_bytes, {{"device", device}, {"class", "leases"}});
    out_.Sample(link.background_bytes,
                {{"device", device}, {"class", "background"}});
    out_.Sample(link.own_bytes, {{"device", device}, {"class", "workers"}});
  }
  out_.Counter(
      "hoist_link_worker_read_bytes_total",
      "Copied from a device to the host by workers themselves, as they "
      "tell.");
  for (const LinkStats& link : node_.engine.links) {
    const std::string device = DeviceLabel(InfoOf(link.device.number()));
    if (device.empty()) continue;
    out_.Sample(link.own_read_bytes, {{"device", device}});
  }
}

void Renderer::Counted() {
  const CounterRow* before = nullptr;
  for (const CounterRow& row : kCounterTable) {
    if (row.metric == nullptr) continue;
    if (before == nullptr || absl::string_view(before->metric) != row.metric) {
      out_.Counter(row.metric, row.help);
    }
    before = &row;
    out_.Sample(node_.counters.*row.value,
                {{row.label, row.label_value}, {row.label2, row.label2_value}});
  }
}

void Renderer::Engine() {
  out_.Counter("hoist_engine_events_total",
               "What the one thread that owns the books did.");
  out_.Sample(node_.engine.events);
  out_.Histogram("hoist_engine_slow_event_seconds",
                 "The duration of events of hoist_engine_slow_events_total.");
  out_.Times(node_.engine.slow_events);
}

void Renderer::Process(const ProcessStats& process) {
  out_.Counter("process_cpu_seconds_total", "CPU time of hoistd.");
  out_.Seconds(process.cpu_seconds);
  out_.Gauge("process_start_time_seconds", "When hoistd started, Unix time.");
  out_.Seconds(process.start_seconds);
  out_.Gauge("process_resident_memory_bytes", "Memory that hoistd has in RAM.");
  out_.Sample(process.resident_bytes);
  out_.Gauge("process_virtual_memory_bytes", "Its address space.");
  out_.Sample(process.virtual_bytes);
  out_.Gauge("process_threads", "Its threads.");
  out_.Sample(process.threads);
  out_.Gauge("process_open_fds", "Descriptors that it has open.");
  out_.Sample(process.open_fds);
  out_.Gauge("process_max_fds", "How many it may have (LimitNOFILE).");
  out_.Sample(process.max_fds);
}

}  // namespace

std::string DeviceLabel(const DeviceInfo& info) {
  if (info.kind == DeviceKind::kInPlace) return "";
  if (info.kind == DeviceKind::kEmulated) {
    return absl::StrCat("emulated-", info.index.number());
  }
  const std::string hex = absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(info.uuid.data()), info.uuid.size()));
  const absl::string_view all = hex;
  return absl::StrCat("GPU-", all.substr(0, 8), "-", all.substr(8, 4), "-",
                      all.substr(12, 4), "-", all.substr(16, 4), "-",
                      all.substr(20));
}

std::string RenderMetrics(const MetricsFacts& facts, uint64_t notes,
                          const NodeMeasure& node, const ProcessStats& process,
                          MetricsFormat format) {
  return Renderer(facts, node, format).Render(notes, process);
}

}  // namespace hoistd
