// The link's interface to its customers.
#ifndef HOIST_DAEMON_LINK_LINK_CUSTOMER_H_
#define HOIST_DAEMON_LINK_LINK_CUSTOMER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/link/copy_trace.h"
#include "daemon/trace/trace_event.h"
#include "daemon/types/device.h"
#include "daemon/types/ranges.h"

namespace hoistd {

// One unit of copying: bytes in one direction, and the words after them. For a
// grant, only the number of bytes.
struct LinkPiece {
  // Longer runs of bytes are copied singly at the link's rate.
  static constexpr uint64_t kMostRowBytes = uint64_t{256} << 10;
  // Far below CUDA's limit, 2 GiB.
  static constexpr uint64_t kMostPitch = uint64_t{64} << 20;

  std::vector<HostRows> rows;  // To the device, in order; none is empty.
  // Or one run from the device.
  uint64_t from_offset = 0;
  std::span<std::byte> to;
  uint64_t bytes = 0;            // Sum of the rows, or the run.
  std::vector<WordWrite> words;  // Written after the bytes.
  // The bytes' groups, in order; empty without a recording.
  std::vector<TracedPart> parts;

  // Joins runs adjacent on both host and device, and rows of one pitch.
  void Add(uint64_t to_offset, std::span<const std::byte> from) {
    bytes += from.size();
    if (rows.empty() || !Join(to_offset, from, rows.back())) {
      rows.push_back({.to_offset = to_offset, .first = from});
    }
  }

 private:
  static bool Join(uint64_t to_offset, std::span<const std::byte> from,
                   HostRows& last) {
    if (last.to_offset + last.bytes() != to_offset) return false;
    const std::byte* const end = last.whole().data() + last.whole().size();
    if (last.count == 1 && end == from.data()) {
      last.first = {last.first.data(), last.first.size() + from.size()};
      return true;
    }
    if (from.size() != last.first.size() || from.size() > kMostRowBytes ||
        std::less<>{}(from.data(), end)) {
      return false;
    }
    const auto pitch = static_cast<uint64_t>(from.data() - end) + from.size();
    if (last.count > 1 ? pitch != last.pitch : pitch > kMostPitch) return false;
    last.pitch = pitch;
    ++last.count;
    return true;
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
  // The last piece taken met an error. Some of it may be in flight until Ended.
  virtual void Refused(const absl::Status& why) = 0;
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
