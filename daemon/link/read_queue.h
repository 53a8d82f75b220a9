// Queues reads back from a device.
#ifndef HOIST_DAEMON_LINK_READ_QUEUE_H_
#define HOIST_DAEMON_LINK_READ_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "daemon/link/job_queue.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Bytes of the device to copy to the host.
struct DeviceRead {
  static constexpr char kWhat[] = "copy from the device";
  size_t run_count() const { return 1; }

  uint64_t from_offset = 0;
  // Registered with the device, or the link would wait for it; not empty.
  // Valid, like the device's bytes, until `done`.
  std::span<std::byte> to;
  GroupKey key;  // Of the bytes, for recordings.
  absl::AnyInvocable<void(absl::Status)> done;
};

class ReadQueue final : public JobQueue<DeviceRead> {
 public:
  using JobQueue::JobQueue;

  // From a single read.
  LinkPiece TakePiece(uint64_t at_most) override {
    const Job& job = *waiting_.front();
    LinkPiece piece;
    piece.from_offset = job.load.from_offset + job.at;
    piece.to = job.load.to.subspan(job.at);
    piece.bytes = std::min<uint64_t>(at_most, piece.to.size());
    piece.to = piece.to.first(piece.bytes);
    Take(piece.bytes, job.load.to.size(), under_way_.emplace_back(), piece);
    return piece;
  }
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_READ_QUEUE_H_
