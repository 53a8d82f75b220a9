#include "daemon/stream/lane.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

namespace lane = hoist::lane;

// The time from a GPU's write of done_flag to its next write of `want`. Until
// then `want` may still show the finished place.
constexpr absl::Duration kWantLag = absl::Microseconds(100);
// A deadline missed by this much passed while this process was stopped or the
// machine slept. Nothing could arrive meanwhile, so the wait starts anew, once.
constexpr absl::Duration kOverslept = absl::Seconds(1);
// Released words are as far ahead as comparisons allow, so that positions
// staged before the client sees the fault do not wait.
constexpr uint32_t kFarAhead = uint32_t{1} << 30;
constexpr size_t kReleasesALook = 1024;

std::vector<Slot> SlotsOf(const LaneSpec& spec) {
  std::vector<Slot> slots;
  for (const LaneSpec::Streamed& group : spec.groups) {
    slots.push_back(group.slot);
  }
  return slots;
}

// The position to resume at. Flags give no position: groups in their slots by
// flags count for the pass before, and the GPU's `want` tells the next one.
uint64_t FirstPosition(const LaneSpec& spec, const LaneMemory& memory) {
  const uint64_t served = memory.header().served.load();
  const uint64_t captured_from = memory.header().captured_from.load();
  const bool by_flags = captured_from != 0 && served >= captured_from - 1;
  return by_flags ? served + spec.order.size() : served;
}

}  // namespace

Lane::Lane(LaneSpec spec, std::unique_ptr<LaneMemory> memory,
           const Parts& parts)
    : spec_(std::move(spec)),
      memory_(std::move(memory)),
      parts_(parts),
      schedule_(SlotsOf(spec_), spec_.order, FirstPosition(spec_, *memory_)),
      hosts_(spec_.groups.size()),
      copied_(spec_.groups.size()),
      is_watched_(spec_.groups.size()) {
  stats_.plan = spec_.plan;
  stats_.share = spec_.share;
  uint64_t ring = 0;
  for (const LaneSpec::Streamed& group : spec_.groups) {
    ring = std::max(ring, group.slot.offset + group.slot.bytes);
  }
  joined_bytes_ = std::min(kJoinedBytes, ring * 2 / 5);
  resume_due_ = memory_->adopted();
}

void Lane::HostReady(LaneGroup group, ImageRanges ranges, bool once) {
  HOIST_CHECK(group < hosts_.size() && !ranges.empty());
  if (Traces(parts_.trace)) TraceHostCame(group);
  uint64_t end = 0;
  Host host;
  host.ready = true;
  host.once = once;
  for (const ImageRange& range : ranges) {
    HOIST_CHECK(range.bytes > 0 && range.image_offset >= end);
    end = range.image_offset + range.bytes;
    host.bytes += range.bytes;
    HOIST_CHECK(end <= spec_.groups[group].bytes &&
                range.host_offset <= parts_.host.size() &&
                range.bytes <= parts_.host.size() - range.host_offset);
  }
  host.ranges = std::move(ranges);
  hosts_[group] = std::move(host);
  schedule_.SetHostReady(group, true);
}

void Lane::HostForOnce() {
  for (Host& host : hosts_) host.once = true;
}

void Lane::TakeBack(LaneGroup group) {
  HOIST_CHECK(group < hosts_.size());
  Host& host = hosts_[group];
  if (!host.ready || !host.once || schedule_.loading(group)) return;
  host = {};
  schedule_.SetHostReady(group, false);
  parts_.events->host_returned(spec_.plan, group);
}

void Lane::Fail(absl::Status why) {
  if (!stats_.fault.ok() || closed_) return;
  SPDLOG_WARN("plan {} ends: {}", spec_.plan.number(), why.ToString());
  stats_.fault = why;
  changed_ = true;
  memory_->WriteFault(why);
  Release();
  parts_.events->faulted(spec_.plan, std::move(why));
}

bool Lane::Look(absl::Time now) {
  bool news = LookAtWords(now);
  news |= Advance();
  if (alive() && !resume_due_) LeaveProgress();
  CheckDeadline(now);
  if (Traces(parts_.trace)) TraceLook(now);
  if (std::exchange(changed_, false)) parts_.board->Publish(stats_, now);
  return news;
}

