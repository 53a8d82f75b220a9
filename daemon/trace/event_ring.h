#ifndef HOIST_DAEMON_TRACE_EVENT_RING_H_
#define HOIST_DAEMON_TRACE_EVENT_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "daemon/trace/trace_event.h"

namespace hoistd {

// A bounded lock-free queue of events (Vyukov's, with many writers): a writer
// never waits for other writers or the reader.
//
// Threads:  Push from any; Pop from one at a time.
// Bounds:   `capacity` events; others are rejected.
class EventRing {
 public:
  // `capacity`: a power of two.
  explicit EventRing(size_t capacity);
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  // False: full. Keeps the order of each thread's events.
  bool Push(const TraceEvent& event);
  // False: empty, or the next event is still being written.
  bool Pop(TraceEvent& event);

 private:
  struct Cell {
    // Whose turn it is: the writer with this number, or, with one more, its
    // reader.
    std::atomic<uint64_t> turn = 0;
    TraceEvent event;
  };

  const size_t capacity_;
  const std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<uint64_t> next_push_ = 0;
  alignas(64) uint64_t next_pop_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TRACE_EVENT_RING_H_
