#include "daemon/permit/copy_permit.h"

#include <algorithm>
#include <utility>

#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

namespace permit = hoist::permit;

// 72 PB: sums over permits do not overflow.
constexpr uint64_t kMostRead = uint64_t{1} << 56;

}  // namespace

bool CopyPermit::Look(absl::Time now) {
  if (closed_) return false;
  if (Traces(parts_.trace)) TraceRead(now);
  const permit::Page& page = memory_.page();
  bool news = false;
  const uint64_t before = done_;
  const uint32_t ahead = page.done.load() - static_cast<uint32_t>(before);
  if (ahead > 0 && ahead <= granted_ - before) {
    done_ = before + ahead;
    news = true;
  }
  // A counter that is behind counts as no request.
  const uint32_t asked = page.asked.load() - static_cast<uint32_t>(granted_);
  const uint32_t wanted = asked <= uint32_t{INT32_MAX} ? asked : 0;
  news |= wanted != wanted_;
  wanted_ = wanted;
  const bool may_go = done_ >= late_until_ || now >= late_at_;
  news |= may_go != may_go_;
  may_go_ = may_go;
  looked_ = now;
  return news;
}

LinkPiece CopyPermit::TakePiece(uint64_t at_most) {
  LinkPiece piece;
  piece.bytes = std::min<uint64_t>({wanted_, at_most, permit::kPieceBytes});
  granted_ += piece.bytes;
  wanted_ -= static_cast<uint32_t>(piece.bytes);
  given_.push_back({granted_, piece.bytes, looked_});
  late_at_ = absl::InfiniteFuture();
  late_until_ = 0;
  ++grants_;
  memory_.StoreGranted(static_cast<uint32_t>(granted_));
  return piece;
}

void CopyPermit::Ended(const absl::Status& status, absl::Time now) {
  const Given given = given_.front();
  given_.pop_front();
  if (absl::IsDeadlineExceeded(status)) {
    ++late_;
    late_until_ = granted_;
    late_at_ = now + kLateAgain;
    may_go_ = false;
  }
  if (!Traces(parts_.trace)) return;
  TraceEvent event;
  event.kind = TraceKind::kGrantedCopy;
  event.failed = !status.ok();
  event.begin = given.at;
  event.end = now;
  event.bytes = given.bytes;
  Tell(event);
}

// The times of these copies are unknown: between two looks.
void CopyPermit::TraceRead(absl::Time now) {
  const uint64_t read = read_bytes();
  const uint64_t bytes = read - std::exchange(traced_read_, read);
  if (bytes == 0 || looked_ == absl::InfinitePast()) return;
  TraceEvent event;
  event.kind = TraceKind::kOwnRead;
  event.begin = looked_;
  event.end = now;
  event.bytes = bytes;
  Tell(event);
}

void CopyPermit::Tell(TraceEvent event) const {
  event.device = parts_.device;
  event.session = spec_.session;
  parts_.trace->Add(event);
}

uint64_t CopyPermit::read_bytes() const {
  const uint64_t said = std::min(memory_.page().read.load(), kMostRead);
  uint64_t before = read_.load();
  while (said > before && !read_.compare_exchange_weak(before, said)) {
  }
  return std::max(said, before);
}

bool CopyPermit::quiet(bool held_back) const {
  if (closed_) return true;
  if (Traces(parts_.trace) || !given_.empty()) return false;
  if (wanted_ > 0 && may_go_ && !held_back) return false;
  if (parts_.cpu_workers) return true;
  // Quiet only if all work put on streams is done: else streams will ask, or
  // report an end.
  return memory_.page().put.load() == static_cast<uint32_t>(done_.load());
}

absl::Time CopyPermit::deadline() const {
  return closed_ || wanted_ == 0 || may_go_ ? absl::InfiniteFuture() : late_at_;
}

void CopyPermit::Fail(absl::Status why) {
  if (closed_) return;
  SPDLOG_WARN("permit {} is granted nothing more: {}", spec_.id.number(),
              why.ToString());
  Close();
}

void CopyPermit::Close() {
  closed_ = true;
  memory_.StoreGranted(permit::Released(memory_.page().done.load()));
}

}  // namespace hoistd
