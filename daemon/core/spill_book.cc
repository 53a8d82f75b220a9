#include "daemon/core/spill_book.h"

#include <utility>

namespace hoistd {

bool SpillBook::Failed(absl::Status why, absl::Time now) {
  const bool was_full = full();
  why_ = std::move(why);
  waiting_ = true;
  retry_at_ = now + kRetry;
  // A failing disk may recover; a full one stays full.
  if (!absl::IsResourceExhausted(why_)) full_since_ = absl::InfiniteFuture();
  if (!absl::IsResourceExhausted(why_) || was_full) return false;
  full_since_ = now;
  return true;
}

bool SpillBook::Worked() {
  const bool was_full = full();
  why_ = absl::OkStatus();
  waiting_ = false;
  full_since_ = absl::InfiniteFuture();
  return was_full;
}

void SpillBook::RoomCame(absl::Time now) { retry_at_ = now; }

void SpillBook::PutOff(absl::Time now) { put_off_until_ = now + kPutOff; }

bool SpillBook::Retry(absl::Time now) {
  const bool waited = put_off() && now >= put_off_until_;
  if (waited) put_off_until_ = absl::InfinitePast();
  const bool failed = waiting_ && now >= retry_at_;
  if (failed) waiting_ = false;
  return waited || failed;
}

}  // namespace hoistd
