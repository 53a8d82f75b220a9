#include "client/src/plan/plan_residents.h"

#include <pthread.h>

#include <new>
#include <utility>

#include "client/src/base/start_thread.h"
#include "hoist/hoist_c.h"

namespace hoist {

PlanResidents::PlanResidents(Options options,
                             const std::vector<uint32_t>& groups, Leases held)
    : options_(std::move(options)) {
  for (const uint32_t group : groups) {
    Slot& slot = slots_.emplace_back(group);
    const auto it = held.find(group);
    if (it == held.end()) continue;
    slot.lease_ = it->second.lease;
    slot.address_.store(it->second.address);
    held.erase(it);
  }
  std::vector<uint64_t> leftover;
  for (const auto& [group, lease] : held) leftover.push_back(lease.lease);
  options_.session->PostReleases(leftover);
}

PlanResidents::~PlanResidents() {
  std::vector<uint64_t> leases;
  for (const auto& [group, held] : Take()) leases.push_back(held.lease);
  options_.session->PostReleases(leases);
}

void PlanResidents::Start() {
  std::vector<uint32_t> missing;
  for (const Slot& slot : slots_) {
    if (slot.address() == nullptr) missing.push_back(slot.group_);
  }
  if (missing.empty()) return;
  // Best effort: if it is refused, the stages are slower, or report the reason.
  (void)options_.session->Prefetch(*options_.model, missing, HOIST_TIER_DEVICE,
                                   options_.device);
  (void)StartThread(&thread_, [this] { StageAll(); });
}

void PlanResidents::StageAll() {
  pthread_setname_np(pthread_self(), "hoist-residents");
  for (Slot& slot : slots_) {
    if (stopping_) return;
    // A caller that needs the group tries again, and gets the error.
    (void)Await(&slot, &stopping_);
  }
}

Status PlanResidents::Await(Slot* slot, const std::atomic<bool>* cancelled) {
  {
    const MutexLock lock(mu_);
    while (slot->staging_) changed_.Wait(mu_);
    if (slot->address() != nullptr) return Status();
    slot->staging_ = true;
  }
  Result<LeaseGrant> lease = Status();
  try {
    lease =
        options_.session->Stage(*options_.model, slot->group_, options_.device,
                                options_.deadline, cancelled);
  } catch (const std::bad_alloc&) {
    lease = Status(Code::kResourceExhausted, "out of memory");
  }
  const MutexLock lock(mu_);
  slot->staging_ = false;
  changed_.NotifyAll();
  if (!lease.ok()) return lease.status();
  slot->lease_ = lease->id;
  slot->address_.store(lease->address, std::memory_order_release);
  return Status();
}

void PlanResidents::Stop() {
  stopping_ = true;
  options_.session->WakeCalls();
  if (thread_.joinable()) thread_.join();
}

PlanResidents::Leases PlanResidents::Take() {
  Stop();
  Leases leases;
  const MutexLock lock(mu_);
  for (Slot& slot : slots_) {
    if (slot.address() == nullptr) continue;
    leases[slot.group_] = {slot.lease_, slot.address()};
    slot.address_.store(nullptr);
  }
  return leases;
}

}  // namespace hoist
