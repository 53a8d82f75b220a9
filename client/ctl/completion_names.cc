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

template <typename Request, typename Response>
bool Answered(Connection& daemon, Verb<Request, Response> verb,
              const std::type_identity_t<Request>& request,
              Response* response) {
  return Call(daemon, Lasts::kTimeout, verb, request, response).ok();
}

std::vector<Candidate> Models(Connection& daemon) {
  std::vector<Candidate> found;
  v1::ListModelsResponse response;
  if (!Answered(daemon, &v1::Admin::Stub::ListModels, {}, &response)) return {};
  for (const v1::ModelSummary& model : response.models()) {
    found.push_back(
        {NameFor(geteuid(), model), HumanBytes(model.image_bytes())});
  }
  return found;
}

std::vector<Candidate> Groups(Connection& daemon, const std::string& model) {
  std::vector<Candidate> found;
  v1::ListGroupsRequest request;
  request.set_model(model);
  v1::ListGroupsResponse response;
  if (!Answered(daemon, &v1::Admin::Stub::ListGroups, request, &response))
    return {};
  for (const v1::GroupStatus& group : response.groups()) {
    found.push_back({group.name(), HumanBytes(group.image_bytes())});
  }
  return found;
}

std::vector<Candidate> Plans(Connection& daemon) {
  std::vector<Candidate> found;
  v1::ListPlansResponse response;
  if (!Answered(daemon, &v1::Admin::Stub::ListPlans, {}, &response)) return {};
  for (const v1::PlanStatus& plan : response.plans()) {
    found.push_back({std::to_string(plan.id()),
                     Shown(plan.model()) + " of " + Shown(plan.client_name())});
  }
  return found;
}

std::vector<Candidate> Sessions(Connection& daemon) {
  std::vector<Candidate> found;
  v1::ListSessionsResponse response;
  if (!Answered(daemon, &v1::Admin::Stub::ListSessions, {}, &response))
    return {};
  for (const v1::SessionStatus& session : response.sessions()) {
    found.push_back(
        {std::to_string(session.id()), Shown(session.client_name())});
  }
  return found;
}

std::vector<Candidate> Devices(Connection& daemon) {
  std::vector<Candidate> found;
  v1::NodeStatus response;
  if (!Answered(daemon, &v1::Admin::Stub::Status, {}, &response)) return {};
  for (const v1::Device& device : response.devices()) {
    found.push_back({std::to_string(device.index()), Shown(device.name())});
  }
  return found;
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
