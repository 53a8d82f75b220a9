#include "daemon/link/link_meter.h"

#include <algorithm>
#include <cmath>

namespace hoistd {

double LinkMeter::UsageAt(absl::Time now) const {
  const double fresh = std::exp(-absl::FDivDuration(now - at_, kMemory));
  return fresh * usage_ + (busy_ ? 1 - fresh : 0);
}

void LinkMeter::Advance(absl::Time now) {
  usage_ = UsageAt(now);
  if (busy_) seconds_ += absl::ToDoubleSeconds(now - at_);
  at_ = now;
}

void LinkMeter::Began(absl::Time now) {
  const absl::MutexLock lock(&mu_);
  Advance(now);
  busy_ = true;
}

void LinkMeter::Ended(LinkClass of, uint64_t bytes, bool more, absl::Time now) {
  const absl::MutexLock lock(&mu_);
  Advance(now);
  busy_ = more;
  if (of == LinkClass::kPlans) plan_ended_ = now;
  bytes_ += double(bytes);
  if (bytes_ < double(kMemoryBytes)) return;
  bytes_ /= 2;
  seconds_ /= 2;
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
  // As if a little had been copied at the guessed rate before.
  constexpr double kGuessed = 64 << 10;
  return (bytes_ + kGuessed) / (seconds_ + kGuessed / kFirstGuess);
}

double LinkMeter::Demand(absl::Time now) const {
  const absl::MutexLock lock(&mu_);
  if (now - plan_ended_ < kMemory) return 1;
  return UsageAt(now);
}

}  // namespace hoistd
