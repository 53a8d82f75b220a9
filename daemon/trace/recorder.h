// Records what moves and what waits, for `hoistctl trace`, while somebody asks.
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

// What was recorded since it was taken last, in about the order in which it
// ended.
struct TraceBatch {
  // Of what `events` name, and of what they may name later.
  std::vector<TraceSession> sessions;
  std::vector<TracePlan> plans;
  std::vector<TraceModel> models;
  std::vector<TraceGroup> groups;
  std::vector<TraceEvent> events;
  uint64_t dropped = 0;  // Events that did not fit, since the beginning.
  uint64_t unnamed = 0;  // Groups whose names did not.

  // There is nothing but what it counts.
  bool empty() const {
    return events.empty() && sessions.empty() && plans.empty() &&
           models.empty() && groups.empty();
  }
};

// There is one for all of hoistd. Off, which it is but for recordings, it
// costs those who have something to tell one relaxed load.
//
// Threads:  thread-safe. Add takes no lock. The names have one, which hot paths
//           do not meet: the engine's thread names, a recording's reader takes.
// Owns:     nothing but while something is recorded. Borrows the clock.
// Bounds:   one recording at a time; kMostEvents that were not taken yet, and
//           kMostGroups named groups a recording.
class TraceRecorder {
 public:
  static constexpr size_t kMostEvents = size_t{1} << 16;  // 6 MiB.
  static constexpr size_t kMostGroups = size_t{1} << 16;

  explicit TraceRecorder(const Clock& clock) : clock_(clock) {}
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;
  // Nothing is recorded any more.
  ~TraceRecorder();

  // Something is recorded: look here before anything else.
  bool on() const { return (gate_.load(std::memory_order_relaxed) & 1) != 0; }
  // Of the recording that runs, or ran last; 0: there was none.
  uint64_t number() const { return number_.load(std::memory_order_relaxed); }
  absl::Time Now() const { return clock_.Now(); }

  // Nothing happens where nothing is recorded.
  void Add(const TraceEvent& event);
  void Name(TraceSession session) ABSL_LOCKS_EXCLUDED(mu_);
  void Name(const TracePlan& plan) ABSL_LOCKS_EXCLUDED(mu_);
  // Copies the names if they are new.
  void Name(GroupKey key, const std::string& model, const std::string& group)
      ABSL_LOCKS_EXCLUDED(mu_);

  // ResourceExhausted: something is recorded already.
  absl::StatusOr<std::unique_ptr<TraceRecording>> Start()
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class TraceRecording;

  // Lets no event in any more, and waits for those that are being written.
  void CloseGate();
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  const Clock& clock_;
  // Bit 0: events come in. The rest: twice those who are writing one just now.
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

// Whether to tell `recorder`, which may be nullptr.
inline bool Traces(const TraceRecorder* recorder) {
  return recorder != nullptr && recorder->on();
}

// What one caller has recorded, from Start until Stop; its destructor stops it
// too, and drops what was not taken.
//
// Threads:  one at a time.
// Owns:     what was recorded. Borrows the recorder.
class TraceRecording {
 public:
  explicit TraceRecording(TraceRecorder* recorder)
      : recorder_(recorder), started_(recorder->Now()) {}
  TraceRecording(const TraceRecording&) = delete;
  TraceRecording& operator=(const TraceRecording&) = delete;
  ~TraceRecording() { recorder_->Stop(); }

  // Nothing is recorded any more; what was can still be taken.
  void Stop();
  // At most so many events. What ended before the recording began is left out,
  // and what only began before it begins with it.
  TraceBatch Take(size_t most);

  absl::Time started() const { return started_; }
  // When it was stopped, or now.
  absl::Time ended() const;

 private:
  TraceRecorder* const recorder_;
  const absl::Time started_;
  absl::Time ended_ = absl::InfiniteFuture();
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TRACE_RECORDER_H_
