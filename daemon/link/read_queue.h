// Queues reads back from a device.
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
#include "daemon/trace/recorder.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Bytes of the device to copy to the host.
struct DeviceRead {
  uint64_t from_offset = 0;
  // Registered with the device, or the link would wait for it; not empty.
  // Valid, like the device's bytes, until `done`.
  std::span<std::byte> to;
  GroupKey key;  // Of the bytes, for recordings.
  // Called once, when none of its pieces is in flight.
  absl::AnyInvocable<void(absl::Status)> done;
};

// Threads:  as LinkCustomer; `done` is called on the link's thread too.
// Bounds:   the caller bounds the queue.
class ReadQueue final : public LinkCustomer {
 public:
  explicit ReadQueue(const TraceRecorder* trace = nullptr) : trace_(trace) {}

  void Add(DeviceRead read);

  bool Look(absl::Time) override { return false; }
  bool HasPiece() override { return !waiting_.empty(); }
  // From a single read.
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
  struct Job {
    DeviceRead read;
    uint64_t taken = 0;
    int under_way = 0;  // Its pieces in flight.
    absl::Status status;
  };
  using JobPtr = std::shared_ptr<Job>;  // Shared with pieces in flight.

  // Ends the job; nothing more is taken of it.
  void Give(const JobPtr& job, const absl::Status& why);
  static void Tell(Job& job);

  const TraceRecorder* const trace_;
  std::deque<JobPtr> waiting_;    // Each has bytes still to take.
  std::deque<JobPtr> under_way_;  // By piece.
  absl::Status failed_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_READ_QUEUE_H_
