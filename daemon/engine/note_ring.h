#ifndef HOIST_DAEMON_ENGINE_NOTE_RING_H_
#define HOIST_DAEMON_ENGINE_NOTE_RING_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/engine/engine_api.h"

namespace hoistd {

// Notes for `status`: those of hoistd's start, and the newest later ones.
// Workers can cause notes, so their number is bounded.
//
// Threads:  thread-safe.
// Bounds:   kMost notes besides those of the start.
class NoteRing {
 public:
  static constexpr size_t kMost = 32;

  explicit NoteRing(std::vector<std::string> of_the_start)
      : of_the_start_(std::move(of_the_start)) {}

  void Add(std::string note) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    newest_.push_back(std::move(note));
    if (newest_.size() <= kMost) return;
    newest_.pop_front();
    ++dropped_;
  }

  // Oldest first.
  NodeNotes All() const ABSL_LOCKS_EXCLUDED(mu_) {
    NodeNotes all;
    all.notes = of_the_start_;
    absl::MutexLock lock(&mu_);
    all.notes.insert(all.notes.end(), newest_.begin(), newest_.end());
    all.dropped = dropped_;
    return all;
  }

 private:
  const std::vector<std::string> of_the_start_;
  mutable absl::Mutex mu_;
  std::deque<std::string> newest_ ABSL_GUARDED_BY(mu_);
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_NOTE_RING_H_
