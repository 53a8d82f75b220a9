// What is recorded of a link's copies.
#ifndef HOIST_DAEMON_LINK_COPY_TRACE_H_
#define HOIST_DAEMON_LINK_COPY_TRACE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "daemon/plan/link_share.h"
#include "daemon/terms/ids.h"
#include "daemon/trace/recorder.h"

namespace hoistd {

// Bytes of one group in a piece.
struct TracedPart {
  GroupKey key;
  SessionId session;  // Whose plan it is for; 0: no plan's.
  uint64_t bytes = 0;
};

// What follows of the same group is one part with it.
void AddPart(GroupKey key, SessionId session, uint64_t bytes,
             std::vector<TracedPart>& parts);

// Tells what was copied when. Copies of one stream run one after the other, so
// a piece begins when the one before it has ended, or when it was queued. Of
// several that are seen to have ended at once, and of the parts of one, the
// times between are guessed from their bytes.
//
// Threads:  the link's alone.
// Owns:     nothing. Borrows the recorder, which may be nullptr.
class CopyTrace {
 public:
  CopyTrace(TraceRecorder* recorder, DeviceIndex device)
      : recorder_(recorder), device_(device) {}

  TraceRecorder* recorder() const { return recorder_; }

  // `pieces`, as CopyQueue tells of them, ended before `now` and after the last
  // call.
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
      const absl::Time end = Share(at, now, piece.bytes, left);
      left -= piece.bytes;
      Tell(piece.party, piece.bytes, piece.parts, failed, at, end);
      at = end;
    }
  }

 private:
  // When `bytes` of the `left` ones have had their part of the time to `end`.
  static absl::Time Share(absl::Time begin, absl::Time end, uint64_t bytes,
                          uint64_t left);
  void Tell(const LinkParty& party, uint64_t bytes,
            const std::vector<TracedPart>& parts, bool failed, absl::Time begin,
            absl::Time end);

  TraceRecorder* const recorder_;
  const DeviceIndex device_;
  absl::Time last_ = absl::InfinitePast();  // A piece ended.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_COPY_TRACE_H_
