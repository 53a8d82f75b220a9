// A lane that outlives its hoistd: the progress it leaves, and how a successor
// resumes. lane_layout.h says why slots match their words.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/stream/lane.h"

namespace hoistd {
namespace {

namespace lane = hoist::lane;

// A bound on positions: they are counted from 0, one by one.
constexpr uint64_t kMaxPosition = uint64_t{1} << 62;
constexpr uint64_t kResumeFarAhead = uint64_t{1} << 30;

}  // namespace

// The successor reads requests beyond the tail again.
void Lane::LeaveProgress() {
  lane::Header& header = memory_->header();
  const uint64_t served = schedule_.served();
  if (header.served.load(std::memory_order_relaxed) != served) {
    header.served.store(served);
  }
  while (!skips_taken_.empty() && skips_taken_.front().second <= served) {
    skips_taken_.pop_front();
  }
  const uint32_t tail =
      skips_taken_.empty() ? requests_taken_ : skips_taken_.front().first - 1;
  if (header.tail.load(std::memory_order_relaxed) != tail) {
    memory_->Store(header.tail, tail);
  }
}

// Marks ready but skipped groups as unused in their words too.
void Lane::TellSkipped(LaneGroup group) {
  const uint64_t position = schedule_.last_position(group);
  if (by_flags(position)) return;
  lane::Word& done = memory_->group(group).done;
  const uint32_t word = lane::WordOf(position);
  if (!lane::Reached(done.load(), word)) memory_->Store(done, word);
}

void Lane::Resume() {
  resume_due_ = false;
  lane::Header& header = memory_->header();
  const uint64_t served = schedule_.head();
  const uint64_t captured_from = header.captured_from.load();
  requests_taken_ = header.tail.load();
  if (served > kMaxPosition || captured_from > served + kResumeFarAhead) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "the plan's lane says that positions below ", served,
        " were served, and that the captured form holds from ", captured_from,
        " on, which cannot be; its client has a bug")));
  }
  if (captured_from != 0) {
    stats_.captured = true;
    captured_from_ = captured_from - 1;
  }
  for (LaneGroup group = 0; group < spec_.groups.size(); ++group) {
    ResumeGroup(group);
  }
  schedule_.Resumed();
  changed_ = true;
  const uint32_t fault = header.fault_code.load();
  if (fault == 0) return;
  Fail(absl::Status(static_cast<absl::StatusCode>(fault),
                    "the plan had ended before hoistd did"));
}

void Lane::ResumeGroup(LaneGroup group) {
  lane::GroupWords& words = memory_->group(group);
  const uint32_t ready = words.ready.load(std::memory_order_acquire);
  // Positions from captured_from_ on are decided by flags, not by words.
  if (!stats_.captured || !lane::Reached(ready, lane::WordOf(captured_from_))) {
    schedule_.ResumeWords(group, ready,
                          words.done.load(std::memory_order_acquire));
  }
  // A GPU clears a flag after its kernels.
  if (stats_.captured && words.flag.load() != lane::kFlagEmpty) {
    schedule_.ResumeFlag(group, captured_from_);
  }
  if (schedule_.in_use(group)) Watch(group);
}

}  // namespace hoistd
