// Recordings of a link's copies.
#ifndef HOIST_DAEMON_LINK_COPY_TRACE_H_
#define HOIST_DAEMON_LINK_COPY_TRACE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "daemon/plan/link_share.h"
#include "daemon/trace/recorder.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Bytes of one group in a piece.
struct TracedPart {
  GroupKey key;
  SessionId session;  // Of the plan; 0: no plan.
  uint64_t bytes = 0;
};

// Adjacent bytes of one group are joined into one part.
void AddPart(GroupKey key, SessionId session, uint64_t bytes,
             std::vector<TracedPart>& parts);

// Records the times of copies. Copies of one stream run in sequence: a piece
// begins at the end of the one before it, or when it was queued. The times
// between pieces seen to end at once, and between parts of a piece, are
// estimated from their bytes.
//
// Threads:  the link's alone.
// Owns:     nothing. Borrows the recorder, which may be nullptr.
class CopyTrace {
 public:
  CopyTrace(TraceRecorder* recorder, DeviceIndex device)
      : recorder_(recorder), device_(device) {}

  TraceRecorder* recorder() const { return recorder_; }

  // `pieces`, from CopyQueue, ended before `now` and after the last call.
  template <typename Pieces>
  void Ended(const Pieces& pieces, bool failed, absl::Time now) {
    const absl::Time before = last_;
    if (!pieces.empty()) last_ = now;
    if (!Traces(recorder_)) return;
    uint64_t left = 0;
    for (const auto& piece : pieces) left += piece.bytes;
    absl::Time at = before;
    for (const auto& piece : pieces) {
      at = std::max(at, piece.queued);
      const absl::Time end =
          std::min(Share(at, now, piece.bytes, left), piece.ended);
      left -= piece.bytes;
      Tell(piece.party, piece.bytes, piece.parts, failed, at, end);
      at = end;
    }
  }

 private:
  // The end of the first `bytes` of `left`, in proportion to the time to `end`.
  static absl::Time Share(absl::Time begin, absl::Time end, uint64_t bytes,
                          uint64_t left);
  void Tell(const LinkParty& party, uint64_t bytes,
            const std::vector<TracedPart>& parts, bool failed, absl::Time begin,
            absl::Time end);

  TraceRecorder* const recorder_;
  const DeviceIndex device_;
  absl::Time last_ = absl::InfinitePast();  // End of the last piece.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_COPY_TRACE_H_
