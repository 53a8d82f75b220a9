// Plans, for C++. Part of hoist.h, which includes this.
#ifndef HOIST_HOIST_PLAN_H_
#define HOIST_HOIST_PLAN_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "hoist/hoist_c.h"
#include "hoist/hoist_types.h"

namespace hoist {
inline namespace v0 {

// What a plan does with a group.
enum class Planned {
  kResident = HOIST_PLANNED_RESIDENT,
  kStreamed = HOIST_PLANNED_STREAMED,
  kNot = HOIST_PLANNED_NOT,
};

// Stages groups one after another, without messages; see hoist_c.h. A stream is
// a CUstream or cudaStream_t (nullptr: the default stream); emulated devices
// ignore it. Move-only; the destructor waits for the GPU and gives everything
// back.
//
//   for (uint32_t group : order) {
//     hoist::Result<const void*> image = plan.Stage(group, stream);
//     if (!image.ok()) return image.status();
//     Compute(*image, stream);
//     if (hoist::Status s = plan.Done(group, stream); !s.ok()) return s;
//   }
class Plan : internal::Handle<hoist_plan, hoist_plan_free> {
 public:
  explicit Plan(hoist_plan* handle) : Handle(handle) {}  // Owns it.

  // The image's address, for later work on the stream.
  Result<const void*> Stage(uint32_t group, hoist_stream stream = nullptr) {
    return Take<const void*>(hoist_plan_stage, group, stream);
  }
  // The same, but waits while a group that shares its place is staged.
  // DeadlineExceeded: its turn did not come.
  Result<const void*> StageInTurn(uint32_t group,
                                  std::chrono::milliseconds turn_deadline,
                                  hoist_stream stream = nullptr) {
    return Take<const void*>(hoist_plan_stage_in_turn, group, stream,
                             internal::Count(turn_deadline));
  }
  // Earlier work on the stream is the last to read the image.
  Status Done(uint32_t group, hoist_stream stream = nullptr) {
    return Call(hoist_plan_done, group, stream);
  }
  // Whether results computed under the plan are valid. Call it after
  // synchronizing, before results are used.
  Status Check() const { return Call(hoist_plan_check); }
  // Readable once the plan was remade, has ended, or is to give way; see
  // hoist_plan_event_fd.
  // The plan owns it.
  Result<int> event_fd() const { return Take<int>(hoist_plan_event_fd); }
  // True: the plan was remade with the learned order, and addresses have
  // changed.
  Result<bool> EndPass() { return Take<bool, int>(hoist_plan_end_pass); }
  // Between passes; addresses change. ResourceExhausted: the plan is unchanged.
  Status SetBudget(uint64_t budget_bytes) {
    return Call(hoist_plan_set_budget, budget_bytes);
  }
  // The same with another order of one pass; learning ends.
  Status SetOrder(const std::vector<uint32_t>& order) {
    return Call(hoist_plan_set_order, order.data(), order.size());
  }

  hoist_plan_info info() const {
    return Filled<hoist_plan_info>(hoist_plan_describe);
  }
  hoist_plan_stats stats() const {
    return Filled<hoist_plan_stats>(hoist_plan_get_stats);
  }
  // kNot also if the model has no such group.
  Planned kind(uint32_t group) const {
    int kind = HOIST_PLANNED_NOT;
    hoist_plan_group_kind(handle_.get(), group, &kind, nullptr);
    return static_cast<Planned>(kind);
  }
  // A planned group's tensor, with its address in every stage.
  Result<TensorView> tensor(uint32_t group, uint32_t index) const {
    return TakeTensor(hoist_plan_tensor, group, index);
  }
  // NotFound: the group has no such tensor.
  Result<TensorView> tensor(uint32_t group, const std::string& name) const {
    return TakeTensor(hoist_plan_find_tensor, group, name.c_str());
  }
  hoist_plan* get() const { return handle_.get(); }  // For the C API.
};

// Of Session::SetPlan.
struct PlanOptions {
  uint32_t device = 0;
  // Residents and ring together; 0: as much as hoistd can promise.
  uint64_t budget_bytes = 0;
  std::vector<uint32_t> order = {};       // Of one pass; empty: learned.
  std::chrono::milliseconds deadline{0};  // To wait for space; 0: not at all.
  // Limit of a group's load; 0: 60 s.
  std::chrono::milliseconds stage_deadline{0};
  // Share of the device's link, beside other plans.
  uint32_t weight = 1;                // 1 to 1,000.
  int32_t priority = 0;               // -10 to 10; higher goes first.
  uint64_t max_bytes_per_second = 0;  // 0: no cap.
  bool learn = false;      // `order` applies until EndPass; see hoist_c.h.
  bool gives_way = false;  // hoistd may ask for its memory; see hoist_c.h.
  // Of each group of the model, groups of a block being staged together; empty:
  // each group is a block. See hoist_c.h.
  std::vector<uint32_t> blocks = {};
};

}  // namespace v0
}  // namespace hoist

#endif  // HOIST_HOIST_PLAN_H_
