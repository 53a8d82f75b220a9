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
// LibTorch has no hooks, so the caller marks each use: by Use, or Forward, or
// Run for a Sequential. A weight used outside a scope throws a c10::Error that
// says so; it never shows another group's bytes. Resident weights need no scope
// after their first one; see `bound`.
//
// Views:    of a weight (`wt = w.t()`) may be kept: they show it whenever the
//           weight has its bytes, under this plan and any later one. A view
//           taken while the weight had none shows them after Detach.
// Death:    when hoistd ends, or ends the session (`hoistctl end`), what is in
//           use stays so. Once no scope is left, the next Use, SetBudget or
//           SetOrder attaches the module again, with the last budget and order,
//           to the hoistd that then listens there (hoist_attachment.h); before,
//           it fails with Unavailable. On a GPU it does so once in any case, as
//           what was computed is void. It waits for a hoistd once, for
//           plan.stage_deadline. It finds the weights by `path` or
//           content. DataLoss: they differ. NotFound: hoistd has them no more.
//           Detach always works.
// Sleep:    if its plan gives way, hoistd takes the module's device memory when
//           others need it, or for `hoistctl sleep`, between passes
//           (c/attachment.h). The next Use brings it back. ResourceExhausted:
//           no room; the next Use tries again. Every use needs a scope.
// Errors:   Status and Result. Only misuse of an idle weight throws, from the
//           torch function that touches it.
// Ties:     kept, within and across groups; groups that share bytes are merged.
// Buffers:  private to this process unless `hoist_buffer` says otherwise, so
//           that forward may write them; on a GPU they are moved there.
// Autograd: forward may record; backward throws, since it runs after the scope,
//           except for weights that are still bound.
// Writes:   to hoisted weights: see torch/staged.h.
#ifndef HOIST_TORCH_H_
#define HOIST_TORCH_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hoist/torch/bind.h"
#include "hoist/torch/parts.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {
class Attacher;
}  // namespace internal

// Of Attach.
struct AttachOptions {
  // The source of the weights, if not the module itself: a safetensors file or
  // folder, or a model that hoistd has. The source's groups apply. Private
  // weights in it are copied, except those that another Attached or
  // InPlaceTensors shows. The module needs no memory for them: its tensors may
  // be on the meta device; their home is then the CPU.
  std::string path;
  std::string model;
  // Names of the module's weights in the source; empty: the same names.
  std::function<std::string(const std::string& name)> rename;

  // The model's name in hoistd. Empty: that of a model with the same groups and
  // weights, which another worker published, also one of PyTorch's; else one
  // derived from its content, or `path`. A file's model whose blocks have parts
  // (see Groups) has "-parts" behind it.
  std::string name;
  Groups groups = Groups::kBlock;
  GroupRule rule;  // Instead of `groups`.
  // Names of modules and weights that stay private to this process.
  std::vector<std::string> exclude;
  // True: the buffer is never written. Empty: none is hoisted.
  std::function<bool(const std::string& name, const at::Tensor& buffer)>
      hoist_buffer;
  // Groups or blocks of a pass. Empty: the module's order, until the first
  // EndPass.
  std::vector<std::string> order;
  // Budget, device, share of the link; `order` is the one above.
  PlanOptions plan;
  Readers readers = Readers::kDefault;
  // How long a scope waits while another thread uses a group that shares its
  // group's place; 0: refuse at once.
  std::chrono::milliseconds turn_deadline{0};
};

namespace internal {

// Whether large blocks are several groups, of a module of so many bytes: it has
// a budget, or exceeds any device.
inline bool HasParts(const AttachOptions& options, uint64_t bytes,
                     const Session& session) {
  if (options.rule || options.groups != Groups::kBlock) return false;
  uint64_t most = 0;
  for (const hoist_device_info& device : session.devices()) {
    most = std::max(most, device.pool_bytes);
  }
  return options.plan.budget_bytes > 0 || bytes > most;
}

}  // namespace internal

