// hoist for LibTorch: a torch::nn::Module whose weights live in hoistd.
//
//   Net net;
//   auto attached = hoist::torch::Attach(*net, *session, options);
//   if (!attached.ok()) return Fail(attached.status());
//   for (auto& block : *net->blocks) {
//     auto use = attached->Use(*block);       // Staged on the current stream,
//     if (!use.ok()) return Fail(use.status());
//     x = block->as<Block>()->forward(x);
//   }                                         // done at the scope's end.
//   attached->EndPass();
//
// LibTorch has no hooks, so the caller says what is used, and where: Use, or
// Forward, or Run for a Sequential. A weight that is used outside of a scope
// throws a c10::Error that says so; it never shows another group's bytes.
//
// Errors:   Status and Result. Only misuse of an idle weight throws, from the
//           torch function that touches it.
// Ties:     kept, within and across groups: groups that share bytes are one.
// Buffers:  private to this process unless `hoist_buffer` says otherwise, so
//           that forward may write them; on a GPU they are moved there.
// Autograd: forward may record; backward throws, as it comes after the scope.
// Writes:   to hoisted weights: see torch/staged.h.
#ifndef HOIST_TORCH_H_
#define HOIST_TORCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hoist/torch/bind.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {
class Attacher;
}  // namespace internal

struct AttachOptions {
  // Where the weights are, if they are not to be the module's own: a
  // safetensors file or folder, or a model that hoistd has. Their groups are
  // theirs; private weights that they have are copied from them.
  std::string path;
  std::string model;
  // Of the module's weights in those; empty: its own names.
  std::function<std::string(const std::string& name)> rename;

  // What the model is called in hoistd. Empty: made of what it is, so that
  // workers with equal weights share them; or of `path`.
  std::string name;
  Groups groups = Groups::kBlock;
  GroupRule rule;  // Instead of `groups`.
  // Modules and weights, by name, that stay this process's own.
  std::vector<std::string> exclude;
  // True: nobody writes the buffer. Empty: none is hoisted.
  std::function<bool(const std::string& name, const at::Tensor& buffer)>
      hoist_buffer;
  // Of groups in a pass. Empty: the module's own, until the first EndPass.
  std::vector<std::string> order;
  // Budget, device, share of the link; `order` is the one above.
  PlanOptions plan;
  Readers readers = Readers::kDefault;
};

// A module whose weights are hoist's. Move-only. Dropped without Detach, the
// module stays without weights. The module must outlive it.
//
// Threads:  Use, Forward, Run and their scopes are thread-safe; the others want
//           nothing in use.
class Attached {
 public:
  // The weights of a module, of all below it, are there until the scope ends,
  // which is before its Attached or the module does. Move-only.
  class Scope {
   public:
    // Ok, or why hoistd was not told; the plan's next call says it too.
    Status End() {
      Status ended;
      for (StagedTensors::Scope& scope : scopes_) {
        Status one = scope.End();
        if (ended.ok()) ended = std::move(one);
      }
      scopes_.clear();
      return ended;
    }

   private:
    friend class Attached;
    std::vector<StagedTensors::Scope> scopes_;
  };

  // NotFound: not of the attached module. FailedPrecondition: detached, or two
  // of the module's groups take turns in one place.
  Result<Scope> Use(const ::torch::nn::Module& module) {
    const auto found = state_->groups_of.find(&module);
    if (found == state_->groups_of.end()) {
      return Status(Code::kNotFound,
                    "the module is no part of the one that was attached");
    }
    return UseGroups(found->second);
  }
  // By a group's name, or else a module's.
  Result<Scope> Use(const std::string& name) {
    if (state_->staged.has_value()) {
      Result<uint32_t> group = state_->staged->model().FindGroup(name);
      if (group.ok()) return UseGroups({*group});
    }
    const auto found = state_->modules.find(name);
    if (found == state_->modules.end()) {
      return Status(Code::kNotFound,
                    "there is no group and no module \"" + name + "\"");
    }
    return Use(*found->second);
  }

  // block->forward(x...) in a scope of its own. `block` is a ModuleHolder, a
  // shared_ptr or a pointer. What forward throws passes through.
  template <typename Block, typename... X>
  auto Forward(Block&& block, X&&... x)
      -> Result<std::decay_t<decltype(block->forward(std::forward<X>(x)...))>> {
    Result<Scope> scope = Use(*block);
    if (!scope.ok()) return scope.status();
    auto result = block->forward(std::forward<X>(x)...);
    if (Status ended = scope->End(); !ended.ok()) return ended;
    return result;
  }
  // A Sequential's forward, each element in a scope of its own.
  Result<at::Tensor> Run(::torch::nn::SequentialImpl& sequence, at::Tensor x) {
    for (::torch::nn::AnyModule& element : sequence) {
      Result<Scope> scope = Use(*element.ptr());
      if (!scope.ok()) return scope.status();
      x = element.forward<at::Tensor>(std::move(x));
      if (Status ended = scope->End(); !ended.ok()) return ended;
    }
    return x;
  }

