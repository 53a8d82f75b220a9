// What copies over a link, as the link sees it.
#ifndef HOIST_DAEMON_LINK_LINK_CUSTOMER_H_
#define HOIST_DAEMON_LINK_LINK_CUSTOMER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/link/copy_trace.h"
#include "daemon/terms/device.h"

namespace hoistd {

// What is copied in one go: runs of bytes, the one way or the other, and the
// words behind them. Of what somebody else copies, the bytes alone.
struct LinkPiece {
  struct Run {
    uint64_t to_offset = 0;
    std::span<const std::byte> from;
  };
  // From the device to the host.
  struct ReadRun {
    uint64_t from_offset = 0;
    std::span<std::byte> to;
  };
  // In order; one of both has some, and none is empty.
  std::vector<Run> runs;
  std::vector<ReadRun> reads;
  uint64_t bytes = 0;            // Of all of them.
  std::vector<WordWrite> words;  // To be written behind it.
  // Whose bytes those are, in order; where nothing is recorded, nothing.
  std::vector<TracedPart> parts;

  // What lies side by side, on the host and on the device, is one run.
  void Add(uint64_t to_offset, std::span<const std::byte> from) {
    bytes += from.size();
    if (!runs.empty()) {
      Run& last = runs.back();
      if (last.to_offset + last.from.size() == to_offset &&
          last.from.data() + last.from.size() == from.data()) {
        last.from = {last.from.data(), last.from.size() + from.size()};
        return;
      }
    }
    runs.push_back({to_offset, from});
  }
};

// Threads:  called on the link's thread alone.
// Owns:     what its pieces name, until they ended.
class LinkCustomer {
 public:
  virtual ~LinkCustomer() = default;

  // Takes in what is new. True if anything was.
  virtual bool Look(absl::Time now) = 0;
  // It has something that could be copied now.
  virtual bool HasPiece() = 0;
  // The next of it, of 1 to `at_most` bytes, to be queued at once.
  virtual LinkPiece TakePiece(uint64_t at_most) = 0;
  // The piece that was taken last met an error. If `queued`, some of it is
  // under way all the same, and its end will be told; else it is over.
  virtual void Refused(const absl::Status& why, bool queued) = 0;
  // The oldest piece under way ended, or will never: then `status` is not ok.
  virtual void Ended(const absl::Status& status, absl::Time now) = 0;
  // Nothing more of it can be copied, now or later.
  virtual void Fail(absl::Status why) = 0;

  // Nothing will change unless a CPU changes it and says so, or at deadline().
  // `held_back`: what it has to copy has to wait for its turn.
  virtual bool quiet(bool held_back) const = 0;
  // When it wants to look, though nothing happened; or InfiniteFuture.
  virtual absl::Time deadline() const = 0;
  // From now on the link's thread may sleep: who changes something wakes it.
  virtual void SetSleeping(bool sleeping) = 0;
};

// One that copies by itself, on streams of its own: what is taken of it is a
// grant. That is in its place among the pieces under way until it is done, or
// until its time is over (Link), and Ended then says DeadlineExceeded.
class GrantCustomer : public LinkCustomer {
 public:
  // Of all bytes that were ever taken, those that it says are copied; never
  // more than were taken. It may be lying.
  virtual uint64_t done() const = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_LINK_CUSTOMER_H_
