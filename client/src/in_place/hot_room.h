// How much device memory hot pieces may take: the budget, or what hoistd gives
// of it.
#ifndef HOIST_CLIENT_SRC_IN_PLACE_HOT_ROOM_H_
#define HOIST_CLIENT_SRC_IN_PLACE_HOT_ROOM_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "hoist/shared/status.h"

namespace hoist {

// Threads: one at a time.
class HotRoom {
 public:
  using Clock = std::chrono::steady_clock;

  explicit HotRoom(uint64_t budget) : budget_(budget) {}

  uint64_t budget() const { return budget_; }
  // All of it may be asked for at once.
  void SetBudget(uint64_t budget) { *this = HotRoom(budget); }
  // Beside others' bytes in the budget.
  uint64_t Beside(uint64_t others) const {
    return std::min(budget_ - std::min(budget_, others), usable_);
  }

  void Given() { refusal_ = Status(); }
  // hoistd gave no more than `usable`; to be asked again then.
  void Refused(Status why, uint64_t usable, Clock::time_point again) {
    refusal_ = std::move(why);
    usable_ = usable;
    again_ = again;
  }
  // True, once: hoistd may be asked again.
  bool IsDue(Clock::time_point now) {
    if (usable_ == UINT64_MAX || now < again_) return false;
    usable_ = UINT64_MAX;
    return true;
  }
  // The last one, unless all was given since.
  const Status& refusal() const { return refusal_; }

 private:
  uint64_t budget_ = 0;
  uint64_t usable_ = UINT64_MAX;
  Clock::time_point again_;
  Status refusal_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IN_PLACE_HOT_ROOM_H_
