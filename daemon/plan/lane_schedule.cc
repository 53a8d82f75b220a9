#include "daemon/plan/lane_schedule.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "hoist/shared/lane_layout.h"

namespace hoistd {

// Why words are never misjudged. A word is compared with words of positions
// still to serve, and must be less than 2^31 behind them.
//   - By the requests taken, the client is at most kReach ahead of the head.
//     A ring of 256 more passes of 2^20 adds kReach, and groups staged
//     without skips as much again: 3 * 2^28.
//   - Words are checked whenever the head is kStaleAfter further, and those
//     as far behind are refreshed. So they are at most 2 * kStaleAfter behind
//     then, and the head moves at most kReach before the next check. That is
//     3 * 2^28 behind the head, 6 * 2^28 < 2^31 in all.
//   - A ready word cannot be refreshed while a copy is about to write it;
//     Skip then holds the head back, at 4 * 2^28.
namespace {

constexpr uint64_t kReach = uint64_t{1} << 28;
constexpr uint64_t kStaleAfter = uint64_t{1} << 28;
// No honest client is this far ahead.
constexpr uint64_t kOutOfReach = uint64_t{1} << 30;
constexpr uint64_t kTooStale = uint64_t{1} << 30;

}  // namespace

LaneSchedule::LaneSchedule(std::vector<Slot> slots, std::vector<uint32_t> order,
                           uint64_t first_position)
    : groups_(slots.size()),
      order_(std::move(order)),
      head_(first_position),
      swept_at_(first_position) {
  HOIST_CHECK(!order_.empty() && order_.size() <= kMaxOrder);
  std::vector<bool> named(slots.size());
  for (const uint32_t group : order_) {
    HOIST_CHECK(group < slots.size());
    named[group] = true;
  }
  HOIST_CHECK(std::find(named.begin(), named.end(), false) == named.end());
  for (Entry& entry : groups_) {
    entry.ready_word = first_position;
    entry.done_word = first_position;
  }
  FindNeighbours(slots);
}

void LaneSchedule::FindNeighbours(const std::vector<Slot>& slots) {
  std::vector<LaneGroup> by_offset(slots.size());
  std::iota(by_offset.begin(), by_offset.end(), 0);
  std::sort(by_offset.begin(), by_offset.end(), [&](LaneGroup a, LaneGroup b) {
    return slots[a].offset < slots[b].offset;
  });
  for (size_t i = 0; i < by_offset.size(); ++i) {
    const LaneGroup a = by_offset[i];
    HOIST_CHECK(slots[a].bytes > 0);
    for (size_t j = i + 1; j < by_offset.size(); ++j) {
      const LaneGroup b = by_offset[j];
      if (!slots[a].Overlaps(slots[b])) break;  // Nor do later ones.
      groups_[a].neighbours.push_back(b);
      groups_[b].neighbours.push_back(a);
    }
  }
}

// The group's last position below this one; its first if there is none.
uint64_t LaneSchedule::LastBelow(LaneGroup group, uint64_t position) const {
  for (uint64_t back = 1; back <= std::min(position, order_.size()); ++back) {
    if (GroupAt(position - back) == group) return position - back;
  }
  const auto first = std::find(order_.begin(), order_.end(), group);
  return static_cast<uint64_t>(first - order_.begin());
}

void LaneSchedule::ResumeWords(LaneGroup group, uint32_t ready, uint32_t done) {
  Entry& entry = groups_.at(group);
  // Widened to 64 bits at the distance from the head that words can have.
  const auto widened = [&](uint32_t word) {
    const auto apart =
        static_cast<int32_t>(word - static_cast<uint32_t>(head_));
    const bool negative = apart < 0 && head_ < uint64_t(-int64_t{apart});
    return negative ? 0 : head_ + static_cast<uint64_t>(int64_t{apart});
  };
  const uint64_t ready_word = widened(ready);
  const uint64_t done_word = widened(done);
  if (ready_word > head_ + kOutOfReach) return;
  entry.ready_word = ready_word;
  entry.done_word = std::min(done_word, head_);
  if (ready_word <= done_word) return;
  ResumeInUse(entry, LastBelow(group, ready_word));
}

// NextLoad's loop over positions then takes at most one order.
void LaneSchedule::Resumed() {
  const auto least = std::min_element(groups_.begin(), groups_.end(),
                                      [](const Entry& a, const Entry& b) {
                                        return a.ready_word < b.ready_word;
                                      });
  head_ = std::max(head_, least->ready_word);
}

void LaneSchedule::ResumeFlag(LaneGroup group, uint64_t from) {
  uint64_t position = LastBelow(group, head_);
  if (position < from) {
    const uint64_t pass = order_.size();
    position += (from - position + pass - 1) / pass * pass;
  }
  ResumeInUse(groups_.at(group), position);
}

void LaneSchedule::ResumeInUse(Entry& entry, uint64_t position) {
  entry.state = State::kLoaded;
  entry.in_use = true;
  entry.position = position;
  resumed_to_ = std::max(resumed_to_, position + 1);
}

uint64_t LaneSchedule::served() const {
  uint64_t oldest = head_;
  for (const LaneGroup group : loading_) {
    oldest = std::min(oldest, groups_[group].position);
  }
  return oldest;
}

void LaneSchedule::SetHostReady(LaneGroup group, bool ready) {
  groups_.at(group).host_ready = ready;
  if (blocked_on_host_ == group) blocked_on_host_ = std::nullopt;
}

// A kernel may be done before its load's end is known here; the slot is free
// after both.
void LaneSchedule::SawDone(LaneGroup group, uint32_t word) {
  Entry& entry = groups_.at(group);
  if (!entry.in_use) return;
  if (!hoist::lane::Reached(word, hoist::lane::WordOf(entry.position))) return;
  entry.in_use = false;
  entry.done_word = entry.position + 1;
}

void LaneSchedule::SawDoneFlag(LaneGroup group) {
  groups_.at(group).in_use = false;
}

absl::Status LaneSchedule::Skip(uint64_t from, uint64_t to) {
  if (from < skipped_to_ || to < from || to - from > order_.size() ||
      (from > head_ && from - head_ > kOutOfReach)) {
    return absl::InvalidArgumentError(
        absl::StrCat("The request to skip positions ", from, " to ", to,
                     " is void: the head is at ", head_, ", ", skipped_to_,
                     " was skipped to before, and a pass has ", order_.size(),
                     ". Skip forward, at most a pass at a time."));
  }
  const bool far = to > head_ && to - head_ > kReach;
  const bool too_many = from > head_ && skips_.size() >= kMaxSkipsAhead;
  // Words not refreshed yet would fall too far behind.
  const bool not_swept = to > swept_at_ && to - swept_at_ > 2 * kReach;
  const bool too_stale =
      std::any_of(stale_.begin(), stale_.end(), [&](LaneGroup group) {
        const uint64_t word = groups_[group].ready_word;
        return to > word && to - word > kTooStale;
      });
  if (far || too_many || not_swept || too_stale) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "Skipping positions ", from, " to ", to, " must wait: the head is at ",
        head_, ", with ", skips_.size(), " skips before it."));
  }
  skipped_to_ = to;
  // A load in flight of these still has to end, since it writes into the slot.
  // Its ready word, early or late, is one below the next one that the client
  // waits for: a group's positions only grow.
  for (uint64_t at = from; at < std::min(to, std::max(head_, resumed_to_));
       ++at) {
    Entry& entry = groups_[GroupAt(at)];
    if (entry.position == at) entry.in_use = false;
  }
  if (to <= head_ || from == to) return absl::OkStatus();
  // Positions between the head and `from` were staged: kernels wait for them.
  if (!skips_.empty() && skips_.back().to == from) {
    skips_.back().to = to;
  } else {
    skips_.push_back({from, to});
  }
  PassSkips();
  return absl::OkStatus();
}