bool Lane::LookAtWords(absl::Time now) {
  if (closed_) return false;
  if (!stats_.fault.ok()) return Release();
  if (resume_due_) Resume();
  if (!stats_.fault.ok()) return true;
  bool changed = LookAtRequests();
  changed |= alive() && LookAtDone(now);
  changed |= alive() && stats_.captured && LookAtWant(now);
  const uint32_t cursor = memory_->header().cursor.load();
  changed |= cursor != cursor_;
  cursor_ = cursor;
  if (!alive()) return true;
  const std::optional<Wanted> wanted = FindWanted();
  if (wanted != wanted_) {
    if (wanted_.has_value()) {
      stats_.waited += now - wanted_since_;
      ++stats_.waits;
      changed_ = true;
      if (Traces(parts_.trace)) TraceWaited(now);
    }
    wanted_ = wanted;
    wanted_since_ = now;
    waits_anew_ = false;
  }
  changed_ |= changed;
  return changed;
}

bool Lane::LookAtRequests() {
  lane::Header& header = memory_->header();
  const uint32_t made = header.head.load();
  if (made - requests_taken_ > lane::kRequests) {
    Fail(absl::InvalidArgumentError(
        "the plan's request ring is out of order; its client has a bug"));
    return true;
  }
  bool changed = false;
  for (int i = 0; i < kRequestsALook && requests_taken_ != made; ++i) {
    if (!Request(memory_->ReadRequest(requests_taken_))) break;
    ++requests_taken_;
    changed = true;
    if (!alive()) break;
  }
  return changed;
}

// False: the request must be repeated later.
bool Lane::Request(const lane::Request& request) {
  switch (static_cast<lane::RequestKind>(request.kind)) {
    case lane::RequestKind::kSkip: {
      // In captured form only the GPU knows the next position, and `want` tells
      // it.
      if (by_flags(request.to)) return true;
      const absl::Status status = schedule_.Skip(request.from, request.to);
      if (absl::IsResourceExhausted(status)) return false;
      if (!status.ok()) {
        Fail(status);
        return true;
      }
      CountSkipped(request.from, request.to);
      skips_taken_.push_back({requests_taken_ + 1, request.to});
      return true;
    }
    case lane::RequestKind::kCapture:
      return Capture(request.from);
  }
  Fail(absl::InvalidArgumentError(absl::StrCat(
      "the plan's client made a request of an unknown kind, ", request.kind)));
  return true;
}

bool Lane::Capture(uint64_t from) {
  // The client stages `from` next; words can express positions only so far
  // ahead.
  if (stats_.captured || from + kFarAhead < schedule_.head() ||
      from > schedule_.head() + kFarAhead) {
    Fail(absl::InvalidArgumentError(absl::StrCat(
        "the plan's client asked for the captured form from position ", from,
        stats_.captured ? " again" : ", which is out of all reach")));
    return true;
  }
  stats_.captured = true;
  captured_from_ = from;
  memory_->header().captured_from.store(from + 1);
  for (const LaneGroup group : watched_) {
    if (schedule_.in_use(group) && !schedule_.loading(group) &&
        by_flags(schedule_.last_position(group))) {
      memory_->Store(memory_->group(group).flag, lane::kFlagReady);
    }
  }
  return true;
}

bool Lane::LookAtDone(absl::Time now) {
  bool changed = false;
  std::erase_if(watched_, [&](LaneGroup group) {
    if (schedule_.loading(group)) return false;
    if (schedule_.in_use(group)) {
      lane::GroupWords& words = memory_->group(group);
      const uint64_t position = schedule_.last_position(group);
      if (!by_flags(position)) {
        schedule_.SawDone(group, words.done.load(std::memory_order_acquire));
      } else if (words.done_flag.load() == 1) {
        words.done_flag.store(0);
        // A GPU clears the flag before it writes done_flag. If the flag is set,
        // done_flag is from a use that outlived the last hoistd.
        if (words.flag.load() != lane::kFlagEmpty) return false;
        schedule_.SawDoneFlag(group);
        done_place_ = static_cast<uint32_t>(position % spec_.order.size()) + 1;
        done_at_ = now;
      }
      if (schedule_.in_use(group)) return false;
    }
    TellSkipped(group);
    is_watched_[group] = false;
    ++changes_;
    changed = true;
    return true;
  });
  return changed;
}

