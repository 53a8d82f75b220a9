// Records transfers and waits for `hoistctl trace`, while a caller asks for it.
#ifndef HOIST_DAEMON_TRACE_RECORDER_H_
#define HOIST_DAEMON_TRACE_RECORDER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/trace/event_ring.h"
#include "daemon/trace/trace_event.h"
#include "daemon/types/ids.h"

namespace hoistd {

class TraceRecording;

// The records since the last call, in roughly the order of their ends.
struct TraceBatch {
  // Names for these `events`, and perhaps for later ones.
  std::vector<TraceSession> sessions;
  std::vector<TracePlan> plans;
  std::vector<TraceModel> models;
  std::vector<TraceGroup> groups;
  std::vector<TraceEvent> events;
  uint64_t dropped = 0;  // Events that did not fit, since the beginning.
  uint64_t unnamed = 0;  // Groups whose names did not.

  // No events or names; counters may be set.
  bool empty() const {
    return events.empty() && sessions.empty() && plans.empty() &&
           models.empty() && groups.empty();
  }
};

// One for all of hoistd. While off, the default, it costs each caller one
// relaxed load.
//
// Threads:  thread-safe. Add takes no lock. Names have one, which hot paths
//           do not take: the engine's thread names, a recording's reader takes.
// Owns:     nothing except during a recording. Borrows the clock.
// Bounds:   one recording at a time; kMostEvents not yet taken, and kMostGroups
//           named groups per recording.
class TraceRecorder {
 public:
  static constexpr size_t kMostEvents = size_t{1} << 16;  // 6 MiB.
  static constexpr size_t kMostGroups = size_t{1} << 16;

  explicit TraceRecorder(const Clock& clock) : clock_(clock) {}
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;
  // No recording is under way.
  ~TraceRecorder();

  // True: a recording is under way. Check this first.
  bool on() const { return (gate_.load(std::memory_order_relaxed) & 1) != 0; }
  // The number of the current or last recording; 0: none yet.
  uint64_t number() const { return number_.load(std::memory_order_relaxed); }
  absl::Time Now() const { return clock_.Now(); }

  // No effect without a recording.
  void Add(const TraceEvent& event);
  void Name(TraceSession session) ABSL_LOCKS_EXCLUDED(mu_);
  void Name(const TracePlan& plan) ABSL_LOCKS_EXCLUDED(mu_);
  // Copies the names if they are new.
  void Name(GroupKey key, const std::string& model, const std::string& group)
      ABSL_LOCKS_EXCLUDED(mu_);

  // ResourceExhausted: another recording is under way.
  absl::StatusOr<std::unique_ptr<TraceRecording>> Start()
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class TraceRecording;

  // Admits no more events, and waits for those that are being written.
  void CloseGate();
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  const Clock& clock_;
  // Bit 0: events are admitted. The rest: twice the number of current writers.
  std::atomic<uint64_t> gate_ = 0;
  std::atomic<uint64_t> number_ = 0;
  std::atomic<uint64_t> dropped_ = 0;
  std::unique_ptr<EventRing> ring_;  // Changed while the gate is closed.

  absl::Mutex mu_;
  bool recording_ ABSL_GUARDED_BY(mu_) = false;
  TraceBatch names_ ABSL_GUARDED_BY(mu_);  // Not taken yet; without events.
  absl::flat_hash_set<ModelId> models_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<GroupKey> groups_ ABSL_GUARDED_BY(mu_);
};

// Whether to record; `recorder` may be nullptr.
inline bool Traces(const TraceRecorder* recorder) {
  return recorder != nullptr && recorder->on();
}

// One caller's recording, from Start until Stop. Its destructor stops it, too,
// and drops remaining records.
//
// Threads:  one at a time.
// Owns:     the records. Borrows the recorder.
class TraceRecording {
 public:
  explicit TraceRecording(TraceRecorder* recorder)
      : recorder_(recorder), started_(recorder->Now()) {}
  TraceRecording(const TraceRecording&) = delete;
  TraceRecording& operator=(const TraceRecording&) = delete;
  ~TraceRecording() { recorder_->Stop(); }

  // Records nothing more; existing records can still be taken.
  void Stop();
  // At most `most` events. Omits events that ended before the recording, and
  // cuts off the earlier part of the others.
  TraceBatch Take(size_t most);

  absl::Time started() const { return started_; }
  // The time of the stop, or now.
  absl::Time ended() const;

 private:
  TraceRecorder* const recorder_;
  const absl::Time started_;
  absl::Time ended_ = absl::InfiniteFuture();
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TRACE_RECORDER_H_
