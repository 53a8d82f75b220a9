// Queues whole images for copying to a device.
#ifndef HOIST_DAEMON_LINK_IMAGE_QUEUE_H_
#define HOIST_DAEMON_LINK_IMAGE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/link/copy_trace.h"
#include "daemon/link/link_customer.h"
#include "daemon/trace/recorder.h"
#include "daemon/types/ids.h"
#include "daemon/types/ranges.h"

namespace hoistd {

// An image to copy to the device.
struct ImageLoad {
  TransferId id;
  // In order, none empty; unchanged until `done`.
  std::vector<HostRun> runs;
  bool urgent = false;  // It has a waiter.
  GroupKey key;         // Of the image, for recordings.
  // Called once, when none of its pieces is in flight.
  absl::AnyInvocable<void(absl::Status)> done;
};

// Threads:  as LinkCustomer; `done` is called on the link's thread too.
// Bounds:   kRunsAPiece runs per piece; the caller bounds the queue.
class ImageQueue final : public LinkCustomer {
 public:
  // An image partly taken, or not started.
  struct Job {
    ImageLoad load;
    size_t run = 0;     // Earlier runs are taken,
    uint64_t at = 0;    // and this many bytes of it.
    int under_way = 0;  // Its pieces in flight.
    absl::Status status;
  };
  using JobPtr = std::shared_ptr<Job>;  // Shared with pieces in flight.

  // Queueing a copy takes 2 us of CPU, in which a small run is copied.
  static constexpr size_t kRunsAPiece = 64;

  explicit ImageQueue(const TraceRecorder* trace = nullptr) : trace_(trace) {}

  void Add(JobPtr job);
  // Ends a job with bytes still to take.
  JobPtr Remove(TransferId id);

  bool Look(absl::Time) override { return false; }
  bool HasPiece() override { return !waiting_.empty(); }
  // Joins small images.
  LinkPiece TakePiece(uint64_t at_most) override;
  void Refused(const absl::Status& why, bool queued) override;
  void Ended(const absl::Status& status, absl::Time now) override;
  void Fail(absl::Status why) override;
  bool quiet(bool held_back) const override {
    return waiting_.empty() || held_back;
  }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  TraceWhy why_idle() const override { return TraceWhy::kNotDue; }
  void SetSleeping(bool) override {}

 private:
  using Jobs = std::vector<JobPtr>;

  static bool Taken(const Job& job) { return job.run == job.load.runs.size(); }
  // Ends the job; nothing more is taken of it.
  void Give(const JobPtr& job, const absl::Status& why);
  static void Tell(Job& job);

  const TraceRecorder* const trace_;
  std::deque<JobPtr> waiting_;  // Each has bytes still to take.
  std::deque<Jobs> under_way_;  // By piece.
  absl::Status failed_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_IMAGE_QUEUE_H_
