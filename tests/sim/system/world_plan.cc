// What workers do with plans.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/system/world.h"

namespace hoistd::sim {

void World::SetPlan(Worker& worker, const Numbers& n,
                    std::optional<PlanId> old) {
  const ModelPtr model = PickModel(worker, n[1]);
  if (model == nullptr || model->spec->groups.empty()) return;
  SetPlanArgs args;
  args.model = model->id;
  args.device = GpuAt(n[2] / 2);
  if (old.has_value()) {
    WorkersPlan& entry = worker.plans.at(*old);
    // libhoist waits for its streams first, and keeps model and device.
    if (entry.asking || !entry.plan->idle()) return;
    args.model = entry.plan->model()->id;
    args.device = entry.plan->grant().device;
  }
  const ModelPtr planned =
      old.has_value() ? worker.plans.at(*old).plan->model() : model;
  const auto groups = static_cast<uint32_t>(planned->spec->groups.size());
  std::vector<uint32_t> order;
  // In the order of the model, or with groups left out and repeated.
  for (uint32_t g = 0; g < groups; ++g) {
    order.push_back(n[2] % 3 == 0 ? (g * (1 + n[2] % 5) + n[1]) % groups : g);
  }
  for (const uint32_t group : order) args.order.push_back(GroupIndex(group));
  args.budget_bytes = n[1] % 5 == 0 ? 0 : (3 + n[2] % 12) * kPage;
  args.deadline = absl::Seconds(n[1] % 3) * 5;
  args.replaces = old;
  args.gives_way = n[2] % 4 != 0;
  // Longer than any case: what does not come is seen to be missing.
  args.stage_deadline = absl::Hours(10);
  if (old.has_value()) worker.plans.at(*old).asking = true;
  using Opened = absl::StatusOr<OpenedPlan>;
  Ask<Opened>(
      "set a plan", worker,
      [this, args](SessionId session, Done<OpenedPlan> done) {
        engine_->Ask(session, args, std::move(done));
      },
      [this, planned, order, old](Worker& to, Opened opened) {
        if (opened.ok()) {
          return PlanStands(to, *std::move(opened), planned, order, old);
        }
        if (!old.has_value()) return;
        // As libhoist takes it: what is refused so leaves the old one.
        if (absl::IsResourceExhausted(opened.status()) ||
            absl::IsInvalidArgument(opened.status())) {
          to.plans.at(*old).asking = false;
          return;
        }
        EndPlan(to, *old);
      });
}

void World::PlanStands(Worker& worker, OpenedPlan opened, const ModelPtr& model,
                       std::vector<uint32_t> order, std::optional<PlanId> old) {
  const PlanGrant& grant = opened.grant;
  const PlanId id = grant.id;
  Given(id.number());
  Opened(worker, grant.device, grant.new_slabs);
  CheckOpen(worker, grant.device, grant.ring_offset, grant.ring_bytes);
  const uint64_t number = worker.number;
  Kernels kernels;
  kernels.begin = [this, number, id](uint32_t group) {
    KernelBegins(number, id, group);
  };
  kernels.end = [this, number, id](uint32_t group) {
    KernelEnds(number, id, group);
  };
  WorkersPlan entry;
  entry.plan = std::make_unique<SimPlan>(
      std::move(opened), model, std::move(order),
      options_.kind == DeviceKind::kEmulated, std::move(kernels));
  if (old.has_value()) {
    // Leases of groups that stay resident go on.
    WorkersPlan& before = worker.plans.at(*old);
    std::set<LeaseId> keep;
    for (const auto& [group, lease] : before.residents) {
      for (const PlannedGroup& planned : entry.plan->grant().groups) {
        if (planned.group.number() != group || !planned.resident) continue;
        entry.residents[group] = lease;
        keep.insert(lease);
      }
    }
    EndPlan(worker, *old, keep);
  }
  Saw(old.has_value() ? Seen::kReplaced : Seen::kPlans);
  worker.plans[id] = std::move(entry);
  AskResidents(worker, id);
}

void World::AskResidents(Worker& worker, PlanId id) {
  const WorkersPlan& entry = worker.plans.at(id);
  const PlanGrant& grant = entry.plan->grant();
  for (const PlannedGroup& planned : grant.groups) {
    if (!planned.resident) continue;
    if (entry.residents.contains(planned.group.number())) continue;
    Stage(worker,
          {{grant.model, planned.group}, grant.device, absl::Seconds(60)},
          [this, id](Worker& to, std::optional<LeaseGrant> lease) {
            if (!lease.has_value()) return;
            const auto plan = to.plans.find(id);
            // It was cleared meanwhile.
            if (plan == to.plans.end()) return Release(to, lease->id);
            plan->second.residents[lease->key.group.number()] = lease->id;
          });
  }
}

// `keep`: leases that another plan goes on with. A plan that was replaced has
// ended already, and its clearing finds nothing.
void World::EndPlan(Worker& worker, PlanId plan, std::set<LeaseId> keep) {
  const bool replaced = worker.plans.at(plan).asking;
  const std::map<uint32_t, LeaseId> residents = worker.plans.at(plan).residents;
  worker.plans.erase(plan);
  for (const auto& [group, lease] : residents) {
    if (!keep.contains(lease) && worker.leases.contains(lease)) {
      Release(worker, lease);
    }
  }
  if (replaced) return;
  Ask<absl::Status>(
      "clear a plan", worker,
      [this, plan](SessionId session, Done<void> done) {
        engine_->Ask(session, ClearPlanArgs{plan}, std::move(done));
      },
      nullptr);
}

void World::Use(Worker& worker, WorkersPlan& entry, const Numbers& n, Op op) {
  SimPlan& plan = *entry.plan;
  if (entry.asking || plan.faulted()) return;
  hoist::Status status;
  switch (op) {
    case Op::kUse:
      return UseNext(worker, entry, n);
    case Op::kDone:
      if (plan.MayDone()) status = plan.Done(n[1] % plan.staged().size());
      break;
    case Op::kCapture:
      if (plan.MayCapture()) status = plan.Capture();
      break;
    case Op::kReplay:
      // One graph of a plan runs at a time.
      if (plan.captured() && plan.idle()) plan.Replay();
      return;
    default:
      return;
  }
  if (!status.ok()) Violation(Check::kProtocol, status.message());
}

// The next group of the order, or now and then another one.
void World::UseNext(Worker& worker, WorkersPlan& entry, const Numbers& n) {
  SimPlan& plan = *entry.plan;
  if (n[1] % 8 == 0) entry.at += n[2] % plan.order().size();
  const uint32_t group = plan.order()[entry.at % plan.order().size()];
  if (!plan.LaneOf(group).has_value()) {
    const auto lease = entry.residents.find(group);
    ++entry.at;
    if (lease == entry.residents.end()) return;
    const LeaseGrant& grant = worker.leases.at(lease->second);
    Saw(Seen::kResidents);
    return CheckBytes(grant.device, grant.offset, grant.key,
                      absl::StrCat("worker ", worker.number, "'s resident"));
  }
  if (!plan.MayStage()) return;
  const hoist::Status status = plan.Stage(group, n[2]);
  if (status.ok()) {
    ++entry.at;
  } else if (status.code() != hoist::Code::kFailedPrecondition) {
    Violation(Check::kProtocol, status.message());
  }
}

// What is computed under a fault is void.
void World::KernelBegins(uint64_t number, PlanId id, uint32_t group) {
  Worker& worker = *workers_.at(number);
  WorkersPlan& entry = worker.plans.at(id);
  ++entry.running[group];
  if (entry.plan->faulted()) return Saw(Seen::kFaults);
  Saw(entry.plan->captured() ? Seen::kCaptured : Seen::kKernels);
  CheckBytes(entry.plan->grant().device, entry.plan->OffsetOf(group),
             {entry.plan->grant().model, GroupIndex(group)},
             absl::StrCat("worker ", number, "'s kernel, as it begins"));
}

void World::KernelEnds(uint64_t number, PlanId id, uint32_t group) {
  Worker& worker = *workers_.at(number);
  WorkersPlan& entry = worker.plans.at(id);
  if (--entry.running[group] == 0) entry.running.erase(group);
  if (entry.plan->faulted()) return;
  CheckBytes(entry.plan->grant().device, entry.plan->OffsetOf(group),
             {entry.plan->grant().model, GroupIndex(group)},
             absl::StrCat("worker ", number, "'s kernel, as it ends"));
}

// `must`: nothing is in its way, so what does not come was forgotten.
void World::FinishPass(WorkersPlan& entry, bool must) {
  SimPlan& plan = *entry.plan;
  const auto settle = [&] {
    Rest();
    if (plan.streams_idle() || plan.faulted()) return true;
    if (!must) return false;
    Violation(Check::kProgress,
              absl::StrCat("plan ", plan.grant().id.number(),
                           " waits for bytes, with nothing in its way; ",
                           plan.Words(), Picture()));
  };
  if (entry.asking || !settle()) return;
  while (!plan.faulted() && !plan.staged().empty()) {
    if (plan.MayDone()) plan.Done(0).ok();
    if (!settle()) return;
  }
  for (const uint32_t group : plan.order()) {
    if (!plan.LaneOf(group).has_value() || plan.faulted()) continue;
    if (!plan.MayStage()) {
      Violation(Check::kProgress, "a plan's requests are not taken");
    }
    const hoist::Status status = plan.Stage(group, 0);
    if (!status.ok()) Violation(Check::kProtocol, status.message());
    if (!settle()) return;
    if (plan.faulted()) return;
    if (!plan.Done(0).ok()) Violation(Check::kProtocol, "not done");
    if (!settle()) return;
  }
}

// First as it is: the host may be held by others. Then one of them alone.
void World::PlansGoOn() {
  std::vector<std::pair<uint64_t, PlanId>> plans;
  for (const auto& [number, worker] : workers_) {
    for (const auto& [id, entry] : worker->plans) {
      FinishPass(worker->plans.at(id), /*must=*/false);
      plans.push_back({number, id});
    }
  }
  if (plans.empty()) return;
  const auto [kept, plan] = plans[plans.size() / 2];
  std::vector<uint64_t> others;
  for (const auto& [number, worker] : workers_) {
    if (number != kept) others.push_back(number);
  }
  for (const uint64_t number : others) Die(number);
  Worker& worker = *workers_.at(kept);
  while (!worker.pieces.empty()) {
    CloseInPlace(worker, worker.pieces.begin()->first);
  }
  while (!worker.leases.empty()) Release(worker, worker.leases.begin()->first);
  std::vector<PlanId> stuck;
  for (const auto& [id, entry] : worker.plans) {
    if (id != plan) stuck.push_back(id);
  }
  // A worker that is stuck with one of two plans can only end.
  for (const PlanId id : stuck) EndPlan(worker, id);
  for (const auto& [id, model] : all_models_) {
    Admin(Op::kUnpin, {static_cast<uint32_t>(std::distance(
                           all_models_.begin(), all_models_.find(id))),
                       0, 0});
  }
  Rest();
  FinishPass(worker.plans.at(plan), /*must=*/true);
}

}  // namespace hoistd::sim
