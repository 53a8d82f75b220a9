// What of a device is read back, in turn.
#ifndef HOIST_DAEMON_LINK_READ_QUEUE_H_
#define HOIST_DAEMON_LINK_READ_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/link/copy_trace.h"
#include "daemon/link/link_customer.h"
#include "daemon/terms/ids.h"
#include "daemon/trace/recorder.h"

namespace hoistd {

// Bytes of the device that are to be copied to the host.
struct DeviceRead {
  uint64_t from_offset = 0;
  // Registered with the device, lest the link waits for it; not empty. It and
  // the bytes there stay until `done`.
  std::span<std::byte> to;
  GroupKey key;  // Whose they are, for recordings.
  // Called once, when nothing of it is under way any more.
  absl::AnyInvocable<void(absl::Status)> done;
};

// Threads:  as LinkCustomer says; `done` is called on the link's thread too.
// Bounds:   the queue is as long as others make it.
class ReadQueue final : public LinkCustomer {
 public:
  explicit ReadQueue(const TraceRecorder* trace = nullptr) : trace_(trace) {}

  void Add(DeviceRead read);

  bool Look(absl::Time) override { return false; }
  bool HasPiece() override { return !waiting_.empty(); }
  // Of one read alone.
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
  struct Job {
    DeviceRead read;
    uint64_t taken = 0;
    int under_way = 0;  // Pieces of it.
    absl::Status status;
  };
  using JobPtr = std::shared_ptr<Job>;  // Of the queue and of pieces under way.

  // Nothing more is taken of it.
  void Give(const JobPtr& job, const absl::Status& why);
  static void Tell(Job& job);

  const TraceRecorder* const trace_;
  std::deque<JobPtr> waiting_;    // Some of each is yet to be taken.
  std::deque<JobPtr> under_way_;  // By piece.
  absl::Status failed_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_READ_QUEUE_H_
