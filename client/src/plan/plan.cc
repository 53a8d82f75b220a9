#include "client/src/plan/plan.h"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

#include "client/src/plan/plan_finish.h"

namespace hoist {
namespace {

using std::chrono::milliseconds;

// Added to a stage's deadline, which hoistd enforces itself.
constexpr milliseconds kSlack{10'000};

milliseconds StageDeadline(const hoist_plan_options& options) {
  const uint64_t given = options.stage_deadline_ms;
  return given > 0 ? milliseconds(given) : Plan::kStageDeadline;
}

// Nothing of nullptr.
void Add(const PlanLane* lane, hoist_plan_stats* stats) {
  if (lane == nullptr) return;
  stats->skipped += lane->stats().skipped;
  stats->host_waits += lane->stats().host_waits;
  stats->wake_ups += lane->stats().wake_ups;
}

// Without model and budget, over all that is given.
Hoist__V1__SetPlanRequest RequestOf(const KeptOptions& options,
                                    const std::vector<uint32_t>& order,
                                    Hoist__V1__Share* share) {
  Hoist__V1__SetPlanRequest request = HOIST__V1__SET_PLAN_REQUEST__INIT;
  request.device = options.device;
  std::tie(request.n_order, request.order) = Items(order);
  request.deadline_ms = options.deadline_ms;
  request.stage_deadline_ms = options.stage_deadline_ms;
  request.share = share;
  request.gives_way = options.gives_way != 0;
  std::tie(request.n_blocks, request.blocks) = Items(options.block_of);
  return request;
}

}  // namespace

PlanTerms TermsOf(const hoist_plan_options& options) {
  return {.budget = options.budget_bytes,
          .order = {options.order, options.order + options.order_length},
          .learn = options.order_length == 0 || options.learn != 0};
}

hoist_plan_options WithTerms(hoist_plan_options options,
                             const PlanTerms& terms) {
  options.budget_bytes = terms.budget;
  options.order = terms.order.data();
  options.order_length = terms.order.size();
  options.learn = terms.learn ? options.learn : 0;
  return options;
}

bool GivesWay(const hoist_plan_options& options) {
  return options.gives_way != 0;
}

milliseconds SpaceDeadline(const hoist_plan_options& options) {
  return milliseconds(options.deadline_ms);
}

Plan::Plan(std::shared_ptr<Session> session, ModelPtr model,
           const hoist_plan_options& options)
    : session_(std::move(session)),
      model_(std::move(model)),
      options_(options),
      wanted_budget_(options.budget_bytes) {}

Result<std::unique_ptr<Plan>> Plan::Create(std::shared_ptr<Session> session,
                                           ModelPtr model,
                                           const hoist_plan_options& options) {
  std::unique_ptr<Plan> plan(
      new Plan(std::move(session), std::move(model), options));
  if (Status s = plan->MakeOrder(); !s.ok()) return s;
  if (Status s = plan->session_->AddListener(&plan->life_); !s.ok()) return s;
  const MutexLock lock(plan->mu_);
  plan->info_.learning = options.order_length == 0 || options.learn != 0;
  Result<std::vector<uint32_t>> order = PlannableOrder(
      *plan->model_, {options.order, options.order + options.order_length});
  if (!order.ok()) return order.status();
  if (Status s = plan->Set(*order, plan->wanted_budget_, 0); !s.ok()) return s;
  return plan;
}

Plan::~Plan() {
  // Until this returns, the session's end still lets waits through.
  (void)Finish();
  session_->RemoveListener(&life_);
  (void)life_.Watch(nullptr);
  life_.DropRetired();
  turns_.reset();
  lane_.reset();
  residents_.reset();
  std::vector<uint64_t> leases;
  for (const auto& [group, held] : unplanned_) leases.push_back(held.lease);
  session_->PostReleases(leases);
  if (info_.id != 0) session_->ClearPlan(info_.id);
}

Status Plan::Finish() {
  FinishOnDevice(order_.get(), *session_, life_);
  return Check();
}

Status Plan::MakeOrder() {
  const DeviceFacts* device = session_->FindDevice(options_.device);
  if (device->kind == DeviceKind::kEmulated) {
    order_ = CreateEmulatedOrder(StageDeadline(options_) + kSlack);
    return Status();
  }
  Result<std::unique_ptr<StreamOrder>> order = CreateCudaOrder(device->uuid);
  if (!order.ok()) return order.status();
  order_ = std::move(order).value();
  return Status();
}

Status Plan::Set(const std::vector<uint32_t>& order, uint64_t budget_bytes,
                 uint64_t replaces) {
  Hoist__V1__Share share = ShareOf(options_);
  Hoist__V1__SetPlanRequest request = RequestOf(options_, order, &share);
  request.model_id = model_->facts().id;
  request.budget_bytes = budget_bytes;
  request.replaces = replaces;
  Result<PlanGrant> grant = session_->SetPlan(request);
  if (!grant.ok()) {
    const Code code = grant.status().code();
    const bool stands =
        (code == Code::kResourceExhausted || code == Code::kInvalidArgument) &&
        session_->Check().ok();
    if (!stands) life_.End(grant.status());
    return grant.status();
  }
  // From here on hoistd has this plan.
  info_.id = grant->info.id;
  life_.SetPlan(info_.id);
  session_->plans().Watch(info_.id, [this] { life_.Tell(); });
  Status installed = grant->admitted;
  if (installed.ok()) {
    try {
      installed = Install(std::move(grant).value(), order);
    } catch (const std::bad_alloc&) {
      installed = Status(Code::kResourceExhausted, "out of memory for a plan");
    }
  }
  if (!installed.ok()) life_.End(installed);
  return installed;
}

Status Plan::Install(PlanGrant grant, const std::vector<uint32_t>& order) {
  Result<PlanLayout> layout = CheckPlan(grant, *model_, order);
  if (!layout.ok()) return layout.status();
  std::unique_ptr<PlanLane> lane;
  if (!layout->streamed.empty()) {
    PlanLane::Options options;
    options.groups = static_cast<uint32_t>(layout->streamed.size());
    options.order = layout->order;
    options.ring_limit = StageDeadline(options_);
    Result<std::unique_ptr<PlanLane>> made = PlanLane::Create(
        grant.lane, std::move(grant.wake), std::move(options), order_.get());
    if (!made.ok()) return made.status();
    lane = std::move(made).value();
  }
  Add(lane_.get(), &stats_);
  if (Status s = life_.Watch(lane.get()); !s.ok()) return s;
  turns_.reset();
  if (lane_ != nullptr && lane_->captured()) life_.Retire(std::move(lane_));
  lane_ = std::move(lane);
  layout_ = std::move(layout).value();
  if (lane_ != nullptr) turns_.emplace(*lane_, *order_, layout_, *model_);
  in_force_ = order;

  PlanResidents::Leases held;
  if (residents_ != nullptr) held = residents_->Take();
  residents_ = std::make_shared<PlanResidents>(
      PlanResidents::Options{session_, model_, options_.device,
                             StageDeadline(options_)},
      layout_.residents, std::move(held));
  groups_.assign(model_->groups().size(), Group());
  for (uint32_t g = 0; g < groups_.size(); ++g) {
    if (model_->groups()[g].image_bytes == 0) {
      groups_[g].kind = GroupKind::kEmpty;
    }
  }
  for (size_t i = 0; i < layout_.residents.size(); ++i) {
    Group& group = groups_[layout_.residents[i]];
    group.kind = GroupKind::kResident;
    group.resident = residents_->slot(i);
  }
  for (uint32_t i = 0; i < layout_.streamed.size(); ++i) {
    Group& group = groups_[layout_.streamed[i].group];
    group.kind = GroupKind::kStreamed;
    group.lane = i;
    group.address = layout_.streamed[i].address;
  }
  grant.info.device = options_.device;
  grant.info.group_count = static_cast<uint32_t>(grant.groups.size());
  grant.info.streamed_count = static_cast<uint32_t>(layout_.streamed.size());
  grant.info.learning = info_.learning;
  grant.info.generation = info_.generation + 1;
  info_ = grant.info;
  if (info_.generation > 1) life_.Tell();
  residents_->Start();
  return Status();
}

Status Plan::Replace(const std::vector<uint32_t>& order,
                     uint64_t budget_bytes) {
  if (staged_ != 0) {
    return Status(Code::kFailedPrecondition,
                  std::to_string(staged_) +
                      " groups of the plan are staged; end them first "
                      "(hoist_plan_done)");
  }
  if (Status s = order_->SynchronizeAll(); !s.ok()) return s;
  return Set(order, budget_bytes, info_.id);
}

Status Plan::CheckAlive() {
  if (!MayHaveEnded()) return Status();
  if (lane_ != nullptr && lane_->faulted()) life_.End(lane_->Fault());
  return life_.why();
}

Status Plan::Check() {
  const MutexLock lock(mu_);
  if (Status s = CheckAlive(); !s.ok()) return s;
  if (Status s = session_->Check(); !s.ok()) life_.End(s);
  return life_.why();
}

Status Plan::EndPass(bool* changed) {
  *changed = false;
  const MutexLock lock(mu_);
  if (Status s = CheckAlive(); !s.ok()) return s;
  if (staged_ != 0) {
    return Status(Code::kFailedPrecondition,
                  std::to_string(staged_) +
                      " groups are still staged at the end of the pass; end "
                      "them first (hoist_plan_done)");
  }
  return TakeLearned(changed);
}

Status Plan::SetBudget(uint64_t budget_bytes) {
  const MutexLock lock(mu_);
  if (Status s = CheckAlive(); !s.ok()) return s;
  if (Status s = Replace(std::vector<uint32_t>(in_force_), budget_bytes);
      !s.ok()) {
    return s;
  }
  wanted_budget_ = budget_bytes;
  return Status();
}

Status Plan::Reorder(std::vector<uint32_t> order) {
  if (order.empty()) {
    return Status(Code::kInvalidArgument, "the order is empty");
  }
  Result<std::vector<uint32_t>> known =
      PlannableOrder(*model_, std::move(order));
  if (!known.ok()) return known.status();
  const MutexLock lock(mu_);
  if (Status s = CheckAlive(); !s.ok()) return s;
  if (*known != in_force_) {
    if (Status s = Replace(*known, wanted_budget_); !s.ok()) return s;
  }
  info_.learning = 0;
  recorded_.clear();
  return Status();
}

void Plan::Record(uint32_t number, cuda::Stream stream) {
  if (!info_.learning || groups_[number].count > 0) return;
  if (!options_.learn && recorded_.size() >= 2 && number == recorded_.front()) {
    bool changed = false;
    // A refusal leaves the plan unchanged. Any other error ends it, and the
    // caller sees that.
    if (staged_ == 0 && RefuseCapture(stream, "").ok()) {
      (void)TakeLearned(&changed);
      if (!info_.learning) return;
    }
    recorded_.clear();
  }
  // A pass without a repeat has no order to learn.
  if (recorded_.size() >= std::max<size_t>(1024, 64 * groups_.size())) {
    info_.learning = 0;
    recorded_.clear();
    return;
  }
  recorded_.push_back(number);
}

Status Plan::TakeLearned(bool* changed) {
  std::vector<uint32_t> order;
  for (const uint32_t group : std::exchange(recorded_, {})) {
    if (groups_[group].kind != GroupKind::kEmpty) order.push_back(group);
  }
  if (!info_.learning || order.empty()) return Status();
  info_.learning = 0;
  if (order == in_force_) return Status();
  Status replaced = Replace(order, wanted_budget_);
  *changed = replaced.ok();
  return replaced;
}

PlanTerms Plan::terms() const {
  const MutexLock lock(mu_);
  return {wanted_budget_, in_force_, info_.learning != 0};
}

hoist_plan_info Plan::info() const {
  const MutexLock lock(mu_);
  hoist_plan_info info = info_;
  session_->plans().Describe(&info);
  return info;
}

hoist_plan_stats Plan::stats() const {
  const MutexLock lock(mu_);
  hoist_plan_stats stats = stats_;
  Add(lane_.get(), &stats);
  return stats;
}

Result<int> Plan::KindOf(uint32_t group) const {
  if (Status s = model_->CheckGroup(group); !s.ok()) return s;
  const MutexLock lock(mu_);
  const GroupKind kind = groups_[group].kind;
  return kind == GroupKind::kNot        ? HOIST_PLANNED_NOT
         : kind == GroupKind::kStreamed ? HOIST_PLANNED_STREAMED
                                        : HOIST_PLANNED_RESIDENT;
}

Result<const void*> Plan::AddressOf(uint32_t number) {
  if (Status s = model_->CheckGroup(number); !s.ok()) return s;
  PlanResidents::Slot* slot = nullptr;
  std::shared_ptr<PlanResidents> residents;
  {
    const MutexLock lock(mu_);
    if (Status s = CheckAlive(); !s.ok()) return s;
    const Group& group = groups_[number];
    if (group.kind == GroupKind::kNot) {
      return Status(Code::kFailedPrecondition,
                    "group \"" + model_->groups()[number].name +
                        "\" is not in the plan, so it has no address before "
                        "it is staged");
    }
    if (group.kind != GroupKind::kResident) return group.address;
    slot = group.resident;
    residents = residents_;
  }
  if (slot->address() == nullptr) {
    if (Status s = residents->Await(slot); !s.ok()) return s;
  }
  return slot->address();
}

}  // namespace hoist
