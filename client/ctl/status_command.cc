#include <string>

#include "client/ctl/calls.h"
#include "client/ctl/commands.h"
#include "client/ctl/picture.h"
#include "client/ctl/text.h"

namespace hoist::ctl {
namespace {

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
  PrintCounters(status.counters(), "", output.out);
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
