#ifndef HOIST_DAEMON_TRACE_EVENT_RING_H_
#define HOIST_DAEMON_TRACE_EVENT_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "daemon/trace/trace_event.h"

namespace hoistd {

// A bounded queue of events without a lock (Vyukov's, of many writers): who
// writes waits for nobody, whatever other writers and the reader do.
//
// Threads:  Push from any; Pop from one at a time.
// Bounds:   `capacity` events; what does not fit is not taken.
class EventRing {
 public:
  // `capacity`: a power of two.
  explicit EventRing(size_t capacity);
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  // False: it is full. Of one thread's events the order is kept.
  bool Push(const TraceEvent& event);
  // False: it is empty, or the next one is just being written.
  bool Pop(TraceEvent& event);

 private:
  struct Cell {
    // Whose turn it is: that of the writer of this number, or, one more, that
    // of its reader.
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