// A module whose weights hoist keeps. Move-only; a moved-from one answers
// InvalidArgument, and has no model, plan or device. Its destruction without
// Detach leaves the module without weights until the next Attach: to their old
// place, or with `path` or `model`. Tensors that are not hoisted go back where
// they were; if there is no memory, they stay on the device. The module must
// outlive it; it shares the session and keeps it alive. Its end, or Detach,
// ends the session's use of the model, which hoistd may then evict.
//
// Threads:  Use, Forward, Run and their scopes are thread-safe; during other
//           calls nothing may be in use. Threads that share a streaming plan
//           need a turn_deadline, and an order set or learned before; each pass
//           reloads groups that other passes displaced.
class Attached {
 public:
  // Until it ends, the weights of a module and all below it are usable. It ends
  // before its Attached and the module. Move-only.
  class Scope {
   public:
    Scope(Scope&&) noexcept = default;  // `other` is left without a scope.
    // Ends this one's own first.
    Scope& operator=(Scope&& other) noexcept {
      if (this != &other) {
        (void)End();
        scopes_ = std::move(other.scopes_);
        use_ = std::move(other.use_);
      }
      return *this;
    }
    // Ok, or why hoistd was not told; so does the plan's next call.
    Status End() {
      Status ended;
      for (StagedTensors::Scope& scope : scopes_) {
        Status one = scope.End();
        if (ended.ok()) ended = std::move(one);
      }
      scopes_.clear();
      use_.reset();
      return ended;
    }

   private:
    friend class Attached;
    struct Leave {
      void operator()(std::atomic<int>* uses) const { uses->fetch_sub(1); }
    };
    Scope() = default;
    // Copies a result of forward that would be void after the scope.
    void Own(at::Tensor& tensor) const {
      const bool lent = std::any_of(
          scopes_.begin(), scopes_.end(),
          [&](const StagedTensors::Scope& one) { return one.lends(tensor); });
      if (lent) tensor = tensor.clone();
    }
    void Own(std::vector<at::Tensor>& tensors) const {
      for (at::Tensor& tensor : tensors) Own(tensor);
    }
    template <typename... Parts>
    void Own(std::tuple<Parts...>& parts) const {
      std::apply([this](Parts&... part) { (Own(part), ...); }, parts);
    }
    template <typename Other>
    void Own(Other&) const {}

    std::unique_ptr<std::atomic<int>, Leave> use_;  // Ends after the scopes.
    std::vector<StagedTensors::Scope> scopes_;
  };

  // NotFound: not in the attached module. FailedPrecondition: detached, or two
  // of the module's groups share one place. DeadlineExceeded: another thread's
  // scope did not end in turn_deadline.
  Result<Scope> Use(const ::torch::nn::Module& module) {
    if (state_ == nullptr) return MovedFrom();
    const auto found = state_->groups_of.find(&module);
    if (found == state_->groups_of.end()) {
      return Status(Code::kNotFound,
                    "the module is no part of the one that was attached");
    }
    return UseGroups(found->second);
  }
  // By the name of a group or a block, or else of a module.
  Result<Scope> Use(const std::string& name) {
    if (state_ == nullptr) return MovedFrom();
    if (state_->staged.has_value()) {
      auto groups = internal::GroupsNamed(state_->staged->model(), name);
      if (groups.ok()) return UseGroups(*groups);
    }
    const auto found = state_->modules.find(name);
    if (found == state_->modules.end()) {
      return Status(Code::kNotFound,
                    "there is no group and no module \"" + name + "\"");
    }
    return Use(*found->second);
  }

  // Whether the weights of the module and all below it need no scope: the plan
  // keeps them resident and does not give way, and each was in a scope under
  // it. They stay until
  // EndPass learns an order, SetBudget, SetOrder, Detach or an automatic
  // attach. Hold a scope while another thread may cause one.
  bool bound(const ::torch::nn::Module& module) const {
    if (state_ == nullptr) return false;
    const auto found = state_->groups_of.find(&module);
    return state_->staged.has_value() && found != state_->groups_of.end() &&
           std::all_of(
               found->second.begin(), found->second.end(),
               [&](uint32_t group) { return state_->staged->bound(group); });
  }

