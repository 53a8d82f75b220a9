#include <string>
#include <vector>

#include "client/ctl/commands.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"

namespace hoist::ctl {
namespace {

using Align = Table::Align;

std::string DeviceNameOf(const v1::NodeStatus& status, uint32_t index) {
  for (const v1::Device& device : status.devices()) {
    if (device.index() == index) return device.name();
  }
  return "";
}

std::string WhatOf(const v1::NodeStatus& status, const v1::TierStatus& tier) {
  std::string what;
  if (tier.tier() == v1::TIER_DEVICE) {
    what = Shown(DeviceNameOf(status, tier.device()));
  }
  const auto add = [&](uint64_t bytes, const char* text) {
    if (bytes == 0) return;
    if (!what.empty()) what += "; ";
    what += HumanBytes(bytes) + text;
  };
  add(tier.shared_bytes(), " shared by several groupings");
  add(tier.doubled_bytes(), " doubled for several groupings");
  add(tier.unsaved_bytes(), " published that no disk has");
  return what;
}

void PrintTiers(const v1::NodeStatus& status, std::ostream& out) {
  Table table({{"TIER"},
               {"CAPACITY", Align::kRight},
               {"USED", Align::kRight},
               {"LEASED", Align::kRight},
               {"PINNED", Align::kRight},
               {"LARGEST FREE", Align::kRight},
               {"WHAT"}});
  for (const v1::TierStatus& tier : status.tiers()) {
    table.Add({TierName(tier.tier(), tier.device()),
               HumanBytes(tier.capacity_bytes()), HumanBytes(tier.used_bytes()),
               HumanBytes(tier.leased_bytes()), HumanBytes(tier.pinned_bytes()),
               HumanBytes(tier.largest_free_bytes()), WhatOf(status, tier)});
  }
  table.Print(out);
}

void PrintMoved(const v1::Counters& counters, std::ostream& out) {
  out << "moved: " << HumanBytes(counters.file_read_bytes())
      << " read from files, " << HumanBytes(counters.host_to_device_bytes())
      << " host to device, " << HumanBytes(counters.device_to_host_bytes())
      << " device to host, " << HumanBytes(counters.spill_written_bytes())
      << " spilled, " << HumanBytes(counters.spill_read_bytes())
      << " read back\n";
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
  }
}

std::string Readers(v1::Readers readers) {
  return readers == v1::READERS_EVERYONE ? "everyone" : "owner";
}

// "device 0 (2 leases, pinned), host".
std::string CopiesOf(const v1::GroupStatus& group) {
  std::string all;
  for (const auto& copy : group.copies()) {
    std::vector<std::string> remarks;
    if (copy.residency() != v1::RESIDENCY_PRESENT) {
      remarks.push_back(ResidencyName(copy.residency()));
    }
    if (copy.leases() > 0) {
      remarks.push_back(std::to_string(copy.leases()) +
                        (copy.leases() == 1 ? " lease" : " leases"));
    }
    if (copy.pinned()) remarks.push_back("pinned");
    if (!all.empty()) all += ", ";
    all += TierName(copy.tier(), copy.device());
    for (size_t i = 0; i < remarks.size(); ++i) {
      all += (i == 0 ? " (" : ", ") + remarks[i];
    }
    if (!remarks.empty()) all += ")";
  }
  return all.empty() ? "-" : all;
}

}  // namespace

int ShowStatus(Connection& daemon, const Output& output) {
  const auto context = daemon.context(Lasts::kTimeout);
  v1::NodeStatus status;
  const grpc::Status got = daemon.admin().Status(context.get(), {}, &status);
  if (!got.ok()) return daemon.Fail(got, output);
  if (output.json) {
    PrintJson(status, JsonStyle::kPretty, output);
    return kExitOk;
  }
  output.out << "hoistd " << Shown(status.version()) << ", pid " << status.pid()
             << ", up " << HumanTime(status.uptime_ms())
             << (status.draining() ? ", draining" : "") << '\n'
             << status.models() << " models, " << status.sessions()
             << " sessions, " << status.leases() << " leases\n\n";
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
  return kExitOk;
}

int ShowModels(Connection& daemon, const Output& output) {
  const auto context = daemon.context(Lasts::kTimeout);
  v1::ListModelsResponse response;
  const grpc::Status got =
      daemon.admin().ListModels(context.get(), {}, &response);
  if (!got.ok()) return daemon.Fail(got, output);
  if (output.json) {
    PrintJson(response, JsonStyle::kPretty, output);
    return kExitOk;
  }
  Table table({{"MODEL"},
               {"FINGERPRINT"},
               {"OWNER", Align::kRight},
               {"READERS"},
               {"GROUPS", Align::kRight},
               {"TENSORS", Align::kRight},
               {"SIZE", Align::kRight},
               {"DEVICE", Align::kRight},
               {"HOST", Align::kRight},
               {"DISK", Align::kRight},
               {"SOURCE"}});
  for (const v1::ModelSummary& model : response.models()) {
    table.Add({Shown(model.name()), Hex(model.fingerprint()).substr(0, 12),
               UserName(model.owner_tenant(), model.owner_uid()),
               Readers(model.readers()), std::to_string(model.groups()),
               std::to_string(model.tensors()), HumanBytes(model.image_bytes()),
               HumanBytes(model.device_bytes()), HumanBytes(model.host_bytes()),
               HumanBytes(model.disk_bytes()), Shown(model.source())});
  }
  table.Print(output.out);
  return kExitOk;
}