  // The end of a pass; the first one's order is learned by it, and the plan is
  // then made anew with that.
  Status EndPass() {
    return Live([&] { return state_->staged->EndPass(); });
  }
  // ResourceExhausted: the plan stands as before.
  Status SetBudget(uint64_t bytes) {
    return Live([&] { return state_->staged->SetBudget(bytes); });
  }
  // One pass's groups by name, in the order of their use; one may come several
  // times. Nothing is learned any more. NotFound: there is no such group, and
  // the plan stands as before.
  Status SetOrder(const std::vector<std::string>& groups) {
    return Live([&]() -> Status {
      std::vector<uint32_t> order;
      for (const std::string& name : groups) {
        Result<uint32_t> group = state_->staged->model().FindGroup(name);
        if (!group.ok()) return group.status();
        order.push_back(*group);
      }
      return state_->staged->SetOrder(order);
    });
  }
  // Ask after synchronizing, before results are used.
  Status Check() const {
    return Live([&] { return state_->staged->Check(); });
  }

  // A copy of a weight's true value, on the CPU. FailedPrecondition: a group
  // that shares its group's place is in use.
  Result<at::Tensor> Value(const std::string& name);

  // Gives the module its weights back: its own memory, as it was, with the
  // values that private ones have now. On an error nothing has changed.
  Status Detach();

  // Valid until Detach.
  const Model& model() const { return state_->staged->model(); }
  const Plan& plan() const { return state_->staged->plan(); }
  // Where inputs must be.
  c10::Device device() const { return state_->device; }

 private:
  friend class internal::Attacher;

  struct State {
    internal::Bindings bindings;
    std::optional<StagedTensors> staged;  // None: detached.
    c10::Device device{at::kCPU};
    std::unordered_map<const ::torch::nn::Module*, std::vector<uint32_t>>
        groups_of;
    std::unordered_map<std::string, const ::torch::nn::Module*> modules;
    std::unordered_map<std::string, at::Tensor> weights;
    std::unordered_map<const c10::TensorImpl*, uint32_t> group_of;
  };

  explicit Attached(std::unique_ptr<State> state) : state_(std::move(state)) {}

  template <typename Call>
  Status Live(const Call& call) const {
    if (!state_->staged.has_value()) {
      return Status(Code::kFailedPrecondition, "the module is detached");
    }
    return internal::Catching(call);
  }

  Result<Scope> UseGroups(const std::vector<uint32_t>& groups) {
    Scope scope;
    Status used = Live([&] {
      for (const uint32_t group : groups) {
        Result<StagedTensors::Scope> one = state_->staged->Stage(group);
        if (!one.ok()) return one.status();
        scope.scopes_.push_back(std::move(*one));
      }
      return Status();
    });
    if (!used.ok()) return used;
    return scope;
  }

  std::unique_ptr<State> state_;
};

// Puts the module's weights under hoist, within options.plan.budget_bytes of
// device memory. On an error the module is as it was; it keeps its memory until
// all is published. InvalidArgument: a weight that hoist cannot keep, by name.
// NotFound: `path` or `model` lacks a weight. ResourceExhausted: the budget is
// too small. Unavailable: no daemon.
Result<Attached> Attach(::torch::nn::Module& module, Session& session,
                        const AttachOptions& options = {});

inline Result<at::Tensor> Attached::Value(const std::string& name) {
  const auto found = state_->weights.find(name);
  if (found == state_->weights.end()) {
    return Status(Code::kNotFound, "there is no weight \"" + name + "\"");
  }
  const at::Tensor& tensor = found->second;
  const auto copy = [&] {
    return tensor.detach().to(at::kCPU, tensor.scalar_type(),
                              /*non_blocking=*/false, /*copy=*/true);
  };
  const auto group = state_->group_of.find(tensor.unsafeGetTensorImpl());
  at::Tensor value;
  Status status = internal::Catching([&] {
    if (state_->staged.has_value() && group != state_->group_of.end()) {
      Result<Scope> scope = UseGroups({group->second});
      if (!scope.ok()) return scope.status();
      value = copy();
      if (Status s = scope->End(); !s.ok()) return s;
      return state_->staged->Check();
    }
    value = copy();
    return Status();
  });
  if (!status.ok()) return status;
  return value;
}

inline Status Attached::Detach() {
  Status given =
      Live([&] { return state_->bindings.GiveBack(&*state_->staged); });
  if (!given.ok()) return given;
  state_->staged.reset();
  state_->bindings = {};
  return Status();
}

}  // namespace torch
}  // namespace v0
}  // namespace hoist

#include "hoist/torch/attach.h"  // Attach.

#endif  // HOIST_TORCH_H_
