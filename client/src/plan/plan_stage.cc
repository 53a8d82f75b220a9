// Staging under a plan: the hot path, run for every group of every pass.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "client/src/plan/plan.h"

namespace hoist {
namespace {

constexpr std::chrono::milliseconds kLookForTheEnd{10};

Status NotStaged(const GroupEntry& group) {
  return Status(
      Code::kFailedPrecondition,
      "group \"" + group.name + "\" is not staged; each done ends one stage");
}

}  // namespace

Status Plan::Stage(uint32_t number, cuda::Stream stream, const void** data,
                   std::chrono::milliseconds turn_deadline) {
  if (number >= model_->groups().size()) return model_->CheckGroup(number);
  {
    const MutexLock lock(mu_);
    if (turn_deadline.count() > 0) {
      if (Status s = AwaitTurn(number, turn_deadline); !s.ok()) return s;
    }
    if (MayHaveEnded()) return CheckAlive();
    if (info_.learning) {
      Record(number, stream);
      if (MayHaveEnded()) return CheckAlive();
    }
    Group& group = groups_[number];
    if (group.kind != GroupKind::kNot) {
      const Status staged = StagePlanned(group, stream);
      if (staged.ok() && data != nullptr) *data = group.address;
      return staged;
    }
  }
  return StageUnplanned(number, data, stream);
}

// The end of a turn is signalled, but may never come after the plan's end. So
// the wait also polls for the plan's end.
Status Plan::AwaitTurn(uint32_t number, std::chrono::milliseconds deadline) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + deadline;
  bool waited = false;
  while (!MayHaveEnded()) {
    const Group& group = groups_[number];  // The plan may be another by now.
    if (group.kind != GroupKind::kStreamed || group.count > 0) return Status();
    const Status free = turns_->CheckPlaceFree(group.lane);
    if (free.ok()) return free;
    const Clock::time_point now = Clock::now();
    if (now >= end) {
      return Status(Code::kDeadlineExceeded,
                    "no turn came in " + std::to_string(deadline.count()) +
                        " ms: " + free.message());
    }
    if (!std::exchange(waited, true)) ++stats_.host_waits;
    ++awaiting_turn_;
    turn_ended_.WaitUntil(mu_, std::min(end, now + kLookForTheEnd));
    --awaiting_turn_;
  }
  return CheckAlive();
}

Status Plan::StagePlanned(Group& group, cuda::Stream stream) {
  switch (group.kind) {
    case GroupKind::kStreamed:
      return StageStreamed(group, stream);
    case GroupKind::kResident:
      return StageResident(group, stream);
    case GroupKind::kEmpty:
    case GroupKind::kNot:
      break;
  }
  if (group.count++ == 0) ++staged_;
  ++stats_.stages;
  return Status();
}

// Counts the group before the wait, so that the plan is not remade meanwhile.
Status Plan::StageResident(Group& group, cuda::Stream stream) {
  if (group.address == nullptr) {
    group.address = group.resident->address();
  }
  if (group.count++ == 0) ++staged_;
  if (group.address == nullptr) {
    ++stats_.host_waits;
    const std::shared_ptr<PlanResidents> residents = residents_;
    Status here;
    {
      const MutexUnlock unlocked(mu_);
      here = RefuseCapture(stream, "a resident group is still on its way");
      if (here.ok()) here = residents->Await(group.resident);
    }
    if (!here.ok()) {
      if (--group.count == 0) --staged_;
      return MayHaveEnded() ? CheckAlive() : here;
    }
    group.address = group.resident->address();
  }
  ++stats_.stages;
  ++stats_.resident_stages;
  return Status();
}

