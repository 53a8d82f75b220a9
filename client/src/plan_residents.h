// A plan's resident groups: ordinary leases, held for as long as it stands.
#ifndef HOIST_CLIENT_SRC_PLAN_RESIDENTS_H_
#define HOIST_CLIENT_SRC_PLAN_RESIDENTS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/src/session.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// Threads:  thread-safe. A thread of its own stages them in order; who needs
//           one earlier stages it himself.
// Owns:     the leases, which go with it.
class PlanResidents {
 public:
  // A group's lease; stays put.
  class Slot {
   public:
    explicit Slot(uint32_t group) : group_(group) {}
    // nullptr: not here yet.
    const void* address() const {
      return address_.load(std::memory_order_acquire);
    }

   private:
    friend class PlanResidents;
    const uint32_t group_;
    std::atomic<const void*> address_{nullptr};
    bool staging_ = false;  // Guarded by the owner's mu_, as the next.
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

  // `held`: leases to go on with; those of other groups are released.
  PlanResidents(Options options, const std::vector<uint32_t>& groups,
                Leases held);
  PlanResidents(const PlanResidents&) = delete;
  PlanResidents& operator=(const PlanResidents&) = delete;
  ~PlanResidents();

  // Asks hoistd for what is not here, and starts the thread.
  void Start();
  // By index into `groups`.
  Slot* slot(size_t index) { return &slots_[index]; }
  // Waits until the group is here. The error is its stage's; a later call
  // tries again.
  Status Await(Slot* slot) { return Await(slot, nullptr); }
  // Gives the leases up to the caller.
  Leases Take();

 private:
  Status Await(Slot* slot, const std::atomic<bool>* cancelled);
  void StageAll();
  // Waits for nothing that hoistd does: a stage that has no space yet is given
  // up.
  void Stop();

  const Options options_;
  std::deque<Slot> slots_;
  Mutex mu_;
  CondVar changed_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PLAN_RESIDENTS_H_
