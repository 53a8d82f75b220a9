// What a recording is told of the link's gaps.
#include <algorithm>

#include "daemon/link/link.h"

namespace hoistd {

void Link::Pin(const LinkPiece& piece) {
  if (before_copy_ == nullptr) return;
  for (const HostRows& rows : piece.rows) before_copy_(rows.whole());
  if (!gaps_.on()) return;
  gaps_.Did(TraceWhy::kPinning, copies_->running() > 0 || !grants_.empty(),
            clock_.Now());
}

void Link::TraceQueued(uint64_t bytes) {
  if (!gaps_.on()) return;
  gaps_.Did(TraceWhy::kDriver, copies_->running() > 1 || !grants_.empty(),
            clock_.Now());
  const auto gap = gaps_.Began(bytes, meter_.Rate());
  if (gap.has_value()) copies_->Note(gap->begin, gap->end);
}

// A source that is missing comes first: a full ring needs nothing more.
TraceWhy Link::WhyIdle() const {
  if (held_back_ || no_room_) return TraceWhy::kTurn;
  TraceWhy why = TraceWhy::kNotDue;
  for (const auto& [party, member] : members_) {
    if (why == TraceWhy::kNotOnHost) break;
    const TraceWhy its = member.customer->why_idle();
    if (its != TraceWhy::kNotDue) why = its;
  }
  return why;
}

}  // namespace hoistd