Status Plan::StageStreamed(Group& group, cuda::Stream stream) {
  const bool first = group.count == 0;
  const Status staged = turns_->Stage(group.lane, stream);
  if (lane_->captured()) {
    // Groups in captured graphs must keep their addresses.
    info_.learning = 0;
  }
  if (!staged.ok()) return first && MayHaveEnded() ? CheckAlive() : staged;
  const PlanLane::Turn turn = turns_->turn(group.lane);
  if (first) {
    ++staged_;
    if (turn.ready) ++stats_.ready_stages;
  }
  ++group.count;
  ++stats_.stages;
  if (order_->on_cpu() && !turn.ready) {
    ++stats_.host_waits;
    PlanLane& lane = *lane_;
    Status came;
    {
      const MutexUnlock unlocked(mu_);
      came = lane.Await(group.lane, turn);
      if (!came.ok()) life_.End(came);
    }
    if (came.ok()) turns_->Came(group.lane);
  }
  return MayHaveEnded() ? CheckAlive() : Status();
}

Status Plan::Done(uint32_t number, cuda::Stream stream) {
  if (number >= model_->groups().size()) return model_->CheckGroup(number);
  {
    const MutexLock lock(mu_);
    if (MayHaveEnded()) return CheckAlive();
    Group& group = groups_[number];
    if (group.count == 0) return NotStaged(model_->groups()[number]);
    if (group.kind == GroupKind::kStreamed) return DoneStreamed(group, stream);
    if (group.kind != GroupKind::kNot) {
      if (--group.count == 0) --staged_;
      return Status();
    }
  }
  return DoneUnplanned(number, stream);
}

Status Plan::DoneStreamed(Group& group, cuda::Stream stream) {
  if (Status s = turns_->Done(group.lane, stream); !s.ok()) return s;
  if (--group.count == 0) --staged_;
  if (awaiting_turn_ > 0) turn_ended_.NotifyAll();
  return Status();
}

Status Plan::RefuseCapture(cuda::Stream stream, const char* what) {
  if (order_->on_cpu()) return Status();
  const Result<bool> capturing = order_->IsCapturing(stream);
  if (!capturing.ok()) return capturing.status();
  if (!capturing.value()) return Status();
  return Status(Code::kFailedPrecondition,
                std::string(what) +
                    ", which a CUDA graph cannot hold; stage it once before "
                    "the capture, or put it into the plan's order");
}

Status Plan::StageUnplanned(uint32_t number, const void** data,
                            cuda::Stream stream) {
  if (Status s = RefuseCapture(stream,
                               "a group outside the plan is staged by "
                               "message");
      !s.ok()) {
    return s;
  }
  const MutexLock turns(unplanned_mu_);
  {
    // From here on the plan is not remade.
    const MutexLock lock(mu_);
    Group& group = groups_[number];
    if (group.kind != GroupKind::kNot) {
      return Status(Code::kAborted,
                    "the plan was made anew meanwhile; stage again");
    }
    if (group.count++ == 0) ++staged_;
    ++stats_.unplanned;
  }
  auto it = unplanned_.find(number);
  if (it == unplanned_.end()) {
    Result<LeaseGrant> lease =
        session_->Stage(*model_, number, options_.device,
                        std::chrono::milliseconds(options_.deadline_ms));
    const MutexLock lock(mu_);
    if (!lease.ok()) {
      if (--groups_[number].count == 0) --staged_;
      return MayHaveEnded() ? CheckAlive() : lease.status();
    }
    ++stats_.host_waits;
    it = unplanned_
             .emplace(number, PlanResidents::Held{lease->id, lease->address})
             .first;
  }
  if (data != nullptr) *data = it->second.address;
  return Status();
}

Status Plan::DoneUnplanned(uint32_t number, cuda::Stream stream) {
  if (Status s = RefuseCapture(stream,
                               "a group outside the plan is ended by "
                               "message");
      !s.ok()) {
    return s;
  }
  // hoistd cannot see a stream's progress with such a group.
  if (Status s = order_->Synchronize(stream); !s.ok()) return s;
  const MutexLock turns(unplanned_mu_);
  {
    const MutexLock lock(mu_);
    Group& group = groups_[number];
    if (group.kind != GroupKind::kNot || group.count == 0) {
      return NotStaged(model_->groups()[number]);
    }
    if (--group.count > 0) return Status();
    --staged_;
  }
  const auto it = unplanned_.find(number);
  if (it == unplanned_.end()) return Status();
  const uint64_t lease = it->second.lease;
  unplanned_.erase(it);
  return session_->Release(lease);
}

}  // namespace hoist
