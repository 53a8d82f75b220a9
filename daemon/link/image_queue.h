// Whole images on their way to a device, in turn.
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
#include "daemon/terms/ids.h"
#include "daemon/trace/recorder.h"

namespace hoistd {

// An image that is to be copied to the device.
struct ImageLoad {
  TransferId id;
  // In order, none of them empty; all stay as they are until `done`.
  std::vector<LinkPiece::Run> runs;
  bool urgent = false;  // Somebody waits for it.
  GroupKey key;         // Whose it is, for recordings.
  // Called once, when nothing of it is under way any more.
  absl::AnyInvocable<void(absl::Status)> done;
};

// Threads:  as LinkCustomer says; `done` is called on the link's thread too.
// Bounds:   kRunsAPiece runs a piece; the queue is as long as others make it.
class ImageQueue final : public LinkCustomer {
 public:
  // An image that is cut, or not begun.
  struct Job {
    ImageLoad load;
    size_t run = 0;     // Those before it are taken,
    uint64_t at = 0;    // and so are bytes before this of it.
    int under_way = 0;  // Pieces with some of it.
    absl::Status status;
  };
  using JobPtr = std::shared_ptr<Job>;  // Of the queue and of pieces under way.

  // Queueing a copy costs a CPU 2 us, in which a small run is copied.
  static constexpr size_t kRunsAPiece = 64;

  explicit ImageQueue(const TraceRecorder* trace = nullptr) : trace_(trace) {}

  void Add(JobPtr job);
  // Gives up a job that it has more to take of.
  JobPtr Remove(TransferId id);

  bool Look(absl::Time) override { return false; }
  bool HasPiece() override { return !waiting_.empty(); }
  // Small images go together.
  LinkPiece TakePiece(uint64_t at_most) override;
  void Refused(const absl::Status& why, bool queued) override;
  void Ended(const absl::Status& status, absl::Time now) override;
  void Fail(absl::Status why) override;
  bool quiet(bool held_back) const override {
    return waiting_.empty() || held_back;
  }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  void SetSleeping(bool) override {}

 private:
  using Jobs = std::vector<JobPtr>;

  static bool Taken(const Job& job) { return job.run == job.load.runs.size(); }
  // Nothing more is taken of it.
  void Give(const JobPtr& job, const absl::Status& why);
  static void Tell(Job& job);

  const TraceRecorder* const trace_;
  std::deque<JobPtr> waiting_;  // Some of each is yet to be taken.
  std::deque<Jobs> under_way_;  // By piece.
  absl::Status failed_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_IMAGE_QUEUE_H_
