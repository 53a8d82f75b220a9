#include <string>

#include "client/ctl/calls.h"
#include "client/ctl/commands.h"
#include "client/ctl/picture.h"
#include "client/ctl/text.h"

namespace hoist::ctl {
namespace {

void PrintMoved(const v1::Counters& counters, std::ostream& out) {
  out << "moved: " << HumanBytes(counters.file_read_bytes())
      << " read from files, " << HumanBytes(counters.host_to_device_bytes())
      << " host to device, " << HumanBytes(counters.device_to_host_bytes())
      << " device to host, " << HumanBytes(counters.spill_written_bytes())
      << " spilled, " << HumanBytes(counters.spill_read_bytes())
      << " read back";
  if (counters.pageable_written_bytes() > 0) {
    out << ", " << HumanBytes(counters.pageable_written_bytes())
        << " to pageable memory, " << HumanBytes(counters.pageable_read_bytes())
        << " from it";
  }
  out << '\n';
  out << "stages: " << counters.stages() << ", of them "
      << counters.stages_resident() << " without a copy, "
      << counters.stages_refused()
      << " refused; evictions: " << counters.device_evictions() << " device, "
      << counters.host_evictions() << " host\n";
  if (const uint64_t touched =
          counters.touched_hot_bytes() + counters.touched_cold_bytes();
      touched > 0) {
    out << "in place: " << HumanBytes(touched) << " touched, of them "
        << HumanBytes(counters.touched_cold_bytes()) << " read over a link\n";
  }
  if (counters.arena_made_bytes() + counters.arena_reused_bytes() > 0) {
    out << "arenas: " << HumanBytes(counters.arena_made_bytes())
        << " made for them, " << HumanBytes(counters.arena_reused_bytes())
        << " left by earlier ones\n";
  }
  if (counters.models_forgotten() > 0) {
    out << "models that made room, unused: " << counters.models_forgotten()
        << "\n";
  }
  if (counters.slow_events() > 0) {
    out << "others waited: " << counters.slow_events()
        << " steps took more than 5 ms, the longest "
        << counters.longest_event_us() / 1000 << " ms\n";
  }
}

// "  permit 3, session 7 (train): 1.0 GiB in 40 grants, ..."
void PrintPermit(const v1::PermitStatus& permit, std::ostream& out) {
  out << "  permit " << permit.id() << ", session " << permit.session_id()
      << " (" << Shown(permit.client_name())
      << "): " << HumanBytes(permit.copied_bytes()) << " to the device in "
      << permit.grants() << " grants";
  if (permit.late_grants() > 0) out << " (" << permit.late_grants() << " late)";
  out << ", " << HumanBytes(permit.read_bytes()) << " from it; "
      << ShareText(permit.share()) << "\n";
}

// "link of device 0: 1.0 GiB for plans, ..."
void PrintLinks(const v1::NodeStatus& status, std::ostream& out) {
  for (const v1::LinkStatus& link : status.links()) {
    out << "link of device " << link.device() << ": "
        << HumanBytes(link.plan_bytes()) << " for plans, "
        << HumanBytes(link.lease_bytes()) << " for who waited, "
        << HumanBytes(link.background_bytes()) << " in the background";
    if (link.load_max_bytes_per_second() > 0) {
      out << " (at most " << HumanBytes(link.load_max_bytes_per_second())
          << "/s)";
    }
    out << "; " << HumanBytes(link.bytes_per_second()) << "/s of late";
    if (link.read_bytes_per_second() > 0) {
      out << ", and " << HumanBytes(link.read_bytes_per_second())
          << "/s read in place";
    }
    out << "\n";
    if (link.own_bytes() + link.own_read_bytes() > 0 ||
        link.permits_size() > 0) {
      out << "  copied by workers: " << HumanBytes(link.own_bytes())
          << " to the device, " << HumanBytes(link.own_read_bytes())
          << " from it\n";
    }
    for (const v1::PermitStatus& permit : link.permits()) {
      PrintPermit(permit, out);
    }
  }
}

void PrintStatus(const v1::NodeStatus& status, const Output& output) {
  PrintHead(status, output.out);
  output.out << '\n';
  PrintTiers(status, output.out);
  output.out << "\ndisk I/O: " << Shown(status.io().engine())
             << (status.io().direct() ? ", O_DIRECT where it pays" : "")
             << (status.io().registered_buffers() ? ", registered buffers" : "")
             << '\n';
  for (const std::string& fallback : status.io().fallbacks()) {
    output.out << "  not to be had: " << Shown(fallback) << '\n';
  }
  PrintMoved(status.counters(), output.out);
  PrintLinks(status, output.out);
  for (const std::string& note : status.notes()) {
    output.out << "note: " << Shown(note) << '\n';
  }
  if (status.dropped_notes() > 0) {
    output.out << status.dropped_notes() << " older notes are gone\n";
  }
}

}  // namespace

int ShowStatus(Connection& daemon, const Output& output) {
  return Ask(
      daemon, Lasts::kTimeout, &v1::Admin::Stub::Status, {}, output,
      [&](const v1::NodeStatus& status) { PrintStatus(status, output); });
}

}  // namespace hoist::ctl
