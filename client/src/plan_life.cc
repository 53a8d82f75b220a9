#include "client/src/plan_life.h"

#include <pthread.h>

#include <chrono>

#include "client/src/signals_blocked.h"

namespace hoist {

PlanLife::~PlanLife() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Status PlanLife::why() const {
  if (!ended()) return Status();
  const std::lock_guard<std::mutex> lock(mu_);
  return why_;
}

void PlanLife::End(const Status& why) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (ended()) return;
  why_ = why;
  // Before the waits are let through: who then looks sees the end.
  ended_.store(true, std::memory_order_seq_cst);
  if (lane_ != nullptr) lane_->Release();
  changed_.notify_all();
}

void PlanLife::Watch(PlanLane* lane) {
  if (lane != nullptr && !thread_.joinable()) {
    const SignalsBlocked blocked;  // The new thread inherits it.
    thread_ = std::thread([this] { LetThrough(); });
  }
  const std::lock_guard<std::mutex> lock(mu_);
  lane_ = lane;
  if (lane_ != nullptr && ended()) lane_->Release();
}

void PlanLife::LetThrough() {
  pthread_setname_np(pthread_self(), "hoist-plan");
  std::unique_lock<std::mutex> lock(mu_);
  while (!stopping_) {
    if (!ended()) {
      changed_.wait(lock);
      continue;
    }
    if (lane_ != nullptr) lane_->Release();
    changed_.wait_for(lock, std::chrono::milliseconds(1));
  }
}

}  // namespace hoist
