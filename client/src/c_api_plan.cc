// The C API's plans.
#include <span>
#include <utility>

#include "client/src/c_handles.h"
#include "client/src/fork_guard.h"
#include "client/src/plan.h"

struct hoist_plan {
  std::unique_ptr<hoist::Plan> plan;
};

namespace hoist {
namespace {

Status CheckOptions(const Session& session, const hoist_plan_options& given) {
  if (session.FindDevice(given.device) == nullptr) {
    return Status(Code::kNotFound,
                  "hoistd has no device " + std::to_string(given.device) +
                      "; it has " + std::to_string(session.devices().size()));
  }
  if (given.order == nullptr && given.order_length > 0) return Missing("order");
  return CheckShare(given.weight, given.priority);
}

uint64_t AtMostADay(uint64_t milliseconds) {
  return static_cast<uint64_t>(Milliseconds(milliseconds).count());
}

PlanOptions OptionsOf(const hoist_plan_options& given) {
  PlanOptions options;
  SetPlanRequest& request = options.request;
  request.device = given.device;
  request.budget_bytes = given.budget_bytes;
  request.order.assign(given.order, given.order + given.order_length);
  request.deadline_ms = AtMostADay(given.deadline_ms);
  request.stage_deadline_ms = AtMostADay(given.stage_deadline_ms);
  request.weight = given.weight;
  request.priority = given.priority;
  request.max_bytes_per_second = given.max_bytes_per_second;
  options.learn = given.learn != 0;
  return options;
}

// The driver is loaded by names of our own.
cuda::Stream StreamOf(hoist_stream stream) {
  return reinterpret_cast<cuda::Stream>(stream);
}

Status DescribePlanned(Plan& plan, uint32_t group, uint32_t tensor,
                       hoist_tensor_info* info) {
  const Result<const void*> image = plan.AddressOf(group);
  if (!image.ok()) return image.status();
  const GroupEntry& entry = plan.model().groups()[group];
  if (tensor >= entry.tensors.size()) {
    return Status(Code::kOutOfRange, "group \"" + entry.name + "\" has " +
                                         std::to_string(entry.tensors.size()) +
                                         " tensors");
  }
  const TensorEntry& found = entry.tensors[tensor];
  const auto* start = static_cast<const std::byte*>(image.value());
  const bool none = start == nullptr || found.size_bytes == 0;
  return DescribeTensor(found, none ? nullptr : start + found.offset_bytes,
                        info);
}

}  // namespace
}  // namespace hoist

using hoist::Code;
using hoist::Guarded;
using hoist::Missing;
using hoist::Plan;
using hoist::Status;

int hoist_set_plan(hoist_session* session, const hoist_model* model,
                   const hoist_plan_options* options, hoist_plan** plan,
                   hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    hoist_plan_options given = {};
    if (options != nullptr && !hoist::ReadSized(options, &given)) {
      return Status(Code::kInvalidArgument,
                    "set struct_size to sizeof(hoist_plan_options)");
    }
    if (Status s = hoist::CheckBoth(session, model); !s.ok()) return s;
    hoist::Session& on = *session->session;
    if (Status s = hoist::CheckOptions(on, given); !s.ok()) return s;
    auto handle = std::make_unique<hoist_plan>();
    auto made = Plan::Create(session->session, on.Hold(model->table),
                             hoist::OptionsOf(given));
    if (!made.ok()) return made.status();
    handle->plan = std::move(made).value();
    *plan = handle.release();
    return Status();
  });
}

int hoist_plan_stage(hoist_plan* plan, uint32_t group, hoist_stream stream,
                     const void** data, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    return plan->plan->Stage(group, hoist::StreamOf(stream), data);
  });
}

int hoist_plan_stage_in_turn(hoist_plan* plan, uint32_t group,
                             hoist_stream stream, uint64_t turn_deadline_ms,
                             const void** data, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    return plan->plan->Stage(group, hoist::StreamOf(stream), data,
                             hoist::Milliseconds(turn_deadline_ms));
  });
}

int hoist_plan_done(hoist_plan* plan, uint32_t group, hoist_stream stream,
                    hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    return plan->plan->Done(group, hoist::StreamOf(stream));
  });
}

int hoist_plan_check(const hoist_plan* plan, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    return plan->plan->Check();
  });
}

int hoist_plan_event_fd(const hoist_plan* plan, int* fd, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    if (fd == nullptr) return Missing("fd");
    if (plan->plan->forked()) return hoist::ForkedStatus();
    const auto made = plan->plan->EventFd();
    if (made.ok()) *fd = made.value();
    return made.status();
  });
}

