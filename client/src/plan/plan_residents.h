// A plan's resident groups: ordinary leases, held until its end.
#ifndef HOIST_CLIENT_SRC_PLAN_PLAN_RESIDENTS_H_
#define HOIST_CLIENT_SRC_PLAN_PLAN_RESIDENTS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/src/session/session.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// Threads:  thread-safe. Its own thread stages them in order; a caller that
//           needs one earlier stages it itself.
// Owns:     the leases, which end with it.
class PlanResidents {
 public:
  // A group's lease, at a stable address.
  class Slot {
   public:
    explicit Slot(uint32_t group) : group_(group) {}
    // nullptr: not yet staged.
    const void* address() const {
      return address_.load(std::memory_order_acquire);
    }

   private:
    friend class PlanResidents;
    const uint32_t group_;
    std::atomic<const void*> address_{nullptr};
    bool staging_ = false;  // Guarded by the owner's mu_, like the next.
    uint64_t lease_ = 0;
  };
  struct Held {
    uint64_t lease = 0;
    const void* address = nullptr;
  };
  using Leases = std::unordered_map<uint32_t, Held>;  // By group.
  struct Options {
    std::shared_ptr<Session> session;
    ModelPtr model;
    uint32_t device = 0;
    std::chrono::milliseconds deadline{0};
  };

  // `held`: leases to keep; those of other groups are released.
  PlanResidents(Options options, const std::vector<uint32_t>& groups,
                Leases held);
  PlanResidents(const PlanResidents&) = delete;
  PlanResidents& operator=(const PlanResidents&) = delete;
  ~PlanResidents();

  // Prefetches the missing groups, and starts the thread.
  void Start();
  // By index into `groups`.
  Slot* slot(size_t index) { return &slots_[index]; }
  // Waits until the group is staged. The error is its stage's; a later call
  // retries.
  Status Await(Slot* slot) { return Await(slot, nullptr); }
  // Gives the leases up to the caller.
  Leases Take();

 private:
  Status Await(Slot* slot, const std::atomic<bool>* cancelled);
  void StageAll();
  // Does not wait for hoistd: cancels a stage that has no space yet.
  void Stop();

  const Options options_;
  std::deque<Slot> slots_;
  Mutex mu_;
  CondVar changed_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_PLAN_RESIDENTS_H_
