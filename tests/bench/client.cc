#include "tests/bench/client.h"

#include <numeric>

#include "tests/bench/basics.h"

namespace hoist::bench {
namespace {

constexpr uint64_t kStageMs = 120'000;

template <typename T>
T Sized() {
  T value = {};
  value.struct_size = sizeof(T);
  return value;
}

}  // namespace

void RequireOk(int code, hoist_error* error, const std::string& what) {
  if (code == HOIST_OK) return;
  const std::string text = error ? hoist_error_message(error) : "";
  hoist_error_free(error);
  Fail(what + ": " + hoist_code_name(code) + ": " + text);
}

Session Connect(const std::string& socket, const std::string& name) {
  auto options = Sized<hoist_connect_options>();
  options.socket_path = socket.c_str();
  options.client_name = name.c_str();
  options.connect_deadline_ms = 10'000;
  hoist_session* session = nullptr;
  hoist_error* error = nullptr;
  RequireOk(hoist_connect(&options, &session, &error), error, "connect");
  return Session(session);
}

hoist_device_info DeviceInfo(const Session& session, size_t device) {
  auto info = Sized<hoist_device_info>();
  hoist_error* error = nullptr;
  RequireOk(hoist_session_device(session.get(), device, &info, &error), error,
            "device " + std::to_string(device));
  return info;
}

Model Describe(const Session& session, const std::string& name) {
  hoist_model* model = nullptr;
  hoist_error* error = nullptr;
  RequireOk(hoist_describe_model(session.get(), name.c_str(), &model, &error),
            error, "describe " + name);
  return Model(model);
}

Plan MakePlan(const Session& session, const Model& model,
              const PlanWish& wish) {
  std::vector<uint32_t> order(hoist_model_group_count(model.get()));
  std::iota(order.begin(), order.end(), 0u);
  auto options = Sized<hoist_plan_options>();
  options.device = wish.device;
  options.budget_bytes = wish.budget_bytes;
  options.order = order.data();
  options.order_length = order.size();
  options.deadline_ms = wish.deadline_ms;
  options.weight = wish.weight;
  options.priority = wish.priority;
  options.max_bytes_per_second = wish.max_bytes_per_second;
  hoist_plan* plan = nullptr;
  hoist_error* error = nullptr;
  RequireOk(hoist_set_plan(session.get(), model.get(), &options, &plan, &error),
            error, "set a plan");
  return Plan(plan);
}

hoist_plan_info InfoOf(const Plan& plan) {
  auto info = Sized<hoist_plan_info>();
  hoist_error* error = nullptr;
  RequireOk(hoist_plan_describe(plan.get(), &info, &error), error, "describe");
  return info;
}

hoist_plan_stats StatsOf(const Plan& plan) {
  auto stats = Sized<hoist_plan_stats>();
  hoist_error* error = nullptr;
  RequireOk(hoist_plan_get_stats(plan.get(), &stats, &error), error, "stats");
  return stats;
}

bool IsStreamed(const Plan& plan, uint32_t group) {
  int kind = HOIST_PLANNED_NOT;
  hoist_error* error = nullptr;
  RequireOk(hoist_plan_group_kind(plan.get(), group, &kind, &error), error,
            "group kind");
  return kind == HOIST_PLANNED_STREAMED;
}

const void* Stage(const Plan& plan, uint32_t group, void* stream) {
  const void* data = nullptr;
  hoist_error* error = nullptr;
  const int code = hoist_plan_stage(
      plan.get(), group, static_cast<hoist_stream>(stream), &data, &error);
  if (code != HOIST_OK) {
    RequireOk(code, error, "stage group " + std::to_string(group));
  }
  return data;
}

void Done(const Plan& plan, uint32_t group, void* stream) {
  hoist_error* error = nullptr;
  const int code = hoist_plan_done(plan.get(), group,
                                   static_cast<hoist_stream>(stream), &error);
  if (code != HOIST_OK) {
    RequireOk(code, error, "done with group " + std::to_string(group));
  }
}

void Check(const Plan& plan) {
  hoist_error* error = nullptr;
  RequireOk(hoist_plan_check(plan.get(), &error), error, "the plan");
}

CopyPermit OpenPermit(const Session& session, uint32_t device, uint32_t weight,
                      int32_t priority) {
  hoist_copy_permit_options options = {};
  options.struct_size = sizeof(options);
  options.device = device;
  options.weight = weight;
  options.priority = priority;
  hoist_copy_permit* permit = nullptr;
  hoist_error* error = nullptr;
  RequireOk(hoist_copy_permit_open(session.get(), &options, &permit, &error),
            error, "hoist_copy_permit_open");
  return CopyPermit(permit);
}

std::vector<uint64_t> GroupBytes(const Model& model) {
  std::vector<uint64_t> bytes(hoist_model_group_count(model.get()));
  for (uint32_t g = 0; g < bytes.size(); ++g) {
    auto info = Sized<hoist_group_info>();
    hoist_error* error = nullptr;
    RequireOk(hoist_model_group(model.get(), g, &info, &error), error, "group");
    bytes[g] = info.image_bytes;
  }
  return bytes;
}

std::vector<Lease> StageAll(const Session& session, const Model& model) {
  std::vector<uint32_t> groups(hoist_model_group_count(model.get()));
  std::iota(groups.begin(), groups.end(), 0u);
  hoist_error* error = nullptr;
  RequireOk(hoist_prefetch(session.get(), model.get(), groups.data(),
                           groups.size(), HOIST_TIER_DEVICE, 0, &error),
            error, "prefetch");
  std::vector<Lease> leases;
  for (uint32_t group : groups) {
    hoist_lease* lease = nullptr;
    RequireOk(hoist_stage(session.get(), model.get(), group, 0, kStageMs,
                          &lease, &error),
              error, "stage group " + std::to_string(group));
    leases.emplace_back(lease);
  }
  return leases;
}

}  // namespace hoist::bench
