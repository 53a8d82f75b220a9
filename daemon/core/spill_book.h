// Whether the disk accepts spills.
#ifndef HOIST_DAEMON_CORE_SPILL_BOOK_H_
#define HOIST_DAEMON_CORE_SPILL_BOOK_H_

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace hoistd {

// Threads: one at a time.
class SpillBook {
 public:
  // From a failure to the next try.
  static constexpr absl::Duration kRetry = absl::Seconds(10);
  static constexpr absl::Duration kPutOff = absl::Milliseconds(100);

  // A write failed. True: the disk has become full.
  bool Failed(absl::Status why, absl::Time now);
  // A write succeeded. True: the disk was full before.
  bool Worked();
  // Something was removed from the disk.
  void RoomCame(absl::Time now);
  // An incoming image found no lasting place. Its eviction victims may be read
  // again at once, so it waits before its next try.
  void PutOff(absl::Time now);
  // True, once, when a retry is due after a failure or a wait.
  bool Retry(absl::Time now);

  bool failed() const { return waiting_; }  // And was not retried yet.
  bool MayTry(absl::Time now) const { return !waiting_ || now >= retry_at_; }
  absl::Time retry_at() const { return retry_at_; }
  bool put_off() const { return put_off_until_ != absl::InfinitePast(); }
  absl::Time put_off_until() const { return put_off_until_; }
  const absl::Status& why() const { return why_; }  // The last failure.
  // The last write found no room.
  bool full() const { return full_since_ != absl::InfiniteFuture(); }
  absl::Time full_since() const { return full_since_; }

 private:
  absl::Status why_;
  bool waiting_ = false;
  absl::Time retry_at_ = absl::InfinitePast();
  absl::Time full_since_ = absl::InfiniteFuture();
  absl::Time put_off_until_ = absl::InfinitePast();
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_SPILL_BOOK_H_
