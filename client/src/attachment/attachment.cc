#include "client/src/attachment/attachment.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "client/src/base/fork_guard.h"

namespace hoist {
namespace {

using std::chrono::milliseconds;

// A pass whose end is not told is over after so long without a stage.
constexpr milliseconds kPassLasts{1'000};

// No exception may leave a call uncounted.
template <typename Call>
auto Caught(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "out of memory");
  } catch (const std::exception& thrown) {
    return Status(Code::kResourceExhausted, thrown.what());
  }
}

bool IsHoistdsEnd(const Status& why) {
  return why.code() == Code::kUnavailable || why.code() == Code::kAborted;
}

Status Void(const Status& why) {
  return Status(IsHoistdsEnd(why) ? Code::kUnavailable : why.code(),
                "the plan has ended, and what was computed with it since the "
                "last check is void; run the pass again, its "
                "first stage renews the attachment (" +
                    why.message() + ")");
}

Status StillStaged(uint64_t staged, const Status& why) {
  return Status(Code::kUnavailable,
                "the plan has ended, and " + std::to_string(staged) +
                    " stages under it are not done; end them, and stage "
                    "again (" +
                    why.message() + ")");
}

}  // namespace

Attachment::Attachment(const hoist_attachment_options& options,
                       Renewer::Connect connect, ModelSource source)
    : fork_generation_(ForkGeneration()),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      renewer_(options, std::move(connect), std::move(source)),
      terms_(TermsOf(*options.plan)) {}

Result<std::unique_ptr<Attachment>> Attachment::Create(
    const hoist_attachment_options& options, Renewer::Connect connect,
    Standing::Begin begin) {
  Result<ModelSource> source = ModelSource::Create(options);
  if (!source.ok()) return source.status();
  std::unique_ptr<Attachment> made(
      new Attachment(options, std::move(connect), std::move(source).value()));
  if (!made->event_.valid()) return ErrnoStatus(errno, "make an eventfd");
  if (GivesWay(*options.plan)) {
    auto asks = Asks::Start(
        [self = made.get()](bool wake) { return self->Heed(wake); });
    if (!asks.ok()) return asks.status();
    made->asks_ = std::move(asks).value();
    made->renewer_.Listen(
        {made->asks_->event(), [heeds = made->asks_.get()] { heeds->Wake(); }});
  } else {
    made->renewer_.Listen({made->event_.get(), {}});
  }
  const MutexLock lock(made->mu_);
  StandingPtr before;
  if (begin.session != nullptr) {
    before = std::make_unique<Standing>(std::move(begin));
  }
  Result<StandingPtr> stands =
      made->renewer_.Stand(made->terms_, before, std::nullopt);
  if (!stands.ok()) return stands.status();
  made->standing_ = std::move(stands).value();
  made->used_ = Clock::now();
  made->stages_.resize(made->model()->groups().size());
  return made;
}

// The thread first: it uses what stands, whose session calls it.
Attachment::~Attachment() {
  if (asks_ != nullptr) asks_->Stop();
}

bool Attachment::forked() const { return fork_generation_ != ForkGeneration(); }

template <typename Call>
Status Attachment::Unlocked(const Call& call) {
  ++calls_;
  Status done;
  {
    Standing& at = *standing_;
    const MutexUnlock unlocked(mu_);
    done = Caught([&]() -> Status { return call(at); });
  }
  if (--calls_ == 0 && ended_) changed_.NotifyAll();
  return done;
}

template <typename Call>
Status Attachment::Run(const Call& call, milliseconds patience,
                       const uint32_t* staged) {
  std::optional<Clock::time_point> end;
  const MutexLock lock(mu_);
  while (true) {
    if (!stands()) {
      if (Status s = AwaitStanding(patience); !s.ok()) return s;
    }
    Status done = Unlocked(call);
    if (done.ok() && staged != nullptr) {
      ++stages_[*staged];
      ++staged_;
      in_pass_ = true;
    }
    if (done.ok() || LookAtPlan()) return done;
    // Hoistds that die one after another.
    if (!end.has_value()) end = Clock::now() + renewer_.wait();
    if (Clock::now() >= *end) return done;
  }
}

bool Attachment::LookAtPlan() {
  if (!stands()) return false;
  const Status why = Unlocked([](Standing& at) { return at.plan->Check(); });
  if (!why.ok()) NoteEnd(why);
  return stands();
}

void Attachment::NoteEnd(const Status& why) {
  if (std::exchange(ended_, true)) return;
  why_ = why;
  if (IsHoistdsEnd(why) && renewer_.on_cpu()) return;
  void_ = Void(why);
  told_ = false;
}

Status Attachment::Tell() {
  if (void_.ok() || told_) return Status();
  told_ = true;
  return void_;
}