bool Lane::LookAtWant(absl::Time now) {
  jump_due_ = false;
  const uint32_t want = memory_->header().want.load();
  if (want == 0 || want > spec_.order.size()) return false;
  const uint64_t head = schedule_.head();
  if (head < captured_from_) return false;  // Staged in order.
  if (want == done_place_ && now - done_at_ < kWantLag) return false;
  const uint64_t place = want - 1;
  const LaneGroup group = spec_.order[place];
  // The group is in its slot, on its way, or its last use is just ending.
  if (schedule_.loading(group) || schedule_.in_use(group)) return false;
  const uint64_t at = head % spec_.order.size();
  const uint64_t order = spec_.order.size();
  return Jump(want, head + (place + order - at) % order);
}

// Skips positions that the GPU did not take, and [head, to). The GPU stages in
// order, and takes nothing else while it waits for `want`. After it has cleared
// the flags, this checks that the GPU still waits, else sets the flags again.
bool Lane::Jump(uint32_t want, uint64_t to) {
  const bool passes =
      std::any_of(watched_.begin(), watched_.end(), [&](LaneGroup group) {
        return schedule_.in_use(group) &&
               memory_->group(group).flag.load() != lane::kFlagTaken;
      });
  if (!passes && to == schedule_.head()) return false;
  // A copy in flight would set its flag later.
  jump_due_ = true;
  if (!under_way_.empty() || current_.has_value()) return false;
  std::vector<std::pair<uint64_t, LaneGroup>> passed;
  for (const LaneGroup group : watched_) {
    const uint64_t position = schedule_.last_position(group);
    if (!schedule_.in_use(group)) continue;
    if (!by_flags(position)) return false;  // Its kernels still run.
    uint32_t flag = lane::kFlagReady;
    if (memory_->group(group).flag.compare_exchange_strong(flag,
                                                           lane::kFlagEmpty)) {
      passed.push_back({position, group});
    }
  }
  if (passed.empty() && to == schedule_.head()) return false;
  if (memory_->header().want.load() != want) {
    for (const auto& [position, group] : passed) {
      uint32_t flag = lane::kFlagEmpty;
      memory_->group(group).flag.compare_exchange_strong(flag,
                                                         lane::kFlagReady);
      memory_->Wake(memory_->group(group).flag);
    }
    return true;
  }
  std::sort(passed.begin(), passed.end());
  return SkipTo(passed, to);
}

bool Lane::SkipTo(const std::vector<std::pair<uint64_t, LaneGroup>>& passed,
                  uint64_t to) {
  for (const auto& [position, group] : passed) {
    CountSkipped(position, position + 1);
    if (absl::Status status = schedule_.Skip(position, position + 1);
        !status.ok()) {
      Fail(Annotate(status, "pass over what a graph did not take"));
      return true;
    }
  }
  const uint64_t head = schedule_.head();
  if (to > head) {
    CountSkipped(head, to);
    if (absl::Status status = schedule_.Skip(head, to); !status.ok()) {
      Fail(Annotate(status, "pass over what a graph leaves out"));
    }
  }
  return true;
}

void Lane::CountSkipped(uint64_t from, uint64_t to) {
  stats_.skipped += to - from;
  for (const LaneGroup group : watched_) {
    const uint64_t position = schedule_.last_position(group);
    if (copied_[group] && position >= from && position < to) {
      copied_[group] = false;
      ++stats_.wasted_loads;
    }
  }
}

void Lane::Watch(LaneGroup group) {
  if (is_watched_[group]) return;
  is_watched_[group] = true;
  watched_.push_back(group);
}

bool Lane::Advance() {
  if (!alive() || current_.has_value() || jump_due_ || resume_due_) {
    return false;
  }
  stale_.clear();
  schedule_.TakeStale(stale_);
  for (const LaneSchedule::Refresh& refresh : stale_) {
    lane::GroupWords& words = memory_->group(refresh.group);
    if (refresh.ready) memory_->Store(words.ready, refresh.word);
    if (refresh.done) memory_->Store(words.done, refresh.word);
  }
  served_.clear();
  const std::optional<LaneSchedule::Load> load = schedule_.NextLoad(served_);
  for (const LaneSchedule::Serve& serve : served_) Serve(serve);
  if (load.has_value()) {
    current_ = Current{*load};
    copied_[load->group] = true;
    Watch(load->group);
  } else {
    AskHost();
  }
  const bool changed = load.has_value() || !served_.empty() || !stale_.empty();
  changed_ |= changed;
  return changed;
}

void Lane::Serve(const LaneSchedule::Serve& serve) {
  Watch(serve.group);
  copied_[serve.group] = false;
  ++changes_;
  ++stats_.served_in_place;
  lane::GroupWords& words = memory_->group(serve.group);
  if (by_flags(serve.position)) {
    memory_->Store(words.flag, lane::kFlagReady);
  } else {
    memory_->Store(words.ready, lane::WordOf(serve.position));
  }
}

