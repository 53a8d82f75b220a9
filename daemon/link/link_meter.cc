#include "daemon/link/link_meter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace hoistd {

double LinkMeter::UsageAt(absl::Time now) const {
  const double fresh = std::exp(-absl::FDivDuration(now - at_, kMemory));
  return fresh * usage_ + (busy_ || shared_ ? 1 - fresh : 0);
}

void LinkMeter::Advance(absl::Time now) {
  usage_ = UsageAt(now);
  at_ = now;
}

void LinkMeter::Began(absl::Time now) {
  const absl::MutexLock lock(&mu_);
  Advance(now);
  busy_ = true;
  piece_at_ = now;
  piece_shared_ = shared_;
}

void LinkMeter::SetShared(bool shared, absl::Time now) {
  const absl::MutexLock lock(&mu_);
  Advance(now);
  shared_ = shared;
  piece_shared_ |= shared;
}

void LinkMeter::Learn(const Copied& copied) {
  alone_.bytes += copied.bytes;
  alone_.seconds += copied.seconds;
  if (alone_.bytes < double(kMemoryBytes)) return;
  alone_.bytes /= 2;
  alone_.seconds /= 2;
}

void LinkMeter::Ended(LinkClass of, uint64_t bytes, bool more, absl::Time now) {
  const absl::MutexLock lock(&mu_);
  Advance(now);
  busy_ = more;
  if (of == LinkClass::kPlans) plan_ended_ = now;
  // Of pieces seen to end at once, the first gets all of the time; the others
  // count with it.
  const Copied copied = {double(bytes), absl::ToDoubleSeconds(now - piece_at_)};
  if (now > piece_at_) {
    ended_shared_ = std::exchange(piece_shared_, shared_);
    piece_at_ = now;
  }
  if (!ended_shared_) return Learn(copied);
  beside_.bytes += copied.bytes;
  beside_.seconds += copied.seconds;
  if (beside_.bytes < double(kSharedBytes)) return;
  if (beside_.bytes > RateLocked() * beside_.seconds) Learn(beside_);
  beside_ = {};
}

void LinkMeter::ReadBeside(uint64_t bytes, absl::Time now) {
  const absl::MutexLock lock(&mu_);
  read_ = std::min(ReadAt(now) + double(bytes), kMostRead);
  read_at_ = now;
}

double LinkMeter::ReadAt(absl::Time now) const {
  return read_ * std::exp(-absl::FDivDuration(now - read_at_, kReadMemory));
}

double LinkMeter::ReadRate(absl::Time now) const {
  const absl::MutexLock lock(&mu_);
  return ReadAt(now) / absl::ToDoubleSeconds(kReadMemory);
}

double LinkMeter::Rate() const {
  const absl::MutexLock lock(&mu_);
  return RateLocked();
}

double LinkMeter::RateLocked() const {
  // Starts from the guess, as if kGuessed bytes had been copied at that rate.
  constexpr double kGuessed = 64 << 10;
  return (alone_.bytes + kGuessed) / (alone_.seconds + kGuessed / kFirstGuess);
}

double LinkMeter::Demand(absl::Time now) const {
  const absl::MutexLock lock(&mu_);
  if (now - plan_ended_ < kMemory) return 1;
  return UsageAt(now);
}

}  // namespace hoistd