int ShowGroups(Connection& daemon, const std::string& model,
               const Output& output) {
  const auto context = daemon.context(Lasts::kTimeout);
  v1::ListGroupsRequest request;
  request.set_model(model);
  v1::ListGroupsResponse response;
  const grpc::Status got =
      daemon.admin().ListGroups(context.get(), request, &response);
  if (!got.ok()) return daemon.Fail(got, output);
  if (output.json) {
    PrintJson(response, JsonStyle::kPretty, output);
    return kExitOk;
  }
  Table table({{"GROUP"},
               {"TENSORS", Align::kRight},
               {"SIZE", Align::kRight},
               {"COPIES"}});
  for (const v1::GroupStatus& group : response.groups()) {
    table.Add({Shown(group.name()), std::to_string(group.tensors()),
               HumanBytes(group.image_bytes()), CopiesOf(group)});
  }
  table.Print(output.out);
  return kExitOk;
}

int ShowSessions(Connection& daemon, const Output& output) {
  const auto context = daemon.context(Lasts::kTimeout);
  v1::ListSessionsResponse response;
  const grpc::Status got =
      daemon.admin().ListSessions(context.get(), {}, &response);
  if (!got.ok()) return daemon.Fail(got, output);
  if (output.json) {
    PrintJson(response, JsonStyle::kPretty, output);
    return kExitOk;
  }
  Table table({{"SESSION", Align::kRight},
               {"CLIENT"},
               {"VIA"},
               {"PID", Align::kRight},
               {"USER", Align::kRight},
               {"AGE", Align::kRight},
               {"LEASES", Align::kRight},
               {"LEASED", Align::kRight},
               {"BUDGET", Align::kRight},
               {"WAITING", Align::kRight},
               {"PLANS", Align::kRight}});
  for (const v1::SessionStatus& session : response.sessions()) {
    table.Add(
        {std::to_string(session.id()), Shown(session.client_name()),
         Shown(session.via()), ProcessText(session.pid()),
         UserName(session.tenant(), session.uid()), HumanTime(session.age_ms()),
         std::to_string(session.leases()), HumanBytes(session.leased_bytes()),
         session.device_budget_bytes() == 0
             ? "-"
             : HumanBytes(session.device_budget_bytes()),
         std::to_string(session.waiting()), std::to_string(session.plans())});
  }
  table.Print(output.out);
  return kExitOk;
}

int ShowPlans(Connection& daemon, const Output& output) {
  const auto context = daemon.context(Lasts::kTimeout);
  v1::ListPlansResponse response;
  const grpc::Status got =
      daemon.admin().ListPlans(context.get(), {}, &response);
  if (!got.ok()) return daemon.Fail(got, output);
  if (output.json) {
    PrintJson(response, JsonStyle::kPretty, output);
    return kExitOk;
  }
  Table table({{"PLAN", Align::kRight},
               {"SESSION", Align::kRight},
               {"CLIENT"},
               {"MODEL"},
               {"DEVICE", Align::kRight},
               {"RESIDENT", Align::kRight},
               {"RING", Align::kRight},
               {"A PASS", Align::kRight},
               {"COPIED", Align::kRight},
               {"NOW", Align::kRight},
               {"WEIGHT", Align::kRight},
               {"PRIORITY", Align::kRight},
               {"CAP", Align::kRight},
               {"SKIPPED", Align::kRight}});
  for (const v1::PlanStatus& plan : response.plans()) {
    const v1::Share& share = plan.share();
    table.Add({std::to_string(plan.id()), std::to_string(plan.session_id()),
               Shown(plan.client_name()), Shown(plan.model()),
               std::to_string(plan.device()), HumanBytes(plan.resident_bytes()),
               HumanBytes(plan.ring_bytes()), HumanBytes(plan.streamed_bytes()),
               HumanBytes(plan.copied_bytes()),
               HumanBytes(plan.bytes_per_second()) + "/s",
               std::to_string(share.weight()), std::to_string(share.priority()),
               share.max_bytes_per_second() == 0
                   ? "-"
                   : HumanBytes(share.max_bytes_per_second()) + "/s",
               std::to_string(plan.skipped())});
  }
  table.Print(output.out);
  return kExitOk;
}

}  // namespace hoist::ctl