void Lane::AskHost() {
  const std::optional<LaneGroup> group = schedule_.blocked_on_host();
  if (!group.has_value() || hosts_[*group].asked) return;
  hosts_[*group].asked = true;
  if (Traces(parts_.trace)) TraceHostAsked(*group);
  ++stats_.host_waits;
  changed_ = true;
  parts_.events->host_wanted(spec_.plan, *group);
}

bool Lane::HasPiece() {
  Advance();
  return has_piece();
}

void Lane::AddTo(LinkPiece& piece, uint64_t at_most) {
  const ImageRanges& ranges = hosts_[current_->load.group].ranges;
  const uint64_t slot = spec_.groups[current_->load.group].device_offset;
  while (current_->range < ranges.size() && piece.bytes < at_most &&
         piece.rows.size() < kRunsAPiece) {
    const ImageRange& range = ranges[current_->range];
    const uint64_t bytes =
        std::min(at_most - piece.bytes, range.bytes - current_->at);
    piece.Add(slot + range.image_offset + current_->at,
              parts_.host.subspan(range.host_offset + current_->at, bytes));
    if (Traces(parts_.trace)) {
      AddPart(KeyOf(current_->load.group), spec_.session, bytes, piece.parts);
    }
    current_->at += bytes;
    if (current_->at < range.bytes) return;
    ++current_->range;
    current_->at = 0;
  }
}

LinkPiece Lane::TakePiece(uint64_t at_most) {
  const uint64_t joined_bytes = std::min(at_most, joined_bytes_);
  LinkPiece piece;
  Taken& taken = under_way_.emplace_back();
  AddTo(piece, at_most);
  // Joins small groups, since words between their copies would cost time.
  while (current_->range == hosts_[current_->load.group].ranges.size()) {
    const LaneSchedule::Load load = current_->load;
    const bool by_flag = by_flags(load.position);
    taken.ends.push_back({load, by_flag});
    lane::GroupWords& words = memory_->group(load.group);
    piece.words.push_back(
        by_flag ? WordWrite{&words.flag, lane::kFlagReady}
                : WordWrite{&words.ready, lane::WordOf(load.position)});
    current_ = std::nullopt;
    Advance();
    if (!has_piece()) break;
    const Host& next = hosts_[current_->load.group];
    if (piece.bytes + next.bytes > joined_bytes ||
        piece.rows.size() + next.ranges.size() > kRunsAPiece) {
      break;
    }
    AddTo(piece, at_most);
  }
  taken.bytes = piece.bytes;
  return piece;
}

void Lane::Refused(const absl::Status& why) {
  Fail(Annotate(why, "copy to the device"));
}

void Lane::Ended(const absl::Status&, absl::Time now) {
  const Taken taken = std::move(under_way_.front());
  under_way_.pop_front();
  changed_ = true;
  released_ = false;  // It may overwrite released words.
  stats_.copied_bytes += taken.bytes;
  for (const End& end : taken.ends) Loaded(end, now);
}

void Lane::Loaded(const End& end, absl::Time now) {
  const auto& [load, by_flag] = end;
  ++stats_.loads;
  ++changes_;
  schedule_.Loaded(load);
  if (!schedule_.in_use(load.group)) TellSkipped(load.group);
  // The captured form may have begun after the copy was queued.
  if (!by_flag && by_flags(load.position) && alive() &&
      schedule_.in_use(load.group)) {
    memory_->Store(memory_->group(load.group).flag, lane::kFlagReady);
  }
  Host& host = hosts_[load.group];
  if (!host.once) return;
  host = {};
  schedule_.SetHostReady(load.group, false);
  if (load.position > used_position_ && used_at_ > absl::InfinitePast()) {
    const absl::Duration step =
        (now - used_at_) / static_cast<int64_t>(load.position - used_position_);
    step_ = step_ == absl::ZeroDuration() ? step : (3 * step_ + step) / 4;
  }
  used_position_ = load.position;
  used_at_ = now;
  if (!closed_) parts_.events->host_used(spec_.plan, load.group, step_);
}