  // block->forward(x...) in a scope of its own. `block` is a ModuleHolder, a
  // shared_ptr or a pointer. A returned tensor, also in a tuple or a vector, is
  // a copy if it shows a weight that is not bound. Exceptions of forward pass
  // through.
  template <typename Block, typename... X>
  auto Forward(Block&& block, X&&... x)
      -> Result<std::decay_t<decltype(block->forward(std::forward<X>(x)...))>> {
    Result<Scope> scope = Use(*block);
    if (!scope.ok()) return scope.status();
    auto result = block->forward(std::forward<X>(x)...);
    scope->Own(result);
    if (Status ended = scope->End(); !ended.ok()) return ended;
    return result;
  }
  // A Sequential's forward, each element in a scope of its own.
  Result<at::Tensor> Run(::torch::nn::SequentialImpl& sequence, at::Tensor x) {
    for (::torch::nn::AnyModule& element : sequence) {
      Result<Scope> scope = Use(*element.ptr());
      if (!scope.ok()) return scope.status();
      x = element.forward<at::Tensor>(std::move(x));
      scope->Own(x);
      if (Status ended = scope->End(); !ended.ok()) return ended;
    }
    return x;
  }

  // Ends a pass. The first one's order is learned, and the plan is remade with
  // it.
  Status EndPass() {
    return Live([&] { return state_->staged->EndPass(); });
  }
  // ResourceExhausted: the plan is unchanged.
  Status SetBudget(uint64_t bytes) {
    return Live([&] { return state_->staged->SetBudget(bytes); });
  }
  // One pass's groups or blocks by name, in order of use; they may repeat.
  // Learning ends. NotFound: no such group; the plan is unchanged.
  Status SetOrder(const std::vector<std::string>& groups) {
    return Live([&]() -> Status {
      std::vector<uint32_t> order;
      for (const std::string& name : groups) {
        auto found = internal::GroupsNamed(state_->staged->model(), name);
        if (!found.ok()) return found.status();
        order.insert(order.end(), found->begin(), found->end());
      }
      return state_->staged->SetOrder(order);
    });
  }
  // Call it after synchronizing, before results are used. Unavailable, once, if
  // hoistd ended since the last call and a GPU may have computed meanwhile.
  Status Check() const {
    return Live([&] { return state_->staged->Check(); });
  }

  // A copy of a weight's true value, on the CPU. FailedPrecondition: a group
  // that shares its group's place is in use.
  Result<at::Tensor> Value(const std::string& name);

  // Gives the module its weights back, in its own memory as before, with the
  // current values of private ones. Existing views show that memory, if it is
  // on the same device. FailedPrecondition: a scope has not ended. If hoistd or
  // the session has ended, it connects again, and waits as Use does. DataLoss:
  // only hoistd had some weights. The module is detached all the same; the
  // named weights throw when used, until the next Attach. Other errors change
  // nothing.
  Status Detach();

  // As first found. Valid until Detach.
  const Model& model() const { return state_->staged->model(); }
  // As model().
  const Attachment& plan() const { return state_->staged->plan(); }
  // Where inputs must be.
  c10::Device device() const { return state_->device; }

 private:
  friend class internal::Attacher;

  struct State {
    ~State() {
      if (!staged.has_value()) return;
      staged.reset();  // Nothing is bound then.
      for (size_t i = 0; i < bindings.kept.size(); ++i) {
        bindings.MakeOrphans(i, "was in hoistd when its Attached was dropped");
      }
      (void)internal::Catching([&] {  // Else they stay on the device.
        bindings.MoveBack();
        return Status();
      });
    }
    void Watch() {
      staged->Watch(
          {[this](uint32_t group, const std::vector<at::Tensor>& tensors) {
             bindings.Begun(group, tensors);
           },
           [this](uint32_t group) { bindings.Ended(group); }});
    }

    internal::Bindings bindings;
    std::optional<StagedTensors> staged;  // None: detached.
    std::atomic<int> uses{0};             // Scopes.
    c10::Device device{at::kCPU};
    std::chrono::milliseconds turn_deadline{0};
    std::unordered_map<const ::torch::nn::Module*, std::vector<uint32_t>>
        groups_of;
    std::unordered_map<std::string, const ::torch::nn::Module*> modules;
    std::unordered_map<std::string, at::Tensor> weights;
    std::unordered_map<const c10::TensorImpl*, uint32_t> group_of;
  };

  explicit Attached(std::unique_ptr<State> state) : state_(std::move(state)) {}

  template <typename Call>
  Status Live(const Call& call) const {
    if (state_ == nullptr) return MovedFrom();
    if (!state_->staged.has_value()) {
      return Status(Code::kFailedPrecondition, "the module is detached");
    }
    return internal::Catching(call);
  }

