#include "daemon/trace/event_ring.h"

#include "daemon/base/check.h"

namespace hoistd {

EventRing::EventRing(size_t capacity)
    : capacity_(capacity), cells_(new Cell[capacity]) {
  HOIST_CHECK(capacity > 0 && (capacity & (capacity - 1)) == 0);
  for (size_t i = 0; i < capacity; ++i) {
    cells_[i].turn.store(i, std::memory_order_relaxed);
  }
}

bool EventRing::Push(const TraceEvent& event) {
  uint64_t at = next_push_.load(std::memory_order_relaxed);
  while (true) {
    Cell& cell = cells_[at & (capacity_ - 1)];
    const uint64_t turn = cell.turn.load(std::memory_order_acquire);
    if (turn == at) {
      if (next_push_.compare_exchange_weak(at, at + 1,
                                           std::memory_order_relaxed)) {
        cell.event = event;
        cell.turn.store(at + 1, std::memory_order_release);
        return true;
      }
    } else if (turn < at) {
      return false;  // Full: this cell's last event is unread.
    } else {
      at = next_push_.load(std::memory_order_relaxed);
    }
  }
}

bool EventRing::Pop(TraceEvent& event) {
  Cell& cell = cells_[next_pop_ & (capacity_ - 1)];
  if (cell.turn.load(std::memory_order_acquire) != next_pop_ + 1) return false;
  event = cell.event;
  cell.turn.store(next_pop_ + capacity_, std::memory_order_release);
  ++next_pop_;
  return true;
}

}  // namespace hoistd