// The oldest requested position that is not ready.
std::optional<Lane::Wanted> Lane::FindWanted() const {
  if (stats_.captured && schedule_.head() >= captured_from_) {
    const uint32_t want = memory_->header().want.load();
    if (want == 0 || want > spec_.order.size()) return std::nullopt;
    const LaneGroup group = spec_.order[want - 1];
    if (schedule_.in_use(group) && !schedule_.loading(group)) {
      return std::nullopt;
    }
    const uint64_t order = spec_.order.size();
    const uint64_t at = schedule_.head() % order;
    return Wanted{schedule_.head() + (want - 1 + order - at) % order, changes_};
  }
  uint64_t oldest = schedule_.head();
  for (const LaneGroup group : watched_) {
    if (schedule_.loading(group)) {
      oldest = std::min(oldest, schedule_.last_position(group));
    }
  }
  if (lane::Reached(static_cast<uint32_t>(oldest), cursor_)) {
    return std::nullopt;
  }
  return Wanted{oldest, 0};
}

bool Lane::quiet(bool held_back) const {
  if (closed_) return under_way_.empty();
  if (!stats_.fault.ok()) return released_ && !stats_.captured;
  if (resume_due_) return false;
  if (!under_way_.empty() || stats_.captured) return false;
  if (current_.has_value() && !held_back) return false;
  if (parts_.cpu_workers) return true;
  // Kernels of staged groups will write done words.
  return std::ranges::none_of(
      watched_, [this](LaneGroup group) { return Staged(group); });
}

bool Lane::Staged(LaneGroup group) const {
  const uint64_t position = schedule_.last_position(group);
  if (by_flags(position)) {
    return memory_->group(group).flag.load() == lane::kFlagTaken;
  }
  return !lane::Reached(static_cast<uint32_t>(position), cursor_);
}

absl::Time Lane::deadline() const {
  if (!alive() || !wanted_.has_value()) return absl::InfiniteFuture();
  return wanted_since_ + spec_.stage_deadline;
}

void Lane::CheckDeadline(absl::Time now) {
  if (now < deadline()) return;
  if (now - deadline() > kOverslept && !std::exchange(waits_anew_, true)) {
    stats_.waited += now - wanted_since_;
    wanted_since_ = now;
    return;
  }
  stats_.waited += now - wanted_since_;
  ++stats_.waits;
  const LaneGroup group = schedule_.GroupAt(wanted_->position);
  Fail(absl::DeadlineExceededError(absl::StrCat(
      "streamed group ", group, " (position ", wanted_->position,
      ") was not ready ", absl::FormatDuration(spec_.stage_deadline),
      " after it was staged; it waits for ", WaitCause(group))));
}

std::string Lane::WaitCause(LaneGroup group) const {
  if (schedule_.loading(group)) return "its copy over the link";
  // Positions are served in order, so the head is the cause.
  const LaneGroup head = schedule_.GroupAt(schedule_.head());
  const std::string before =
      head == group ? "" : absl::StrCat("group ", head, ", which waits for ");
  if (schedule_.blocked_on_host().has_value()) {
    return before + "the image on the host; a larger host pool would help";
  }
  const std::optional<LaneGroup> holder = schedule_.holder();
  if (!holder.has_value()) return before + "its turn on the link";
  if (*holder == head) {
    return before + "the kernels of its own last position, which is not done";
  }
  return absl::StrCat(before, "its slot: group ", *holder,
                      " in the same place is not done (position ",
                      schedule_.last_position(*holder), ")");
}

// Releases a few groups per call, so that a large lane delays no other. True:
// some groups had never been released.
bool Lane::Release() {
  lane::Header& header = memory_->header();
  const uint32_t word = header.cursor.load() + kFarAhead;
  const auto release = [&](LaneGroup group) {
    lane::GroupWords& words = memory_->group(group);
    if (words.ready.load() != word) memory_->Store(words.ready, word);
    if (stats_.captured && words.flag.load() == lane::kFlagEmpty) {
      memory_->Store(words.flag, lane::kFlagReady);
    }
  };
  if (released_ && !stats_.captured) return false;
  const uint32_t want = header.want.load();
  if (want != 0 && want <= spec_.order.size()) {
    release(spec_.order[want - 1]);
  }
  const size_t count = std::min(kReleasesALook, spec_.groups.size());
  for (size_t i = 0; i < count; ++i) {
    release(static_cast<LaneGroup>(release_at_));
    release_at_ = (release_at_ + 1) % spec_.groups.size();
    if (release_at_ == 0) released_ = under_way_.empty();
  }
  return !released_ && under_way_.empty();
}

void Lane::SetSleeping(bool sleeping) {
  memory_->header().sleeping.store(sleeping ? 1 : 0);
}

}  // namespace hoistd
