// What the daemon has names for.
#include <unistd.h>

#include <chrono>
#include <sstream>
#include <type_traits>

#include "client/ctl/calls.h"
#include "client/ctl/completion.h"
#include "client/ctl/connection.h"
#include "client/ctl/model_name.h"
#include "client/ctl/text.h"

namespace hoist::ctl {
namespace {

// Who hits Tab waits no longer.
constexpr std::chrono::milliseconds kTimeout(1000);

// A name for each of the `rows` of hoistd's answer; none without one in time.
template <typename Request, typename Response, typename Rows, typename NameOf>
std::vector<Candidate> Names(Connection& daemon, Verb<Request, Response> verb,
                             const std::type_identity_t<Request>& request,
                             const Rows& (Response::*rows)() const,
                             const NameOf& name_of) {
  std::vector<Candidate> found;
  Response response;
  if (!Call(daemon, Lasts::kTimeout, verb, request, &response).ok()) return {};
  for (const auto& row : (response.*rows)()) found.push_back(name_of(row));
  return found;
}

std::vector<Candidate> Models(Connection& daemon) {
  return Names(
      daemon, &v1::Admin::Stub::ListModels, {}, &v1::ListModelsResponse::models,
      [](const v1::ModelSummary& model) -> Candidate {
        return {NameFor(geteuid(), model), HumanBytes(model.image_bytes())};
      });
}

std::vector<Candidate> Groups(Connection& daemon, const std::string& model) {
  v1::ListGroupsRequest request;
  request.set_model(model);
  return Names(daemon, &v1::Admin::Stub::ListGroups, request,
               &v1::ListGroupsResponse::groups,
               [](const v1::GroupStatus& group) -> Candidate {
                 return {group.name(), HumanBytes(group.image_bytes())};
               });
}

std::vector<Candidate> Plans(Connection& daemon) {
  return Names(
      daemon, &v1::Admin::Stub::ListPlans, {}, &v1::ListPlansResponse::plans,
      [](const v1::PlanStatus& plan) -> Candidate {
        return {std::to_string(plan.id()),
                Shown(plan.model()) + " of " + Shown(plan.client_name())};
      });
}

std::vector<Candidate> Sessions(Connection& daemon) {
  return Names(
      daemon, &v1::Admin::Stub::ListSessions, {},
      &v1::ListSessionsResponse::sessions,
      [](const v1::SessionStatus& session) -> Candidate {
        return {std::to_string(session.id()), Shown(session.client_name())};
      });
}

std::vector<Candidate> Devices(Connection& daemon) {
  return Names(daemon, &v1::Admin::Stub::Status, {}, &v1::NodeStatus::devices,
               [](const v1::Device& device) -> Candidate {
                 return {std::to_string(device.index()), Shown(device.name())};
               });
}

}  // namespace

std::vector<Candidate> NamesOfDaemon(const std::string& argument,
                                     const std::vector<std::string>& before,
                                     const std::string& socket) {
  const bool of_device = argument == "--device" || argument == "--loads";
  const bool of_group = argument == "GROUP" && !before.empty();
  if (!of_device && !of_group && argument != "MODEL" && argument != "PLAN" &&
      argument != "SESSION") {
    return {};
  }
  Connection daemon(socket, kTimeout);
  std::ostringstream nobody_reads;
  if (daemon.Check({nobody_reads, nobody_reads}) != kExitOk) return {};
  if (of_device) return Devices(daemon);
  if (of_group) return Groups(daemon, before.front());
  if (argument == "MODEL") return Models(daemon);
  if (argument == "SESSION") return Sessions(daemon);
  return Plans(daemon);
}

}  // namespace hoist::ctl