  Result<Scope> UseGroups(const std::vector<uint32_t>& groups) {
    Scope scope;
    state_->uses.fetch_add(1);
    scope.use_.reset(&state_->uses);
    Status used = Live([&] { return StageAll(groups, &scope.scopes_); });
    if (!used.ok()) return used;
    return scope;
  }

  // Waits while it holds none: who holds the awaited place may wait for one of
  // these. So the first one may wait, and after a refusal the refused one.
  Status StageAll(const std::vector<uint32_t>& groups,
                  std::vector<StagedTensors::Scope>* scopes) const {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + state_->turn_deadline;
    const auto stage = [&](uint32_t group, std::chrono::milliseconds turn) {
      Result<StagedTensors::Scope> one = state_->staged->Stage(group, turn);
      if (one.ok()) scopes->push_back(std::move(*one));
      return one.ok() ? Status() : one.status();
    };
    std::chrono::milliseconds left = state_->turn_deadline;
    for (size_t first = 0; first < groups.size();) {
      Status staged = stage(groups[first], left);
      if (!staged.ok()) return staged;
      size_t refused = groups.size();
      for (size_t i = 0; i < groups.size() && refused == groups.size(); ++i) {
        if (i == first) continue;
        staged = stage(groups[i], {});
        if (!staged.ok()) refused = i;
      }
      if (staged.ok()) return staged;
      if (staged.code() != Code::kFailedPrecondition || left.count() == 0) {
        return staged;
      }
      left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      if (left.count() <= 0) {
        return Status(Code::kDeadlineExceeded, staged.message());
      }
      scopes->clear();
      first = refused;
    }
    return Status();
  }

  static Status MovedFrom() {
    return Status(Code::kInvalidArgument,
                  "this Attached was moved from; use the one that it became");
  }

  std::unique_ptr<State> state_;
};

// Puts the module's weights under hoist, within options.plan.budget_bytes of
// device memory. On an error the module is unchanged, and hoistd forgets what
// it lacked before, unless another session uses it; the module keeps its memory
// until all is published. Without `path` and `model`, a module that an Attached
// left without weights gets its old ones, in their old groups. InvalidArgument:
// a weight that hoist cannot keep, by name. NotFound: `path` or `model` lacks a
// weight, or hoistd has lost those left there. FailedPrecondition: the module
// is attached; or a weight has no bytes, or was left elsewhere than the others;
// give `path` or `model`. ResourceExhausted: the budget is too small.
// Unavailable: no daemon. DataLoss: the weights left there have changed.
Result<Attached> Attach(::torch::nn::Module& module, Session& session,
                        const AttachOptions& options = {});

inline Result<at::Tensor> Attached::Value(const std::string& name) {
  if (state_ == nullptr) return MovedFrom();
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
  if (state_ == nullptr) return MovedFrom();
  if (state_->uses.load() > 0) {
    return Status(Code::kFailedPrecondition,
                  "the module is in use; end its scopes before Detach");
  }
  std::vector<std::string> lost;
  Status why;  // They are.
  const auto give_back = [&](bool from_hoistd) {
    return Live([&] {
      return state_->bindings.GiveBack(from_hoistd ? &*state_->staged : nullptr,
                                       &lost, &why);
    });
  };
  const auto ended = [&] {
    return state_->staged.has_value() &&
           state_->staged->plan().state() != AttachmentState::kReady;
  };
  Status given;
  for (int hoistd = 0; hoistd < 2; ++hoistd) {  // It may end meanwhile.
    (void)Check();  // Results are no longer of interest.
    given = give_back(/*from_hoistd=*/true);
    if (given.ok() || !ended()) break;
  }
  if (!given.ok() && ended()) {
    why = given;
    given = give_back(/*from_hoistd=*/false);
  }
  if (!given.ok()) return given;
  state_->staged->Forget();  // The module owns its weights now.
  state_->staged.reset();
  state_->bindings.ShowHomes();
  state_->bindings = {};
  if (lost.empty()) return Status();
  return Status(Code::kDataLoss,
                "the module is detached, but " + std::to_string(lost.size()) +
                    " of its weights were hoistd's alone, \"" + lost.front() +
                    "\" among them (" + why.message() + ")");
}

}  // namespace torch
}  // namespace v0
}  // namespace hoist

#include "hoist/torch/attach.h"    // Attach.
#include "hoist/torch/in_place.h"  // InPlaceTensors.

#endif  // HOIST_TORCH_H_
