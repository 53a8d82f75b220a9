// How an attached module's weights are found again after hoistd's end. Internal
// to torch.h.
#ifndef HOIST_TORCH_AGAIN_H_
#define HOIST_TORCH_AGAIN_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hoist/torch/bind.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {

// How to find a hoistd again, and plan the weights there.
struct Origin {
  ConnectOptions connect;
  PlanOptions plan;  // The current one.

  // How long to wait for a hoistd.
  std::chrono::milliseconds wait() const {
    return plan.stage_deadline.count() > 0 ? plan.stage_deadline
                                           : std::chrono::seconds(60);
  }
};

// Maps groups and tensors of one model to another of the same content.
struct Renumbered {
  std::vector<uint32_t> group;
  std::vector<std::vector<uint32_t>> tensor;  // By a group's old number.
};

inline bool SameTensor(const TensorView& a, const TensorView& b) {
  return a.name() == b.name() && a.dtype() == b.dtype() &&
         a.shape() == b.shape() && a.strides() == b.strides() &&
         a.size_bytes() == b.size_bytes();
}

inline Result<Renumbered> Renumber(const Model& before, const Model& now) {
  Renumbered found;
  for (uint32_t g = 0; g < before.group_count(); ++g) {
    const std::string name(before.group_name(g));
    Result<uint32_t> group = now.FindGroup(name);
    if (!group.ok()) return group.status();
    found.group.push_back(*group);
    found.tensor.emplace_back();
    const std::vector<TensorView> there = now.tensors(*group);
    for (const TensorView& tensor : before.tensors(g)) {
      uint32_t t = 0;
      while (t < there.size() && !SameTensor(tensor, there[t])) ++t;
      if (t == there.size()) {
        return Status(Code::kDataLoss, "group \"" + name + "\" has another \"" +
                                           std::string(tensor.name()) + "\"");
      }
      found.tensor.back().push_back(t);
    }
  }
  return found;
}

inline void Renumber(const Renumbered& now, std::vector<uint32_t>* groups) {
  for (uint32_t& group : *groups) group = now.group[group];
}

inline void Renumber(const Renumbered& now, uint32_t group_count,
                     Bindings* bindings) {
  bindings->of_group.assign(group_count, {});
  for (size_t i = 0; i < bindings->kept.size(); ++i) {
    Kept& one = bindings->kept[i];
    one.tensor = now.tensor[one.group][one.tensor];
    one.group = now.group[one.group];
    bindings->of_group[one.group].push_back(i);
  }
}

// Retries until hoistd is there, or `end`.
template <typename Try>
Status TryUntil(std::chrono::steady_clock::time_point end, const Try& once) {
  while (true) {
    Status tried = once();
    if (tried.code() != Code::kUnavailable ||
        std::chrono::steady_clock::now() >= end) {
      return tried;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace internal
}  // namespace torch
}  // namespace v0
}  // namespace hoist

#endif  // HOIST_TORCH_AGAIN_H_