void LaneSchedule::PassSkips() {
  while (!skips_.empty() && skips_.front().from <= head_) {
    head_ = std::max(head_, skips_.front().to);
    skips_.pop_front();
    blocked_on_host_ = std::nullopt;
  }
}

void LaneSchedule::Use(Entry& entry) {
  entry.position = head_;
  entry.in_use = true;
  ++head_;
  PassSkips();
}

std::optional<LaneGroup> LaneSchedule::holder() const {
  const auto holds = [this](LaneGroup group) {
    return groups_[group].in_use || groups_[group].state == State::kLoading;
  };
  const LaneGroup head = GroupAt(head_);
  if (holds(head)) return head;
  const std::vector<LaneGroup>& others = groups_[head].neighbours;
  const auto found = std::ranges::find_if(others, holds);
  if (found == others.end()) return std::nullopt;
  return *found;
}

std::optional<LaneSchedule::Load> LaneSchedule::NextLoad(
    std::vector<Serve>& served) {
  blocked_on_host_ = std::nullopt;
  while (true) {
    const LaneGroup group = GroupAt(head_);
    const uint64_t position = head_;
    Entry& entry = groups_[group];
    if (entry.ready_word > position) {  // Served by the former schedule.
      ++head_;
      PassSkips();
      continue;
    }
    if (entry.in_use || entry.state == State::kLoading) return std::nullopt;
    // Many words must be refreshed first.
    if (head_ - swept_at_ > 2 * kStaleAfter) return std::nullopt;
    if (head_ - entry.done_word > kTooStale) return std::nullopt;
    if (entry.state == State::kLoaded) {
      Use(entry);
      entry.ready_word = position + 1;
      served.push_back({group, position});
      continue;
    }
    if (holder().has_value()) return std::nullopt;
    if (!entry.host_ready) {
      blocked_on_host_ = group;
      return std::nullopt;
    }
    for (const LaneGroup other : entry.neighbours) {
      groups_[other].state = State::kAbsent;
    }
    entry.state = State::kLoading;
    loading_.push_back(group);
    Use(entry);
    return Load{group, position};
  }
}