int hoist_plan_end_pass(hoist_plan* plan, int* changed, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    bool is_new = false;
    if (Status s = plan->plan->EndPass(&is_new); !s.ok()) return s;
    if (changed != nullptr) *changed = is_new ? 1 : 0;
    return Status();
  });
}

int hoist_plan_set_budget(hoist_plan* plan, uint64_t budget_bytes,
                          hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    return plan->plan->SetBudget(budget_bytes);
  });
}

int hoist_plan_set_order(hoist_plan* plan, const uint32_t* order,
                         size_t order_length, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    if (order == nullptr && order_length > 0) return Missing("order");
    return plan->plan->SetOrder({order, order + order_length});
  });
}

// In the child of a fork the plan is the parent's; see hoist_session_free.
void hoist_plan_free(hoist_plan* plan) {
  if (plan == nullptr || plan->plan->forked()) return;
  (void)Guarded(nullptr, [plan] {
    delete plan;
    return Status();
  });
}

int hoist_plan_describe(const hoist_plan* plan, hoist_plan_info* info,
                        hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    if (info == nullptr) return Missing("info");
    if (plan->plan->forked()) return hoist::ForkedStatus();
    const Plan::Info facts = plan->plan->info();
    hoist_plan_info out = {};
    out.id = facts.id;
    out.device = facts.device;
    out.budget_bytes = facts.budget_bytes;
    out.resident_bytes = facts.resident_bytes;
    out.ring_bytes = facts.ring_bytes;
    out.streamed_bytes = facts.streamed_bytes;
    out.group_count = facts.groups;
    out.streamed_count = facts.streamed;
    out.lead = facts.lead;
    out.learning = facts.learning ? 1 : 0;
    out.generation = facts.generation;
    return hoist::WriteSized(out, info);
  });
}

int hoist_plan_group_kind(const hoist_plan* plan, uint32_t group, int* kind,
                          hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    if (kind == nullptr) return Missing("kind");
    if (plan->plan->forked()) return hoist::ForkedStatus();
    const auto found = plan->plan->KindOf(group);
    if (!found.ok()) return found.status();
    switch (found.value()) {
      case Plan::GroupKind::kNot:
        *kind = HOIST_PLANNED_NOT;
        break;
      case Plan::GroupKind::kEmpty:
      case Plan::GroupKind::kResident:
        *kind = HOIST_PLANNED_RESIDENT;
        break;
      case Plan::GroupKind::kStreamed:
        *kind = HOIST_PLANNED_STREAMED;
        break;
    }
    return Status();
  });
}

int hoist_plan_tensor(const hoist_plan* plan, uint32_t group, uint32_t tensor,
                      hoist_tensor_info* info, hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    if (info == nullptr) return Missing("info");
    return hoist::DescribePlanned(*plan->plan, group, tensor, info);
  });
}

int hoist_plan_find_tensor(const hoist_plan* plan, uint32_t group,
                           const char* name, hoist_tensor_info* info,
                           hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    if (name == nullptr) return Missing("name");
    if (info == nullptr) return Missing("info");
    const auto& groups = plan->plan->model().groups();
    uint32_t tensor = 0;
    if (group < groups.size()) {
      const hoist::GroupEntry& entry = groups[group];
      while (tensor < entry.tensors.size() &&
             entry.tensors[tensor].name != name) {
        ++tensor;
      }
      if (tensor == entry.tensors.size()) {
        return Status(Code::kNotFound, "group \"" + entry.name +
                                           "\" has no tensor \"" + name + "\"");
      }
    }
    return hoist::DescribePlanned(*plan->plan, group, tensor, info);
  });
}

int hoist_plan_get_stats(const hoist_plan* plan, hoist_plan_stats* stats,
                         hoist_error** error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr) return Missing("plan");
    if (stats == nullptr) return Missing("stats");
    if (plan->plan->forked()) return hoist::ForkedStatus();
    const Plan::Stats counted = plan->plan->stats();
    hoist_plan_stats out = {};
    out.stages = counted.stages;
    out.resident_stages = counted.resident_stages;
    out.ready_stages = counted.ready_stages;
    out.skipped = counted.skipped;
    out.unplanned = counted.unplanned;
    out.host_waits = counted.host_waits;
    out.wake_ups = counted.wake_ups;
    return hoist::WriteSized(out, stats);
  });
}
