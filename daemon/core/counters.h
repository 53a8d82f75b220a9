// The counters of a node, and their table: the rows fill the message Counters
// (`hoistctl status --json`) and the metrics. A new counter is a member, a row,
// a field of hoist.v1.Counters, and the line that counts.
#ifndef HOIST_DAEMON_CORE_COUNTERS_H_
#define HOIST_DAEMON_CORE_COUNTERS_H_

#include <array>
#include <cstdint>

#include "absl/time/time.h"
#include "daemon/base/time_histogram.h"

namespace hoistd {

struct Counters {
  uint64_t file_read_bytes = 0;
  uint64_t spill_read_bytes = 0;
  uint64_t spill_written_bytes = 0;
  uint64_t pageable_read_bytes = 0;
  uint64_t pageable_written_bytes = 0;
  uint64_t host_to_device_bytes = 0;
  uint64_t device_to_host_bytes = 0;
  // Zero-copy reads that workers report: on devices, and over links.
  uint64_t touched_hot_bytes = 0;
  uint64_t touched_cold_bytes = 0;
  // Memory of arenas: newly made, and reused from an earlier one.
  uint64_t arena_made_bytes = 0;
  uint64_t arena_reused_bytes = 0;
  uint64_t stages = 0;
  uint64_t stages_resident = 0;
  uint64_t stages_refused = 0;
  uint64_t device_evictions = 0;  // To make room.
  uint64_t host_evictions = 0;
  uint64_t device_evictions_by_admins = 0;
  uint64_t device_evictions_for_headroom = 0;
  uint64_t host_evictions_by_admins = 0;
  uint64_t host_evictions_by_workers = 0;  // Parked on the disk.
  // Device memory of plans that gave way, by cause.
  uint64_t lent_bytes_to_needs = 0;
  uint64_t lent_bytes_by_admins = 0;
  uint64_t lent_bytes_when_idle = 0;
  uint64_t lent_bytes_to_grow = 0;
  uint64_t lent_bytes_for_headroom = 0;
  uint64_t models_forgotten = 0;  // To make room, not on request.
  // Events that held the engine's one thread longer than Engine::kSlowEvent.
  uint64_t slow_events = 0;

  // No rows: a histogram and a maximum. Time from a lease's request to its
  // grant, by the nearest tier with the bytes at the request: device, host,
  // pageable, disk.
  std::array<TimeHistogram, 4> stage_times;  // By Tier.
  absl::Duration longest_event;
};

struct CounterRow {
  uint64_t Counters::*value;
  const char* field;  // Of hoist.v1.Counters.
  // The metric's name; nullptr: another metric has it in more detail. Rows of
  // one metric are adjacent, and the first has its help text.
  const char* metric = nullptr;
  const char* help = nullptr;
  // Labels of the metric; "": none.
  const char* label = "";
  const char* label_value = "";
  const char* label2 = "";
  const char* label2_value = "";
};

// A test checks the rows against the fields.
inline constexpr CounterRow kCounterTable[] = {
    {&Counters::file_read_bytes, "file_read_bytes",
     "hoist_file_read_bytes_total", "Read from models' files."},
    {&Counters::spill_read_bytes, "spill_read_bytes",
     "hoist_spill_read_bytes_total", "Read from disk.spill_dir."},
    {&Counters::spill_written_bytes, "spill_written_bytes",
     "hoist_spill_written_bytes_total", "Written to disk.spill_dir."},
    {&Counters::pageable_read_bytes, "pageable_read_bytes",
     "hoist_pageable_read_bytes_total",
     "Copied from pageable host memory to the pool."},
    {&Counters::pageable_written_bytes, "pageable_written_bytes",
     "hoist_pageable_written_bytes_total",
     "Copied from the pool to pageable host memory."},
    {&Counters::host_to_device_bytes, "host_to_device_bytes"},
    {&Counters::device_to_host_bytes, "device_to_host_bytes"},
    {&Counters::touched_hot_bytes, "touched_hot_bytes",
     "hoist_in_place_read_bytes_total",
     "Bytes that passes read in place, as workers report them: hot, on the "
     "device, and cold, over its link.",
     "from", "device"},
    {&Counters::touched_cold_bytes, "touched_cold_bytes",
     "hoist_in_place_read_bytes_total", nullptr, "from", "host"},
    {&Counters::arena_made_bytes, "arena_made_bytes", "hoist_arena_bytes_total",
     "Memory in place that arenas were leased: made for them, or kept from "
     "an earlier one of the user.",
     "from", "made"},
    {&Counters::arena_reused_bytes, "arena_reused_bytes",
     "hoist_arena_bytes_total", nullptr, "from", "kept"},
    {&Counters::stages, "stages"},
    {&Counters::stages_resident, "stages_resident"},
    {&Counters::stages_refused, "stages_refused", "hoist_stage_refusals_total",
     "Leases that were refused."},
    {&Counters::device_evictions, "device_evictions", "hoist_evictions_total",
     "Copies that left a tier: to make room, at the request of an admin or of "
     "their worker, or for other programs of the device.",
     "tier", "device", "reason", "room"},
    {&Counters::device_evictions_by_admins, "device_evictions_by_admins",
     "hoist_evictions_total", nullptr, "tier", "device", "reason", "admin"},
    {&Counters::device_evictions_for_headroom, "device_evictions_for_headroom",
     "hoist_evictions_total", nullptr, "tier", "device", "reason", "headroom"},
    {&Counters::host_evictions, "host_evictions", "hoist_evictions_total",
     nullptr, "tier", "host", "reason", "room"},
    {&Counters::host_evictions_by_admins, "host_evictions_by_admins",
     "hoist_evictions_total", nullptr, "tier", "host", "reason", "admin"},
    {&Counters::host_evictions_by_workers, "host_evictions_by_workers",
     "hoist_evictions_total", nullptr, "tier", "host", "reason", "worker"},
    {&Counters::lent_bytes_to_needs, "lent_bytes_to_needs",
     "hoist_lent_bytes_total",
     "Device memory of plans that gave way: to another plan or a stage, to an "
     "admin, when idle, to be set anew with more, or to other programs of the "
     "device.",
     "cause", "need"},
    {&Counters::lent_bytes_by_admins, "lent_bytes_by_admins",
     "hoist_lent_bytes_total", nullptr, "cause", "admin"},
    {&Counters::lent_bytes_when_idle, "lent_bytes_when_idle",
     "hoist_lent_bytes_total", nullptr, "cause", "idle"},
    {&Counters::lent_bytes_to_grow, "lent_bytes_to_grow",
     "hoist_lent_bytes_total", nullptr, "cause", "growth"},
    {&Counters::lent_bytes_for_headroom, "lent_bytes_for_headroom",
     "hoist_lent_bytes_total", nullptr, "cause", "headroom"},
    {&Counters::models_forgotten, "models_forgotten",
     "hoist_models_forgotten_total",
     "Published models without a session that made room."},
    {&Counters::slow_events, "slow_events", "hoist_engine_slow_events_total",
     "Events that took the engine's thread more than 5 ms, others waiting."},
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_COUNTERS_H_
