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
// throws a c10::Error that says so; it never shows another group's bytes. What
// the plan keeps resident needs no scope once it was in one; see `bound`.
//
// Views:    of a weight (`wt = w.t()`) may be kept: they show it whenever the
//           weight shows itself, under this plan and any later one. One that
//           was taken while the weight showed nothing does so after Detach.
// Death:    where hoistd has ended, or has ended the session (`hoistctl end`),
//           what is in use then ends with Unavailable, and the next Use,
//           SetBudget or SetOrder attaches the module again, as it was, to the
//           hoistd that listens there by then; for which it waits for
//           plan.stage_deadline, once. It finds the weights by `path`, `model`
//           or content (DataLoss, if they are others; NotFound: it came back
//           without). An order that was learned is learned again. Nothing may
//           be in use then. Detach works in any case.
// Errors:   Status and Result. Only misuse of an idle weight throws, from the
//           torch function that touches it.
// Ties:     kept, within and across groups: groups that share bytes are one.
// Buffers:  private to this process unless `hoist_buffer` says otherwise, so
//           that forward may write them; on a GPU they are moved there.
// Autograd: forward may record; backward throws, as it comes after the scope,
//           but for weights that are bound until then.
// Writes:   to hoisted weights: see torch/staged.h.
#ifndef HOIST_TORCH_H_
#define HOIST_TORCH_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hoist/torch/again.h"
#include "hoist/torch/bind.h"

