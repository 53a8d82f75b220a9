#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "client/ctl/calls.h"
#include "client/ctl/commands.h"
#include "client/ctl/loans.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"

namespace hoist::ctl {
namespace {

std::string Readers(v1::Readers readers) {
  return readers == v1::READERS_EVERYONE ? "everyone" : "owner";
}

// "11 of 35": the others are gone.
std::string GroupsText(const v1::ModelSummary& model) {
  const std::string there = std::to_string(model.groups());
  if (model.missing_groups() == 0) return there;
  return there + " of " +
         std::to_string(model.groups() + model.missing_groups());
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

constexpr char kMapLegend[] =
    "a letter a group, in order: # there, P pinned, L leased, + on its way, "
    ". not there";

char MarkOf(const v1::GroupStatus::Copy& copy) {
  if (copy.residency() != v1::RESIDENCY_PRESENT) return '+';
  if (copy.pinned()) return 'P';
  return copy.leases() > 0 ? 'L' : '#';
}

// Of each tier that has any: "host", "##P..+".
std::map<std::string, std::string> MapOf(const v1::ListGroupsResponse& groups) {
  std::map<std::string, std::string> map;
  const auto all = static_cast<size_t>(groups.groups_size());
  for (size_t i = 0; i < all; ++i) {
    for (const auto& copy : groups.groups(static_cast<int>(i)).copies()) {
      std::string& line = map[TierName(copy.tier(), copy.device())];
      line.resize(all, '.');
      line[i] = MarkOf(copy);
    }
  }
  size_t widest = 0;
  for (const auto& [tier, line] : map) widest = std::max(widest, tier.size());
  std::map<std::string, std::string> padded;
  for (auto& [tier, line] : map) {
    padded[tier + std::string(widest - tier.size(), ' ')] = std::move(line);
  }
  return padded;
}

// PACKED are the types of GGUF's tensors: other models have no such column.
Table TableOf(const v1::ListGroupsResponse& response) {
  const bool packed = std::ranges::any_of(
      response.groups(),
      [](const auto& group) { return group.block_types_size() > 0; });
  std::vector<std::string> columns = {"GROUP", ">TENSORS", ">SIZE", "COPIES"};
  if (packed) columns.insert(columns.begin() + 2, "PACKED");
  Table table(std::move(columns));
  for (const v1::GroupStatus& group : response.groups()) {
    std::vector<std::string> row = {
        Shown(group.name()), std::to_string(group.tensors()),
        HumanBytes(group.image_bytes()), CopiesOf(group)};
    if (packed) {
      row.insert(row.begin() + 2,
                 Shown(absl::StrJoin(group.block_types(), ", ")));
    }
    table.Add(std::move(row));
  }
  return table;
}

// PAGEABLE: only where models are in such memory.
Table TableOf(const v1::ListModelsResponse& response) {
  const bool pageable = std::ranges::any_of(
      response.models(),
      [](const auto& model) { return model.pageable_bytes() > 0; });
  std::vector<std::string> columns = {
      "MODEL", "FINGERPRINT", ">OWNER", "READERS", ">GROUPS", ">TENSORS",
      ">SIZE", ">DEVICE",     ">HOST",  ">DISK",   "SOURCE"};
  constexpr int kAfterHost = 9;
  if (pageable) {
    columns.insert(columns.begin() + kAfterHost, ">PAGEABLE");
  }
  Table table(std::move(columns));
  for (const v1::ModelSummary& model : response.models()) {
    std::vector<std::string> row = {
        Shown(model.name()),
        Hex(model.fingerprint()).substr(0, 12),
        UserName(model.owner_tenant(), model.owner_uid()),
        Readers(model.readers()),
        GroupsText(model),
        std::to_string(model.tensors()),
        HumanBytes(model.image_bytes()),
        HumanBytes(model.device_bytes()),
        HumanBytes(model.host_bytes()),
        HumanBytes(model.disk_bytes()),
        Shown(model.source())};
    if (pageable) {
      row.insert(row.begin() + kAfterHost, HumanBytes(model.pageable_bytes()));
    }
    table.Add(std::move(row));
  }
  return table;
}

}  // namespace

int ShowModels(Connection& daemon, const Output& output) {
  return Ask(daemon, Lasts::kTimeout, &v1::Admin::Stub::ListModels, {}, output,
             [&](const v1::ListModelsResponse& response) {
               TableOf(response).Print(output.out);
             });
}

int ShowGroups(Connection& daemon, const std::string& model,
               const Output& output) {
  v1::ListGroupsRequest request;
  request.set_model(model);
  return Ask(daemon, Lasts::kTimeout, &v1::Admin::Stub::ListGroups, request,
             output, [&](const v1::ListGroupsResponse& response) {
               for (const auto& [tier, map] : MapOf(response)) {
                 output.out << tier << "  " << map << '\n';
               }
               output.out << kMapLegend << "\n\n";
               TableOf(response).Print(output.out);
             });
}

int ShowSessions(Connection& daemon, const Output& output) {
  return Ask(
      daemon, Lasts::kTimeout, &v1::Admin::Stub::ListSessions, {}, output,
      [&](const v1::ListSessionsResponse& response) {
        Table table({">SESSION", "CLIENT", "VIA", ">PID", ">USER", ">AGE",
                     ">LEASES", ">LEASED", ">BUDGET", ">WAITING", ">PLANS",
                     ">ARENAS"});
        for (const v1::SessionStatus& session : response.sessions()) {
          table.Add({std::to_string(session.id()), Shown(session.client_name()),
                     Shown(session.via()), ProcessText(session.pid()),
                     UserName(session.tenant(), session.uid()),
                     HumanTime(session.age_ms()),
                     std::to_string(session.leases()),
                     HumanBytes(session.leased_bytes()),
                     session.device_budget_bytes() == 0
                         ? "-"
                         : HumanBytes(session.device_budget_bytes()),
                     std::to_string(session.waiting()),
                     std::to_string(session.plans()),
                     HumanBytes(session.arena_bytes())});
        }
        table.Print(output.out);
      });
}

int ShowPlans(Connection& daemon, const Output& output) {
  return Ask(
      daemon, Lasts::kTimeout, &v1::Admin::Stub::ListPlans, {}, output,
      [&](const v1::ListPlansResponse& response) {
        Table table({">PLAN", ">SESSION", "CLIENT", "MODEL", ">DEVICE",
                     ">RESIDENT", ">RING", ">A PASS", ">COPIED", ">NOW",
                     ">WEIGHT", ">PRIORITY", ">CAP", ">SKIPPED"});
        for (const v1::PlanStatus& plan : response.plans()) {
          const v1::Share& share = plan.share();
          table.Add(
              {std::to_string(plan.id()), std::to_string(plan.session_id()),
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
        PrintLoans(response.loans(), output.out);
      });
}

}  // namespace hoist::ctl
