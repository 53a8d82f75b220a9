// The link's interface to its customers.
#ifndef HOIST_DAEMON_LINK_LINK_CUSTOMER_H_
#define HOIST_DAEMON_LINK_LINK_CUSTOMER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/link/copy_trace.h"
#include "daemon/trace/trace_event.h"
#include "daemon/types/device.h"
#include "daemon/types/ranges.h"

namespace hoistd {

// One unit of copying: runs of bytes in one direction, and the words after
// them. For a grant, only the number of bytes.
struct LinkPiece {
  std::vector<HostRun> runs;  // To the device, in order; none is empty.
  // Or one run from the device.
  uint64_t from_offset = 0;
  std::span<std::byte> to;
  uint64_t bytes = 0;            // Sum of the runs.
  std::vector<WordWrite> words;  // Written after the bytes.
  // The bytes' groups, in order; empty without a recording.
  std::vector<TracedPart> parts;

  // Joins runs adjacent on both host and device.
  void Add(uint64_t to_offset, std::span<const std::byte> from) {
    bytes += from.size();
    if (!runs.empty()) {
      HostRun& last = runs.back();
      if (last.to_offset + last.from.size() == to_offset &&
          last.from.data() + last.from.size() == from.data()) {
        last.from = {last.from.data(), last.from.size() + from.size()};
        return;
      }
    }
    runs.push_back({to_offset, from});
  }
};

// Threads:  called on the link's thread only.
// Owns:     the memory its pieces name, until they have ended.
class LinkCustomer {
 public:
  virtual ~LinkCustomer() = default;

  // Reads news. True: there was some.
  virtual bool Look(absl::Time now) = 0;
  // It has bytes to copy now.
  virtual bool HasPiece() = 0;
  // Its next piece, of 1 to `at_most` bytes, queued at once.
  virtual LinkPiece TakePiece(uint64_t at_most) = 0;
  // The last piece taken met an error. `queued`: part of it is in flight, and
  // Ended follows; else it has ended.
  virtual void Refused(const absl::Status& why, bool queued) = 0;
  // The oldest piece in flight has ended; or, with an error, never will.
  virtual void Ended(const absl::Status& status, absl::Time now) = 0;
  // No more copies of this customer are possible.
  virtual void Fail(absl::Status why) = 0;

  // Nothing changes without a CPU's wake-up, or before deadline(). `held_back`:
  // its copies wait for their turn.
  virtual bool quiet(bool held_back) const = 0;
  // The time of its next look without news; or InfiniteFuture.
  virtual absl::Time deadline() const = 0;
  // For recordings, while it has no piece, and none in flight.
  virtual TraceWhy why_idle() const = 0;
  // The link's thread may sleep from now on: changes must wake it.
  virtual void SetSleeping(bool sleeping) = 0;
};

// A customer that copies on its own streams: its pieces are grants. A grant
// stays among the pieces in flight until it is done or its time is over (Link);
// Ended then gets DeadlineExceeded.
class GrantCustomer : public LinkCustomer {
 public:
  // Bytes that it reports as copied, of all ever taken; never more than those.
  // It may lie.
  virtual uint64_t done() const = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_LINK_CUSTOMER_H_