namespace hoist {
inline namespace v0 {
namespace torch {
namespace internal {
class Attacher;
}  // namespace internal

// Of Attach.
struct AttachOptions {
  // Where the weights are, if they are not to be the module's own: a
  // safetensors file or folder, or a model that hoistd has. Their groups are
  // theirs; private weights that they have are copied from them, but for what
  // another Attached or InPlaceTensors shows. The module needs no memory for
  // them: its tensors may be on the meta device, and have their home on the CPU
  // then.
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
  // How long a scope waits for its turn where a group that shares its group's
  // place is in use by another thread; 0: it is refused at once.
  std::chrono::milliseconds turn_deadline{0};
};

// A module whose weights are hoist's. Move-only; one that was moved from
// answers InvalidArgument, and has neither model, plan nor device. Dropped
// without Detach, whatever became of the session or of hoistd, the module stays
// without weights until it is attached again: where they were, or with `path`
// or `model`. The module must outlive it; the session need not, which it shares
// and keeps alive. With it, or Detach, the session is done with the model, so
// that hoistd may make room with that.
//
// Threads:  Use, Forward, Run and their scopes are thread-safe; the others want
//           nothing in use. Threads that share a plan that streams want a
//           turn_deadline, and an order that is set or learned before them;
//           each pass then brings the groups that others' passes have put out.
class Attached {
 public:
  // The weights of a module, of all below it, are there until the scope ends,
  // which is before its Attached or the module does. Move-only.
  class Scope {
   public:
    Scope(Scope&&) noexcept = default;  // `other` is left without a scope.
    // Ends this one's own first.
    Scope& operator=(Scope&& other) noexcept {
      if (this != &other) {
        (void)End();
        scopes_ = std::move(other.scopes_);
        use_ = std::move(other.use_);
        told_ = other.told_;
      }
      return *this;
    }
    // Ok, or why hoistd was not told; the plan's next call says it too.
    Status End() {
      Status ended;
      for (StagedTensors::Scope& scope : scopes_) {
        Status one = scope.End();
        if (ended.ok()) ended = std::move(one);
      }
      scopes_.clear();
      use_.reset();
      if (ended.code() != Code::kUnavailable) return ended;
      *told_ = true;
      return Explained(ended);
    }

   private:
    friend class Attached;
    struct Leave {
      void operator()(std::atomic<int>* uses) const { uses->fetch_sub(1); }
    };
    Scope() = default;
    // What forward returns and goes with the scope gets bytes of its own.
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
    std::atomic<bool>* told_ = nullptr;             // The State's.
    std::vector<StagedTensors::Scope> scopes_;
  };

  // NotFound: not of the attached module. FailedPrecondition: detached, or two
  // of the module's groups take turns in one place. DeadlineExceeded: another
  // thread's did not end in turn_deadline.
  Result<Scope> Use(const ::torch::nn::Module& module) {
    return Anew<Result<Scope>>([&] { return UseModule(module); });
  }
  // By a group's name, or else a module's.
  Result<Scope> Use(const std::string& name) {
    return Anew<Result<Scope>>([&]() -> Result<Scope> {
      if (state_->staged.has_value()) {
        Result<uint32_t> group = state_->staged->model().FindGroup(name);
        if (group.ok()) return UseGroups({*group});
      }
      const auto found = state_->modules.find(name);
      if (found == state_->modules.end()) {
        return Status(Code::kNotFound,
                      "there is no group and no module \"" + name + "\"");
      }
      return UseModule(*found->second);
    });
  }

  // Whether the weights of the module, and of all below it, need no scope: the
  // plan keeps them resident, and each was in a scope since it was made. They
  // stay until EndPass learns an order, SetBudget, SetOrder or Detach, or until
  // the module is attached again by itself: while another thread may do so,
  // whoever uses them holds a scope.
  bool bound(const ::torch::nn::Module& module) const {
    if (state_ == nullptr) return false;
    const std::shared_lock<std::shared_mutex> lock(state_->renewing);
    const auto found = state_->groups_of.find(&module);
    return state_->staged.has_value() && found != state_->groups_of.end() &&
           std::all_of(
               found->second.begin(), found->second.end(),
               [&](uint32_t group) { return state_->staged->bound(group); });
  }

  // block->forward(x...) in a scope of its own. `block` is a ModuleHolder, a
  // shared_ptr or a pointer. A tensor that it returns, also in a tuple or a
  // vector, is a copy if it shows a weight that is not bound. What forward
  // throws passes through.
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

  // The end of a pass; the first one's order is learned by it, and the plan is
  // then made anew with that.
  Status EndPass() {
    if (state_ == nullptr) return MovedFrom();
    const std::shared_lock<std::shared_mutex> lock(state_->renewing);
    Status ended = Live([&] { return state_->staged->EndPass(); });
    state_->between = ended.ok();
    if (HoistdEnded(ended)) state_->told = true;
    return ended;
  }
  // ResourceExhausted: the plan stands as before.
  Status SetBudget(uint64_t bytes) {
    return Anew<Status>([&] {
      Status set = Live([&] { return state_->staged->SetBudget(bytes); });
      if (set.ok()) state_->origin.plan.budget_bytes = bytes;
      return set;
    });
  }
  // One pass's groups by name, in the order of their use; one may come several
  // times. Nothing is learned any more. NotFound: there is no such group, and
  // the plan stands as before.
  Status SetOrder(const std::vector<std::string>& groups) {
    return Anew<Status>([&] {
      return Live([&]() -> Status {
        std::vector<uint32_t> order;
        for (const std::string& name : groups) {
          Result<uint32_t> group = state_->staged->model().FindGroup(name);
          if (!group.ok()) return group.status();
          order.push_back(*group);
        }
        if (Status s = state_->staged->SetOrder(order); !s.ok()) return s;
        state_->origin.plan.order = order;
        state_->origin.plan.learn = false;
        return Status();
      });
    });
  }
  // Ask after synchronizing, before results are used. Unavailable, once, if
  // hoistd ended since it was asked last and a GPU may have computed meanwhile.
  Status Check() const {
    if (state_ == nullptr) return MovedFrom();
    const std::shared_lock<std::shared_mutex> lock(state_->renewing);
    if (state_->is_void.exchange(false)) return Explained(Ended());
    Status checked = Live([&] { return state_->staged->Check(); });
    if (HoistdEnded(checked)) state_->told = true;
    return checked;
  }

  // A copy of a weight's true value, on the CPU. FailedPrecondition: a group
  // that shares its group's place is in use.
  Result<at::Tensor> Value(const std::string& name);

  // Gives the module its weights back: its own memory, as it was, with the
  // values that private ones have now. Views of them that somebody holds show
  // that memory, where it is on the same device. FailedPrecondition: a scope
  // has not ended. Where hoistd or the session has ended it connects again, and
  // waits as Use does. DataLoss: some weights were hoistd's alone; the module
  // is detached all the same, and those, which are named, throw when they are
  // used, until it is attached again. On any other error nothing has changed.
  Status Detach();

  // Valid until Detach, or until the module is attached again by itself.
  const Model& model() const { return state_->staged->model(); }
  // As model().
  const Plan& plan() const { return state_->staged->plan(); }
  // Where inputs must be.
  c10::Device device() const { return state_->device; }

 private:
  friend class internal::Attacher;

  struct State {
    ~State() {
      if (!staged.has_value()) return;
      Leave();  // Nothing is bound then.
      for (size_t i = 0; i < bindings.kept.size(); ++i) {
        bindings.MakeOrphans(i, "was in hoistd when its Attached was dropped");
      }
    }
    // It uses its model no more.
    void Leave() {
      (void)staged->DoneWithModel();  // The session may have ended.
      staged.reset();
    }
    void Watch() {
      staged->Watch(
          {[this](uint32_t group, const std::vector<at::Tensor>& tensors) {
             bindings.Begun(group, tensors);
           },
           [this](uint32_t group) { bindings.Ended(group); }});
    }

    internal::Bindings bindings;
    internal::Origin origin;
    std::optional<Session> session;       // That it made itself.
    std::optional<StagedTensors> staged;  // None: detached.
    // Shared by what stages, alone for what replaces `staged`.
    mutable std::shared_mutex renewing;
    std::atomic<int> uses{0};  // Scopes.
    // Nothing was used since the last pass; hoistd's end hits none.
    std::atomic<bool> between{true};
    mutable std::atomic<bool> told{false};     // Somebody, of hoistd's end.
    mutable std::atomic<bool> is_void{false};  // What a GPU computed.
    std::optional<std::chrono::steady_clock::time_point> until;  // To wait.
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
    if (!state_->staged.has_value()) {
      return Status(Code::kFailedPrecondition, "the module is detached");
    }
    return internal::Catching(call);
  }

  Result<Scope> UseModule(const ::torch::nn::Module& module) {
    const auto found = state_->groups_of.find(&module);
    if (found == state_->groups_of.end()) {
      return Status(Code::kNotFound,
                    "the module is no part of the one that was attached");
    }
    return UseGroups(found->second);
  }

  Result<Scope> UseGroups(const std::vector<uint32_t>& groups) {
    Scope scope;
    state_->uses.fetch_add(1);
    scope.use_.reset(&state_->uses);
    scope.told_ = &state_->told;
    Status used = Live([&] {
      for (const uint32_t group : groups) {
        Result<StagedTensors::Scope> one =
            state_->staged->Stage(group, state_->turn_deadline);
        if (!one.ok()) return one.status();
        scope.scopes_.push_back(std::move(*one));
      }
      return Status();
    });
    if (!used.ok()) return used;
    return scope;
  }

  // What ended with hoistd, and was told of or hit nothing, is done anew.
  template <typename Done, typename Call>
  Done Anew(const Call& call) {
    if (state_ == nullptr) return MovedFrom();
    Status why;
    {
      const std::shared_lock<std::shared_mutex> lock(state_->renewing);
      Done done = call();
      why = StatusOf(done);
      if (!HoistdEnded(why)) {
        if (state_->between.load(std::memory_order_relaxed)) {
          state_->between = false;
        }
        return done;
      }
    }
    const bool hits_none = state_->between.load() && state_->device.is_cpu();
    if (!state_->told.exchange(true) && !hits_none) return Explained(why);
    if (Status renewed = Renew(/*closed=*/false); !renewed.ok()) {
      return renewed;
    }
    const std::shared_lock<std::shared_mutex> lock(state_->renewing);
    return call();
  }
  static Status StatusOf(const Status& status) { return status; }
  template <typename T>
  static Status StatusOf(const Result<T>& result) {
    return result.ok() ? Status() : result.status();
  }
  static Status MovedFrom() {
    return Status(Code::kInvalidArgument,
                  "this Attached was moved from; use the one that it became");
  }
  bool HoistdEnded(const Status& status) const {
    return status.code() == Code::kUnavailable && state_->staged.has_value() &&
           Ended().code() == Code::kUnavailable;
  }
  Status Ended() const { return state_->staged->Check(); }
  static Status Explained(const Status& why) {
    return Status(Code::kUnavailable,
                  "hoistd has ended the session, and what was in use is void; "
                  "the next use attaches the module again (" +
                      why.message() + ")");
  }

  Status Renew(bool closed);
  Status RenewOnce(const ConnectOptions& connect);

  std::unique_ptr<State> state_;
};

// Puts the module's weights under hoist, within options.plan.budget_bytes of
// device memory. On an error the module is as it was; it keeps its memory until
// all is published. A module that an Attached left without weights has them
// where they were, with the groups of then, if neither `path` nor `model` is
// given. InvalidArgument: a weight that hoist cannot keep, by name. NotFound:
// `path` or `model` lacks a weight, or hoistd has no more what was left there.
// FailedPrecondition: the module is attached; or a weight has no bytes, or is
// not where the others were left; give `path` or `model`. ResourceExhausted:
// the budget is too small. Unavailable: no daemon. DataLoss: what was left
// there is other weights by now.
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
      Result<Scope> scope =
          Anew<Result<Scope>>([&] { return UseGroups({group->second}); });
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

// Another hoistd, where the one has ended. `closed`: or the session alone.
inline Status Attached::Renew(bool closed) {
  using Clock = std::chrono::steady_clock;
  State& state = *state_;
  const std::unique_lock<std::shared_mutex> lock(state.renewing);
  const Status why = Ended();
  if (why.ok()) return why;  // Another thread has seen to it.
  if (why.code() != Code::kUnavailable && !closed) return why;
  if (state.uses.load() > 0) return Explained(why);
  if (!state.until.has_value())
    state.until = Clock::now() + state.origin.wait();
  const auto end = *state.until;
  Status renewed = internal::TryUntil(end, [&] {
    return internal::Catching([&] { return RenewOnce(state.origin.connect); });
  });
  if (!renewed.ok()) return renewed;
  state.until.reset();
  state.told = false;
  state.between = true;
  state.is_void = !state.device.is_cpu();
  return Status();
}

inline Status Attached::RenewOnce(const ConnectOptions& connect) {
  State& state = *state_;
  Result<Session> session = Session::Connect(connect);
  if (!session.ok()) return session.status();
  Result<Model> model = state.bindings.source->Find(*session);
  if (!model.ok()) return model.status();
  Result<internal::Renumbered> now =
      internal::Renumber(state.staged->model(), *model);
  if (!now.ok()) return now.status();
  PlanOptions plan = state.origin.plan;
  internal::Renumber(*now, &plan.order);
  Result<StagedTensors> staged =
      StagedTensors::Create(*session, std::move(*model), plan);
  if (!staged.ok()) return staged.status();
  if (staged->device() != state.device) {
    return Status(Code::kFailedPrecondition,
                  "hoistd was started again with another device; detach");
  }
  staged->TakeTensors(*state.staged, now->group, now->tensor);
  internal::Renumber(*now, staged->model().group_count(), &state.bindings);
  for (auto& [module, groups] : state.groups_of) {
    internal::Renumber(*now, &groups);
  }
  for (auto& [tensor, group] : state.group_of) group = now->group[group];
  state.origin.plan = std::move(plan);
  state.staged.emplace(std::move(*staged));
  state.session.emplace(std::move(*session));
  state.Watch();
  return Status();
}

inline Status Attached::Detach() {
  if (state_ == nullptr) return MovedFrom();
  if (state_->uses.load() > 0) {
    return Status(Code::kFailedPrecondition,
                  "the module is in use; end its scopes before Detach");
  }
  std::vector<std::string> lost;
  const auto give_back = [&](StagedTensors* staged) {
    return Live([&] { return state_->bindings.GiveBack(staged, &lost); });
  };
  if (!state_->staged.has_value()) return give_back(nullptr);
  Status why = Ended();
  Status given = why.ok() ? give_back(&*state_->staged) : why;
  if (!given.ok() && !Ended().ok()) {
    why = Renew(/*closed=*/true);
    given = give_back(why.ok() ? &*state_->staged : nullptr);
    if (!given.ok() && !Ended().ok()) given = give_back(nullptr);
  }
  if (!given.ok()) return given;
  state_->staged->Forget();  // What was bound is the module's own by now.
  state_->Leave();
  state_->bindings.ShowHomes();
  state_->bindings = {};
  if (lost.empty()) return Status();
  return Status(Code::kDataLoss,
                "the module is detached, but " + std::to_string(lost.size()) +
                    " of its weights were hoistd's alone, \"" + lost.front() +
                    "\" among them" +
                    (why.ok() ? "" : " (" + why.message() + ")"));
}

}  // namespace torch
}  // namespace v0
}  // namespace hoist

#include "hoist/torch/attach.h"    // Attach.
#include "hoist/torch/in_place.h"  // InPlaceTensors.

#endif  // HOIST_TORCH_H_