Status Attachment::AwaitStanding(milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  while (!stands()) {
    if (Status told = Tell(); !told.ok()) return told;
    if (renewing_ || calls_ > 0) {
      changed_.Wait(mu_);
    } else if (staged_ == 0) {
      if (Status s = RenewLocked(UntilOfWait()); !s.ok()) return s;
    } else if (Clock::now() >= end) {
      return StillStaged(staged_, why_);
    } else {
      changed_.WaitUntil(mu_, end);
    }
  }
  return Status();
}

Renewer::Clock::time_point Attachment::UntilOfWait() {
  if (!until_.has_value()) until_ = Clock::now() + renewer_.wait();
  return *until_;
}

template <typename Call>
void Attachment::Replace(const Call& call) {
  StandingPtr at = std::move(standing_);
  renewing_ = true;
  {
    const MutexUnlock unlocked(mu_);
    call(at);
  }
  renewing_ = false;
  standing_ = std::move(at);
  changed_.NotifyAll();
}

// Nothing is staged, and no call is under way.
Status Attachment::RenewLocked(Clock::time_point until) {
  const bool had_plan = planned();
  KeepOrder();
  const PlanTerms terms = terms_;
  Status made;
  Replace([&](StandingPtr& at) {
    made = Caught([&]() -> Status {
      Result<StandingPtr> next = renewer_.StandBy(terms, at, until);
      if (next.ok()) at = std::move(next).value();
      return next.status();
    });
  });
  if (!made.ok()) {
    if (had_plan && !planned()) ++generations_;
    return made;
  }
  used_ = Clock::now();
  standing_->generations = generations_;
  ended_ = false;
  until_.reset();
  ++renewals_;
  (void)eventfd_write(event_.get(), 1);  // A full one is readable anyway.
  return Status();
}

// An order that was learned, or set, outlives its plan.
void Attachment::KeepOrder() {
  if (!planned()) return;
  generations_ = standing_->generations + standing_->plan->info().generation;
  const PlanTerms now = standing_->plan->terms();
  if (now.learn) return;
  terms_.order = standing_->OwnOrder(now.order);
  terms_.learn = false;
}

std::optional<milliseconds> Attachment::Heed(bool wake) {
  const MutexLock lock(mu_);
  (void)eventfd_write(event_.get(), 1);  // The plan signals `asks_` alone.
  if (wake && standing_ != nullptr && !planned() && !ended_) {
    (void)RenewLocked(Clock::now());  // If it fails, the next stage says why.
    return std::nullopt;
  }
  if (!LookAtPlan()) return std::nullopt;
  hoist_plan_info info = {};
  (void)Unlocked([&](Standing& at) {
    info = at.plan->info();
    return Status();
  });
  if (!stands() || info.asked_to_give_way == 0) return std::nullopt;
  const milliseconds lasts = UseLasts(milliseconds(info.idle_ms));
  asked_ = lasts > milliseconds(0);
  if (asked_) return lasts;
  GiveWay();
  return std::nullopt;
}

milliseconds Attachment::UseLasts(milliseconds idle) const {
  if (calls_ > 0 || staged_ > 0) return kPassLasts;
  if (in_pass_) idle = std::max(idle, kPassLasts);
  return std::max(milliseconds(0),
                  std::chrono::ceil<milliseconds>(used_ + idle - Clock::now()));
}

// The end of a hoistd meanwhile is noted as in a pass: its results are void.
void Attachment::GiveWay() {
  KeepOrder();
  Status finished;
  Replace([&](StandingPtr& at) {
    finished = at->plan->Finish();
    if (finished.ok()) at->GiveBack();
  });
  if (!finished.ok()) return NoteEnd(finished);
  ++generations_;
  in_pass_ = false;
  (void)eventfd_write(event_.get(), 1);
}

Status Attachment::Stage(uint32_t group, cuda::Stream stream,
                         milliseconds turn_deadline, const void** data) {
  if (group >= model()->groups().size()) return model()->CheckGroup(group);
  return Run(
      [&](Standing& at) -> Status {
        const Lease* lease = at.Resident(group);
        if (lease == nullptr) {
          return at.plan->Stage(at.number[group], stream, data, turn_deadline);
        }
        if (Status s = lease->Check(); !s.ok()) return s;
        if (data != nullptr) *data = lease->grant().address;
        return Status();
      },
      turn_deadline, &group);
}

Status Attachment::Done(uint32_t group, cuda::Stream stream) {
  if (group >= model()->groups().size()) return model()->CheckGroup(group);
  const MutexLock lock(mu_);
  if (stages_[group] == 0) {
    return Status(Code::kFailedPrecondition,
                  "group \"" + model()->groups()[group].name +
                      "\" is not staged; each done ends one stage");
  }
  // Nothing replaces what stands while a group is staged.
  const Status done = Unlocked([&](Standing& at) -> Status {
    if (at.Resident(group) != nullptr) return Status();
    return at.plan->Done(at.number[group], stream);
  });
  const bool alive = done.ok() || LookAtPlan();
  if (alive && !done.ok()) return done;
  if (stages_[group] > 0) {
    --stages_[group];
    if (--staged_ == 0 && ended_) changed_.NotifyAll();
    if (asks_ != nullptr) used_ = Clock::now();
  }
  return alive ? done : Tell();
}

