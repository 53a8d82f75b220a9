// The C API's plans.
#include "client/src/plan/plan.h"

#include "client/src/c_api/handles.h"

struct hoist_plan {
  std::unique_ptr<hoist::Plan> own;
};

namespace hoist {
namespace {

Status DescribePlanned(Plan& plan, uint32_t group, uint32_t tensor,
                       hoist_tensor_info* info) {
  const Result<const void*> image = plan.AddressOf(group);
  if (!image.ok()) return image.status();
  auto found = plan.model().groups()[group].Tensor(tensor);
  if (!found.ok()) return found.status();
  return DescribeTensor(**found, image.value(), info);
}

}  // namespace

Status ReadPlan(const hoist_plan_options* options, hoist_plan_options* given) {
  Status s = ReadSized(options, "hoist_plan_options", given);
  if (!s.ok()) return s;
  given->deadline_ms = AtMostADay(given->deadline_ms);
  given->stage_deadline_ms = AtMostADay(given->stage_deadline_ms);
  if (given->order_length > 0) s = Check({{given->order, "order"}});
  if (!s.ok() || given->block_count == 0) return s;
  return Check({{given->blocks, "blocks"}});
}

}  // namespace hoist

using hoist::Code;
using hoist::Missing;
using hoist::Plan;
using hoist::Status;
using hoist::With;

int hoist_set_plan(hoist_session* session, const hoist_model* model,
                   const hoist_plan_options* options, hoist_plan** plan,
                   hoist_error** error) {
  return hoist::Guarded(error, {{plan, "plan"}}, [&]() -> Status {
    hoist_plan_options given = {};
    Status s = hoist::ReadPlan(options, &given);
    if (!s.ok()) return s;
    auto table = hoist::WholeOf(session, model);
    if (!table.ok()) return table.status();
    hoist::Session& on = *session->session;
    if (s = hoist::CheckOptions(on, given); !s.ok()) return s;
    return hoist::Hand(plan,
                       Plan::Create(session->session, on.Hold(*table), given));
  });
}

int hoist_plan_stage(hoist_plan* plan, uint32_t group, hoist_stream stream,
                     const void** data, hoist_error** error) {
  return With(plan, "plan", error, {}, [&](Plan& own) {
    return own.Stage(group, hoist::StreamOf(stream), data);
  });
}

int hoist_plan_stage_in_turn(hoist_plan* plan, uint32_t group,
                             hoist_stream stream, uint64_t turn_deadline_ms,
                             const void** data, hoist_error** error) {
  return With(plan, "plan", error, {}, [&](Plan& own) {
    return own.Stage(group, hoist::StreamOf(stream), data,
                     hoist::Milliseconds(turn_deadline_ms));
  });
}

int hoist_plan_done(hoist_plan* plan, uint32_t group, hoist_stream stream,
                    hoist_error** error) {
  return With(plan, "plan", error, {}, [&](Plan& own) {
    return own.Done(group, hoist::StreamOf(stream));
  });
}

int hoist_plan_check(const hoist_plan* plan, hoist_error** error) {
  return With(plan, "plan", error, {}, [](Plan& own) { return own.Check(); });
}

int hoist_plan_event_fd(const hoist_plan* plan, int* fd, hoist_error** error) {
  return With(plan, "plan", error, {{fd, "fd"}}, [&](Plan& own) {
    const auto made = own.EventFd();
    if (made.ok()) *fd = made.value();
    return made.status();
  });
}

int hoist_plan_end_pass(hoist_plan* plan, int* changed, hoist_error** error) {
  return With(plan, "plan", error, {}, [&](Plan& own) {
    bool is_new = false;
    Status ended = own.EndPass(&is_new);
    if (ended.ok() && changed != nullptr) *changed = is_new ? 1 : 0;
    return ended;
  });
}

int hoist_plan_set_budget(hoist_plan* plan, uint64_t budget_bytes,
                          hoist_error** error) {
  return With(plan, "plan", error, {},
              [&](Plan& own) { return own.SetBudget(budget_bytes); });
}

int hoist_plan_set_order(hoist_plan* plan, const uint32_t* order,
                         size_t order_length, hoist_error** error) {
  return With(plan, "plan", error, {}, [&](Plan& own) -> Status {
    if (order == nullptr && order_length > 0) return Missing("order");
    return own.Reorder({order, order + order_length});
  });
}

void hoist_plan_free(hoist_plan* plan) { hoist::Free(plan); }

int hoist_plan_describe(const hoist_plan* plan, hoist_plan_info* info,
                        hoist_error** error) {
  return With(plan, "plan", error, {{info, "info"}}, [&](const Plan& own) {
    return hoist::WriteSized(own.info(), info);
  });
}

int hoist_plan_group_kind(const hoist_plan* plan, uint32_t group, int* kind,
                          hoist_error** error) {
  return With(plan, "plan", error, {{kind, "kind"}},
              [&](const Plan& own) -> Status {
                const auto found = own.KindOf(group);
                if (found.ok()) *kind = found.value();
                return found.status();
              });
}

int hoist_plan_tensor(const hoist_plan* plan, uint32_t group, uint32_t tensor,
                      hoist_tensor_info* info, hoist_error** error) {
  return With(plan, "plan", error, {{info, "info"}}, [&](Plan& own) {
    return hoist::DescribePlanned(own, group, tensor, info);
  });
}

int hoist_plan_find_tensor(const hoist_plan* plan, uint32_t group,
                           const char* name, hoist_tensor_info* info,
                           hoist_error** error) {
  return With(plan, "plan", error, {{name, "name"}, {info, "info"}},
              [&](Plan& own) -> Status {
                const auto& groups = own.model().groups();
                uint32_t tensor = 0;
                if (group < groups.size()) {
                  const auto found = groups[group].FindTensor(name);
                  if (!found.ok()) return found.status();
                  tensor = found.value();
                }
                return hoist::DescribePlanned(own, group, tensor, info);
              });
}

int hoist_plan_get_stats(const hoist_plan* plan, hoist_plan_stats* stats,
                         hoist_error** error) {
  return With(plan, "plan", error, {{stats, "stats"}}, [&](const Plan& own) {
    return hoist::WriteSized(own.stats(), stats);
  });
}
