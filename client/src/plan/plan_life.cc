#include "client/src/plan/plan_life.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "client/src/base/start_thread.h"

namespace hoist {

PlanLife::~PlanLife() {
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

Status PlanLife::why() const {
  if (!ended()) return Status();
  const MutexLock lock(mu_);
  return why_;
}

void PlanLife::End(const Status& why) {
  const MutexLock lock(mu_);
  EndLocked(why);
}

void PlanLife::EndLocked(const Status& why) {
  if (ended()) return;
  why_ = why;
  // Set before the waits are let through, so that a released waiter sees the
  // end.
  ended_.store(true, std::memory_order_seq_cst);
  if (lane_ != nullptr) lane_->Release();
  changed_.NotifyAll();
  TellLocked();
}

void PlanLife::Tell() {
  const MutexLock lock(mu_);
  TellLocked();
}

// A full eventfd is readable anyway.
void PlanLife::TellLocked() {
  told_ = true;
  if (event_.valid()) (void)eventfd_write(event_.get(), 1);
}

Result<int> PlanLife::EventFd() {
  const MutexLock lock(mu_);
  if (!event_.valid()) {
    event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event_.valid()) return ErrnoStatus(errno, "make an eventfd");
    if (told_) TellLocked();  // Of what was before.
  }
  return event_.get();
}

Status PlanLife::SignalOn(int event) {
  UniqueFd own(fcntl(event, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) return ErrnoStatus(errno, "duplicate an eventfd");
  const MutexLock lock(mu_);
  event_ = std::move(own);
  if (told_) TellLocked();
  return Status();
}

void PlanLife::PlansEnded(std::span<const uint64_t> plans, const Status& why) {
  if (std::find(plans.begin(), plans.end(), plan_.load()) == plans.end()) {
    return;
  }
  // The lane's fault may be more specific.
  Status told;
  {
    const MutexLock lock(mu_);
    if (lane_ != nullptr) told = lane_->Fault();
  }
  End(told.ok() ? why : told);
}

Status PlanLife::Watch(PlanLane* lane) {
  if (lane != nullptr && !thread_.joinable()) {
    Status started = StartThread(&thread_, [this] { LetThrough(); });
    if (!started.ok()) return started;
  }
  const MutexLock lock(mu_);
  lane_ = lane;
  if (lane_ != nullptr && ended()) lane_->Release();
  return Status();
}

void PlanLife::Retire(std::unique_ptr<PlanLane> lane) {
  lane->Retire();
  const MutexLock lock(mu_);
  retired_.push_back(std::move(lane));
  changed_.NotifyAll();
}

void PlanLife::DropRetired() {
  std::vector<std::unique_ptr<PlanLane>> retired;
  const MutexLock lock(mu_);
  retired.swap(retired_);
}

void PlanLife::LetThrough() {
  pthread_setname_np(pthread_self(), "hoist-plan");
  const MutexLock lock(mu_);
  while (!stopping_) {
    if (!ended() && retired_.empty()) {
      changed_.Wait(mu_);
      continue;
    }
    LookAtRetired();
    if (lane_ != nullptr && ended()) lane_->Release();
    changed_.WaitUntil(mu_, std::chrono::steady_clock::now() +
                                std::chrono::milliseconds(ended() ? 1 : 10));
  }
}

void PlanLife::LookAtRetired() {
  for (const std::unique_ptr<PlanLane>& lane : retired_) {
    if (!lane->UsedSinceRetired()) continue;
    EndLocked(Status(Code::kFailedPrecondition,
                     "a CUDA graph was launched that was captured before the "
                     "plan was made anew, as by another budget: it read other "
                     "bytes than its groups', and what it gave is void; "
                     "capture it anew"));
    lane->Retire();
  }
}

}  // namespace hoist
