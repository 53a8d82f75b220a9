// Recordings of the times in which a link copies nothing.
#ifndef HOIST_DAEMON_LINK_GAP_TRACE_H_
#define HOIST_DAEMON_LINK_GAP_TRACE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "daemon/trace/recorder.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Divides the time without a copy or grant in flight among its causes. A gap is
// recorded with the cause that had most of it, at its end; one that lasts is
// recorded at once, too.
//
// The thread sees that copies have ended, not when. If it looked late, they
// ended when the link's rate says, since its last look.
//
// Threads:  the link's alone.
// Owns:     nothing. Borrows the recorder, which may be nullptr. Without a
//           recording, calls have no effect.
class GapTrace {
 public:
  // Shorter gaps are not recorded.
  static constexpr absl::Duration kLeast = absl::Milliseconds(1);
  // A rest that is longer than it was to be, by more than this: the thread was
  // not run. A cause only if a copy was due by then.
  static constexpr absl::Duration kLate = absl::Microseconds(250);

  struct Gap {
    absl::Time begin;
    absl::Time end;
  };

  GapTrace(TraceRecorder* recorder, DeviceIndex device)
      : recorder_(recorder), device_(device) {}

  // True: a recording is under way that has seen this turn's beginning.
  bool on() const {
    return Traces(recorder_) && recording_ == recorder_->number();
  }
  // Nothing was in flight at the last look.
  bool idle() const { return on() && state_.idle; }

  // A turn begins.
  void Woke();
  // What the thread has done since the last call, until `now`. `busy`: a piece
  // queued before that is in flight. Returns the time at which the last of
  // those ended, or `now`.
  absl::Time Did(TraceWhy what, bool busy, absl::Time now);
  // A piece is in flight, from now on. Returns the gap that this ends.
  std::optional<Gap> Began(uint64_t bytes, double bytes_per_second);
  // A turn ends, and the next one begins after `rest` or earlier. `why` nothing
  // is in flight. To be called if idle().
  void Rests(TraceWhy why, absl::Duration rest);

 private:
  struct State {
    bool idle = false;
    // Accounted for until then; while busy, the last look.
    absl::Time at = absl::InfinitePast();
    absl::Time woke = absl::InfinitePast();
    absl::Time due = absl::InfinitePast();  // The end of what is in flight.
    // Of the gap.
    absl::Time begin = absl::InfinitePast();
    std::array<absl::Duration, kTraceWhys> spent = {};  // By cause.
    absl::Duration late = absl::ZeroDuration();  // Perhaps with a copy due.
    TraceWhy why = TraceWhy::kNotDue;            // Of the rest.
    absl::Duration rest = absl::ZeroDuration();
    std::optional<TraceWhy> told;  // As last recorded.
  };

  void Spend(TraceWhy why, absl::Time until);
  // What had most of the gap.
  TraceWhy Cause() const;
  void Tell(absl::Time end, bool open) const;

  TraceRecorder* const recorder_;
  const DeviceIndex device_;
  uint64_t recording_ = 0;
  State state_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_GAP_TRACE_H_
