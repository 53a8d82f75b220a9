// How fast a link is, and how busy.
#ifndef HOIST_DAEMON_LINK_LINK_METER_H_
#define HOIST_DAEMON_LINK_LINK_METER_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/plan/link_share.h"

namespace hoistd {

// Threads: thread-safe; the link's thread tells it what happens.
class LinkMeter {
 public:
  // What is unknown is slow, so that nobody is kept waiting by a guess.
  static constexpr double kFirstGuess = 4e9;  // Bytes a second.
  // What was copied while workers did is compared in so much.
  static constexpr uint64_t kSharedBytes = uint64_t{64} << 20;
  // Of what was copied last, it goes by about so much.
  static constexpr uint64_t kMemoryBytes = uint64_t{256} << 20;
  // Demand is over about the last so much.
  static constexpr absl::Duration kMemory = absl::Milliseconds(100);
  // And what is read beside copies over so much: workers tell every 2 s.
  static constexpr absl::Duration kReadMemory = absl::Seconds(4);
  // No link has so much in that time: whoever tells more is not believed.
  static constexpr double kMostRead = 1e12;

  // There is something under way now; there was nothing.
  void Began(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // A piece ended; `more`: something else is under way.
  void Ended(LinkClass of, uint64_t bytes, bool more, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Workers copy beside what ends from now on, as they say; or not any more.
  // What is copied meanwhile goes the slower, by nobody knows how much, so that
  // it shows the least that the link can do, and only that is learnt of it.
  void SetShared(bool shared, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Kernels have read so much of the host over the link of late, in no queue.
  void ReadBeside(uint64_t bytes, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // Bytes a second while something was under way.
  double Rate() const ABSL_LOCKS_EXCLUDED(mu_);
  // Bytes a second that kernels read.
  double ReadRate(absl::Time now) const ABSL_LOCKS_EXCLUDED(mu_);
  // From 0 to 1: the part of the link's time that copies need. A plan that
  // streams needs all of it: its copies must not wait, however short they are.
  // What kernels read is not in it, as workers might tell anything.
  double Demand(absl::Time now) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What was copied in which time.
  struct Copied {
    double bytes = 0;
    double seconds = 0;
  };

  // The part in which something was under way.
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
  // The piece that ends next began, or the one before it ended; and whether
  // anybody shared the link since then, and with those that ended just then.
  absl::Time piece_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool piece_shared_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_shared_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time read_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  // Bytes that kernels read until read_at_; older ones count less.
  double read_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_LINK_METER_H_
