// Measures a link's rate and load.
#ifndef HOIST_DAEMON_LINK_LINK_METER_H_
#define HOIST_DAEMON_LINK_LINK_METER_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/plan/link_share.h"

namespace hoistd {

// Threads: thread-safe; the link's thread reports events.
class LinkMeter {
 public:
  // An unknown link counts as slow, so that no guess delays anyone.
  static constexpr double kFirstGuess = 4e9;  // Bytes per second.
  // Copies beside workers' copies are compared over this many bytes.
  static constexpr uint64_t kSharedBytes = uint64_t{64} << 20;
  // The rate reflects about the last so many bytes.
  static constexpr uint64_t kMemoryBytes = uint64_t{256} << 20;
  // Demand covers about this time.
  static constexpr absl::Duration kMemory = absl::Milliseconds(100);
  // Reads beside copies cover this time: workers report every 2 s.
  static constexpr absl::Duration kReadMemory = absl::Seconds(4);
  // No link reaches this rate: higher reports are not believed.
  static constexpr double kMostRead = 1e12;

  // The first piece is in flight.
  void Began(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // A piece ended; `more`: others are in flight.
  void Ended(LinkClass of, uint64_t bytes, bool more, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Workers report copies beside pieces that end from now on; or no longer.
  // Pieces are then slowed by an unknown amount: they show only a lower bound
  // of the rate, and only that is learnt.
  void SetShared(bool shared, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Kernels have lately read this many host bytes over the link, in no queue.
  void ReadBeside(uint64_t bytes, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // Bytes per second while copies were in flight.
  double Rate() const ABSL_LOCKS_EXCLUDED(mu_);
  // Bytes per second that kernels read.
  double ReadRate(absl::Time now) const ABSL_LOCKS_EXCLUDED(mu_);
  // From 0 to 1: the part of the link's time that copies need. A streaming plan
  // needs all of it: its copies must not wait, however short they are. Kernels'
  // reads do not count, since workers' reports may be false.
  double Demand(absl::Time now) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Bytes and their time.
  struct Copied {
    double bytes = 0;
    double seconds = 0;
  };

  // The part of the time with copies in flight.
  double UsageAt(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Advance(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double ReadAt(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double RateLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Learn(const Copied& copied) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  absl::Time at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool busy_ ABSL_GUARDED_BY(mu_) = false;    // Since at_.
  bool shared_ ABSL_GUARDED_BY(mu_) = false;  // Likewise.
  double usage_ ABSL_GUARDED_BY(mu_) = 0;     // At at_.
  absl::Time plan_ended_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  Copied alone_ ABSL_GUARDED_BY(mu_);
  Copied beside_ ABSL_GUARDED_BY(mu_);  // Not compared yet.
  // When the next piece to end began, or the one before it ended; and whether
  // the link was shared since then, and with pieces that ended just then.
  absl::Time piece_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool piece_shared_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_shared_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time read_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  // Bytes that kernels read until read_at_, with decay.
  double read_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_LINK_METER_H_