void LaneSchedule::Loaded(const Load& load) {
  Entry& entry = groups_.at(load.group);
  HOIST_CHECK(entry.state == State::kLoading);
  HOIST_CHECK(entry.position == load.position);
  entry.state = State::kLoaded;
  entry.ready_word = load.position + 1;
  std::erase(loading_, load.group);
}

void LaneSchedule::AddStale(LaneGroup group) {
  if (groups_[group].stale) return;
  groups_[group].stale = true;
  stale_.push_back(group);
}

// Raises all words to the position before the head. No wait needs less:
// positions below the head were served or skipped. Nor is it too much: the
// group's next position is at or beyond the head.
void LaneSchedule::TakeStale(std::vector<Refresh>& stale) {
  if (head_ - swept_at_ >= kStaleAfter) {
    swept_at_ = head_;
    for (LaneGroup group = 0; group < groups_.size(); ++group) {
      const Entry& entry = groups_[group];
      const uint64_t oldest = std::min(entry.ready_word, entry.done_word);
      if (head_ - oldest >= kStaleAfter) AddStale(group);
    }
  }
  size_t kept = 0;
  for (const LaneGroup group : stale_) {
    Entry& entry = groups_[group];
    Refresh refresh{group, hoist::lane::WordOf(head_ - 1)};
    // A copy is about to write the ready word; the client, the done word.
    const bool may_ready = entry.state != State::kLoading;
    const bool may_done = may_ready && !entry.in_use;
    if (may_ready && head_ >= entry.ready_word + kStaleAfter) {
      entry.ready_word = head_;
      refresh.ready = true;
    }
    if (may_done && head_ - entry.done_word >= kStaleAfter) {
      entry.done_word = head_;
      refresh.done = true;
    }
    if (refresh.ready || refresh.done) stale.push_back(refresh);
    if (may_ready && may_done) {
      entry.stale = false;
    } else {
      stale_[kept++] = group;
    }
  }
  stale_.resize(kept);
}

bool LaneSchedule::present(LaneGroup group) const {
  return groups_.at(group).state != State::kAbsent;
}
bool LaneSchedule::loading(LaneGroup group) const {
  return groups_.at(group).state == State::kLoading;
}
bool LaneSchedule::in_use(LaneGroup group) const {
  return groups_.at(group).in_use;
}
uint64_t LaneSchedule::last_position(LaneGroup group) const {
  return groups_.at(group).position;
}

}  // namespace hoistd
