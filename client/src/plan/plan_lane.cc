#include "client/src/plan/plan_lane.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "client/src/device/word_wait.h"

namespace hoist {
namespace {

using Kind = WordOp::Kind;
using std::chrono::steady_clock;

// A write to another kind of file could block, or raise SIGPIPE. Without /proc
// the kind is unknown.
Status CheckIsEventFd(int fd) {
  std::array<char, 64> target;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = readlink(link.c_str(), target.data(), target.size());
  if (size < 0 || std::string_view(target.data(), static_cast<size_t>(size)) ==
                      "anon_inode:[eventfd]") {
    return Status();
  }
  return Status(Code::kInternal, "hoistd sent a lane without an eventfd");
}

}  // namespace

Result<std::unique_ptr<PlanLane>> PlanLane::Create(const UniqueFd& memory,
                                                   UniqueFd wake,
                                                   Options options,
                                                   StreamOrder* order) {
  if (Status s = CheckIsEventFd(wake.get()); !s.ok()) return s;
  Result<LaneView> view = LaneView::Map(
      memory, options.groups, static_cast<uint32_t>(options.order.size()));
  if (!view.ok()) return view.status();
  if (Status s = order->Register(view->memory()); !s.ok()) return s;
  return std::unique_ptr<PlanLane>(new PlanLane(
      std::move(view).value(), std::move(wake), std::move(options), order));
}

PlanLane::PlanLane(LaneView view, UniqueFd wake, Options options,
                   StreamOrder* order)
    : view_(std::move(view)),
      wake_(std::move(wake)),
      options_(std::move(options)),
      order_(order),
      places_(options_.order.size()),
      first_place_(options_.groups + 1) {
  for (const uint32_t group : options_.order) ++first_place_[group + 1];
  for (uint32_t g = 0; g < options_.groups; ++g) {
    first_place_[g + 1] += first_place_[g];
  }
  std::vector<uint32_t> next(first_place_.begin(), first_place_.end() - 1);
  for (uint32_t place = 0; place < options_.order.size(); ++place) {
    places_[next[options_.order[place]]++] = place;
  }
}

PlanLane::~PlanLane() { order_->Unregister(view_.memory()); }

uint32_t PlanLane::DistanceTo(uint32_t group, uint32_t place) const {
  const auto begin = places_.begin() + first_place_[group];
  const auto end = places_.begin() + first_place_[group + 1];
  const auto found = std::lower_bound(begin, end, place);
  if (found != end) return *found - place;
  return *begin + static_cast<uint32_t>(options_.order.size()) - place;
}

Status PlanLane::FollowCapture(cuda::Stream stream, bool idle) {
  if (order_->on_cpu() || captured()) return Status();
  const Result<bool> capturing = order_->IsCapturing(stream);
  if (!capturing.ok()) return capturing.status();
  if (!capturing.value()) return Status();
  if (!idle) {
    return Status(Code::kFailedPrecondition,
                  "groups of the plan were staged before the capture and are "
                  "not done; end them before it begins");
  }
  if (Status s = Ask(lane::RequestKind::kCapture, cursor_, 0); !s.ok()) {
    return s;
  }
  captured_.store(true, std::memory_order_release);
  return Status();
}

Result<PlanLane::Turn> PlanLane::Take(uint32_t group, cuda::Stream stream) {
  return captured() ? TakeCaptured(group, stream) : TakeCounted(group, stream);
}

Result<PlanLane::Turn> PlanLane::TakeCounted(uint32_t group,
                                             cuda::Stream stream) {
  const size_t length = options_.order.size();
  const auto place = static_cast<uint32_t>(cursor_ % length);
  if (options_.order[place] != group) {
    const uint64_t position = cursor_ + DistanceTo(group, place);
    if (Status s = Ask(lane::RequestKind::kSkip, cursor_, position); !s.ok()) {
      return s;
    }
    stats_.skipped += position - cursor_;
    PublishCursor(position);
  }
  Turn turn = {cursor_, false};
  lane::Word& ready = view_.group(group).ready;
  turn.ready = lane::Reached(ready.load(std::memory_order_acquire),
                             lane::WordOf(turn.position));
  if (!turn.ready && !order_->on_cpu()) {
    if (Status s = Join(group, turn, stream); !s.ok()) return s;
  }
  PublishCursor(cursor_ + 1);
  Wake();
  return turn;
}

Result<PlanLane::Turn> PlanLane::TakeCaptured(uint32_t group,
                                              cuda::Stream stream) {
  const auto length = static_cast<uint32_t>(options_.order.size());
  if (Status s = FollowLastStream(stream); !s.ok()) return s;
  const uint32_t distance = DistanceTo(group, place_);
  const uint32_t place = (place_ + distance) % length;
  lane::Header& header = view_.header();
  lane::GroupWords& words = view_.group(group);
  const std::array<WordOp, 3> ops = {
      {{Kind::kWrite, &header.want, place + 1},
       {Kind::kWait, &words.flag, lane::kFlagReady},
       {Kind::kWrite, &words.flag, lane::kFlagTaken}}};
  if (Status s = order_->Put(stream, ops); !s.ok()) return s;
  stats_.skipped += distance;
  place_ = (place + 1) % length;
  Wake();
  return Turn{place, false};
}

Status PlanLane::FollowLastStream(cuda::Stream stream) {
  const cuda::Stream last = std::exchange(last_stream_, stream);
  if (!std::exchange(any_stream_, true) || last == stream) return Status();
  const Result<bool> now = order_->IsCapturing(stream);
  if (!now.ok()) return now.status();
  const Result<bool> before = order_->IsCapturing(last);
  if (!before.ok()) return before.status();
  // A capture is not ordered with work outside it until the graph runs. The
  // caller orders its launch.
  if (now.value() != before.value()) return Status();
  return order_->After(stream, last);
}

Status PlanLane::Join(uint32_t group, Turn turn, cuda::Stream stream) {
  if (captured() || order_->one_at_a_time()) {
    if (Status s = FollowLastStream(stream); !s.ok()) return s;
  }
  lane::GroupWords& words = view_.group(group);
  const WordOp wait =
      captured()
          ? WordOp{Kind::kWait, &words.flag, lane::kFlagReady}
          : WordOp{Kind::kWait, &words.ready, lane::WordOf(turn.position)};
  return order_->Put(stream, {&wait, 1});
}

Status PlanLane::Await(uint32_t group, Turn turn) {
  return Join(group, turn, nullptr);
}

Status PlanLane::Finish(uint32_t group, Turn turn, cuda::Stream stream) {
  lane::GroupWords& words = view_.group(group);
  if (captured() || order_->one_at_a_time()) {
    if (Status s = FollowLastStream(stream); !s.ok()) return s;
  }
  Status put;
  if (captured()) {
    const std::array<WordOp, 3> ops = {
        {{Kind::kWrite, &words.flag, lane::kFlagEmpty},
         {Kind::kWrite, &words.done_flag, 1},
         {Kind::kWrite, &view_.header().want, 0}}};
    put = order_->Put(stream, ops);
  } else {
    const WordOp done = {Kind::kWrite, &words.done,
                         lane::WordOf(turn.position)};
    put = order_->Put(stream, {&done, 1});
  }
  if (put.ok()) Wake();
  return put;
}

Status PlanLane::Ask(lane::RequestKind kind, uint64_t from, uint64_t to) {
  lane::Header& header = view_.header();
  const auto full = [&] {
    return head_ - header.tail.load(std::memory_order_acquire) >=
           lane::kRequests;
  };
  if (full()) {
    ++stats_.host_waits;
    const auto deadline = steady_clock::now() + options_.ring_limit;
    // hoistd may sleep: it read the ring before it was full.
    Wake();
    while (full() && !released_.load() && !faulted()) {
      const uint32_t tail = header.tail.load(std::memory_order_acquire);
      const auto now = steady_clock::now();
      if (now >= deadline) {
        return Status(Code::kDeadlineExceeded,
                      "hoistd has taken no requests of the plan for " +
                          std::to_string(options_.ring_limit.count()) + " ms");
      }
      WaitWord(header.tail, tail + 1,
               std::min(deadline, now + std::chrono::milliseconds(10)));
      Wake();
    }
    if (full()) {
      return Status(Code::kUnavailable, "the plan has ended; see its check");
    }
  }
  lane::Request& request = view_.request(head_);
  request = {static_cast<uint32_t>(kind), 0, from, to};
  header.head.store(++head_);
  Wake();
  return Status();
}

void PlanLane::PublishCursor(uint64_t cursor) {
  cursor_ = cursor;
  const auto word = static_cast<uint32_t>(cursor);
  // Sequentially consistent with the end of a plan: either the end sees this
  // cursor and lets its waits through, or this call sees the end.
  published_.store(word);
  view_.header().cursor.store(word);
  if (released_.load() || faulted()) Release();
}

void PlanLane::Wake() {
  // Sequentially consistent with the earlier stores: hoistd sets `sleeping`,
  // then looks again.
  if (view_.header().sleeping.load() != 1) return;
  const uint64_t one = 1;
  // Fails only if the eventfd's counter is full.
  (void)!write(wake_.get(), &one, sizeof(one));
  ++stats_.wake_ups;
}

void PlanLane::Release() {
  released_.store(true);
  const uint32_t cursor = published_.load();
  for (uint32_t g = 0; g < view_.groups(); ++g) {
    lane::GroupWords& words = view_.group(g);
    words.ready.store(cursor, std::memory_order_release);
    if (captured()) {
      words.flag.store(lane::kFlagReady, std::memory_order_release);
    }
    if (order_->on_cpu()) WakeWord(words.ready);
  }
  WakeWord(view_.header().tail);
}

void PlanLane::Retire() {
  view_.header().want.store(0);
  for (uint32_t g = 0; g < view_.groups(); ++g) {
    lane::GroupWords& words = view_.group(g);
    words.done_flag.store(0);
    words.flag.store(lane::kFlagReady);
  }
}

bool PlanLane::UsedSinceRetired() const {
  if (view_.header().want.load() != 0) return true;
  for (uint32_t g = 0; g < view_.groups(); ++g) {
    const lane::GroupWords& words = view_.group(g);
    if (words.flag.load() != lane::kFlagReady) return true;
    if (words.done_flag.load() != 0) return true;
  }
  return false;
}

}  // namespace hoist