Status Attachment::EndPass(bool* changed) {
  *changed = false;
  const MutexLock lock(mu_);
  in_pass_ = false;
  if (asked_) asks_->Signal();
  if (!stands()) return Tell();
  const Status done =
      Unlocked([&](Standing& at) { return at.plan->EndPass(changed); });
  return done.ok() || LookAtPlan() ? done : Tell();
}

Status Attachment::Check() {
  const MutexLock lock(mu_);
  (void)LookAtPlan();
  told_ = true;
  return std::exchange(void_, Status());
}

Status Attachment::Renew() {
  const MutexLock lock(mu_);
  return LookAtPlan() ? Status() : AwaitStanding({});
}

// A renewal on the way uses the new budget.
Status Attachment::SetBudget(uint64_t bytes) {
  const MutexLock one_at_a_time(setting_);  // A refused one restores the last.
  uint64_t before = 0;
  {
    const MutexLock lock(mu_);
    before = std::exchange(terms_.budget, bytes);
  }
  const Status set = Run([&](Standing& at) -> Status {
    Result<uint64_t> rest = at.PlanBudget(bytes);
    return rest.ok() ? at.plan->SetBudget(*rest) : rest.status();
  });
  if (set.ok()) return set;
  const MutexLock lock(mu_);
  terms_.budget = before;
  return set;
}

Status Attachment::Reorder(std::vector<uint32_t> order) {
  if (order.empty()) {
    return Status(Code::kInvalidArgument, "the order is empty");
  }
  return Run([&](Standing& at) -> Status {
    Result<std::vector<uint32_t>> here = at.PlanOrder(order);
    if (!here.ok()) return here.status();
    return at.plan->Reorder(std::move(here).value());
  });
}

hoist_attachment_info Attachment::info() {
  const MutexLock lock(mu_);
  hoist_attachment_info info = {};
  info.state = LookAtPlan() ? HOIST_ATTACHMENT_READY
               : renewing_  ? HOIST_ATTACHMENT_RENEWING
               : ended_     ? HOIST_ATTACHMENT_ENDED
                            : HOIST_ATTACHMENT_ASLEEP;
  info.renewals = renewals_;
  info.generation = generations_;
  if (planned()) {
    (void)Unlocked([&](Standing& at) {
      info.generation = at.generations + at.plan->info().generation;
      return Status();
    });
  }
  return info;
}

Result<hoist_plan_info> Attachment::plan_info() {
  hoist_plan_info info = {};
  Status asked = Run([&](Standing& at) {
    info = at.plan->info();
    info.generation += at.generations;
    return Status();
  });
  if (!asked.ok()) return asked;
  return info;
}

template <typename Call>
Status Attachment::OnLast(const Call& call) {
  const MutexLock lock(mu_);
  return planned() ? Unlocked(call) : Status();
}

hoist_plan_stats Attachment::stats() {
  hoist_plan_stats stats = {};
  (void)OnLast([&](Standing& at) {
    stats = at.plan->stats();
    return Status();
  });
  return stats;
}

Result<int> Attachment::KindOf(uint32_t group) {
  if (Status s = model()->CheckGroup(group); !s.ok()) return s;
  Result<int> kind = int{HOIST_PLANNED_NOT};
  (void)OnLast([&](Standing& at) {
    kind = at.KindOf(group);
    return Status();
  });
  return kind;
}

Result<Attachment::Placed> Attachment::Place(uint32_t group, uint32_t tensor) {
  if (Status s = model()->CheckGroup(group); !s.ok()) return s;
  auto known = model()->groups()[group].Tensor(tensor);
  if (!known.ok()) return known.status();
  Placed placed;
  Status found = Run([&](Standing& at) -> Status {
    placed.model = at.model.table;
    const uint32_t number = at.number[group];
    const GroupEntry& entry = placed.model->groups()[number];
    Result<uint32_t> there = entry.FindTensor((*known)->name);
    if (!there.ok()) return there.status();
    placed.tensor = &entry.tensors[*there];
    if (const Lease* lease = at.Resident(group); lease != nullptr) {
      placed.image = lease->grant().address;
      return lease->Check();
    }
    if (at.plan->KindOf(number).value() == HOIST_PLANNED_NOT) return Status();
    Result<const void*> image = at.plan->AddressOf(number);
    if (image.ok()) placed.image = image.value();
    return image.status();
  });
  if (!found.ok()) return found;
  return placed;
}

}  // namespace hoist
