// Queues whole images for copying to a device.
#ifndef HOIST_DAEMON_LINK_IMAGE_QUEUE_H_
#define HOIST_DAEMON_LINK_IMAGE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "daemon/link/job_queue.h"
#include "daemon/types/ids.h"
#include "daemon/types/ranges.h"

namespace hoistd {

// An image to copy to the device.
struct ImageLoad {
  static constexpr char kWhat[] = "copy to the device";
  size_t run_count() const { return runs.size(); }

  TransferId id;
  // In order, none empty; unchanged until `done`.
  std::vector<HostRun> runs;
  bool urgent = false;  // It has a waiter.
  GroupKey key;         // Of the image, for recordings.
  absl::AnyInvocable<void(absl::Status)> done;
};

// Bounds:   kRunsAPiece runs per piece.
class ImageQueue final : public JobQueue<ImageLoad> {
 public:
  // Queueing a copy takes 2 us of CPU, in which a small run is copied.
  static constexpr size_t kRunsAPiece = 64;

  using JobQueue::JobQueue;

  // Ends a job with bytes still to take.
  JobPtr Remove(TransferId id);
  // Joins small images.
  LinkPiece TakePiece(uint64_t at_most) override;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_IMAGE_QUEUE_H_
