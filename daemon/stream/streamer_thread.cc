#include "daemon/stream/streamer_thread.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

// What follows at once (the next group's done word) is seen without a nap.
constexpr int kSpins = 16;
constexpr absl::Duration kShortestNap = absl::Microseconds(1);
constexpr absl::Duration kNapOverhead = absl::Microseconds(3);
constexpr absl::Duration kLongestNap = absl::Milliseconds(1);
constexpr absl::Duration kLazyNap = absl::Milliseconds(5);
constexpr absl::Duration kLazyAfter = absl::Seconds(10);
// Naps grow with the time since anything was new, by this part of it: what
// comes then is seen at most so much later.
constexpr int kNapPart = 32;
// Who stages layer after layer should not have to wake us for each; before this
// we only nap.
constexpr absl::Duration kSleepAfter = absl::Milliseconds(5);
constexpr int kLooksToHealth = 1 << 14;
constexpr absl::Duration kHealthAfter = absl::Milliseconds(1);
constexpr absl::Duration kRateWindow = absl::Seconds(1);

absl::Status CheckSpec(const LaneSpec& spec) {
  const size_t groups = spec.groups.size();
  if (groups == 0 || groups > hoist::lane::kMaxGroups || spec.order.empty() ||
      spec.order.size() > LaneSchedule::kMaxOrder) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lane of ", groups, " groups and ", spec.order.size(),
                     " positions a pass; both must be from 1 to 2^20"));
  }
  std::vector<bool> named(groups);
  for (const uint32_t group : spec.order) {
    if (group >= groups) {
      return absl::InvalidArgumentError("the order names a group of no lane");
    }
    named[group] = true;
  }
  for (size_t i = 0; i < groups; ++i) {
    const LaneSpec::Streamed& group = spec.groups[i];
    if (!named[i] || group.bytes == 0 || group.bytes > group.slot.bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "group ", i, " is not in the order, is empty or exceeds its slot"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Streamer>> Streamer::Create(
    StreamerParts parts, StreamerEvents events) {
  HOIST_CHECK(parts.device != nullptr && parts.clock != nullptr);
  HOIST_ASSIGN_OR_RETURN(auto copies, CopyQueue::Create(*parts.device));
  hoist::UniqueFd command(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  hoist::UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!command.valid() || !epoll.valid()) {
    return ErrnoToStatus(errno, "make a streamer's descriptors");
  }
  epoll_event event = {.events = EPOLLIN | EPOLLET, .data = {}};
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, command.get(), &event) != 0) {
    return ErrnoToStatus(errno, "watch a streamer's commands");
  }
  return std::make_unique<StreamerThread>(parts, std::move(events),
                                          std::move(copies), std::move(command),
                                          std::move(epoll));
}

StreamerThread::StreamerThread(StreamerParts parts, StreamerEvents events,
                               std::unique_ptr<CopyQueue> copies,
                               hoist::UniqueFd command, hoist::UniqueFd epoll)
    : parts_(parts),
      events_(std::move(events)),
      command_(std::move(command)),
      epoll_(std::move(epoll)),
      copies_(std::move(copies)),
      thread_([this] { Run(); }) {}

StreamerThread::~StreamerThread() {
  Post([this] { stopping_ = true; });
  thread_.join();
  copies_.reset();  // Before the lanes whose words its streams write.
}

void StreamerThread::Open(
    LaneSpec spec, absl::AnyInvocable<void(absl::StatusOr<LaneShare>)> done) {
  Post([this, spec = std::move(spec), done = std::move(done)]() mutable {
    std::move(done)(OpenNow(std::move(spec)));
  });
}

void StreamerThread::Close(PlanId plan, absl::AnyInvocable<void()> done) {
  Post([this, closing = Closing{plan, std::move(done)}]() mutable {
    CloseNow(std::move(closing));
  });
}

void StreamerThread::HostReady(PlanId plan, LaneGroup group,
                               uint64_t host_offset, bool once) {
  Post([this, plan, group, host_offset, once] {
    Lane* const lane = Find(plan);
    if (lane != nullptr) lane->HostReady(group, host_offset, once);
  });
}

void StreamerThread::TakeBack(PlanId plan, LaneGroup group) {
  Post([this, plan, group] {
    Lane* const lane = Find(plan);
    if (lane != nullptr) lane->TakeBack(group);
  });
}

void StreamerThread::Fail(PlanId plan, absl::Status why) {
  Post([this, plan, why = std::move(why)] {
    Lane* const lane = Find(plan);
    if (lane != nullptr) lane->Fail(why);
  });
}

void StreamerThread::SetShare(PlanId plan, ShareOptions share) {
  Post([this, plan, share] {
    Lane* const lane = Find(plan);
    if (lane == nullptr) return;
    share_.Set(plan, share);
    lane->SetShare(share);
  });
}

std::vector<LaneStats> StreamerThread::Stats() const {
  const absl::Time now = parts_.clock->Now();
  const absl::MutexLock lock(&mu_);
  std::vector<LaneStats> all;
  for (const auto& [plan, lane] : published_) {
    all.push_back(lane.stats);
    const absl::Duration time = now - lane.since;
    if (time <= absl::ZeroDuration() || now - lane.last_copy > kRateWindow) {
      continue;
    }
    all.back().bytes_per_second = static_cast<uint64_t>(
        static_cast<double>(lane.stats.copied_bytes - lane.bytes_at_since) /
        absl::ToDoubleSeconds(time));
  }
  return all;
}

void StreamerThread::Post(Command command) {
  {
    const absl::MutexLock lock(&mu_);
    commands_.push_back(std::move(command));
  }
  // Never read: each write is an edge, and it takes 2^64 of them to fill.
  const uint64_t one = 1;
  HOIST_CHECK(write(command_.get(), &one, sizeof(one)) == sizeof(one));
}

void StreamerThread::Run() {
  // Naps of a microsecond would else last 50 more. Refused: they do.
  prctl(PR_SET_TIMERSLACK, 1);
  while (!stopping_) {
    bool news = RunCommands();
    const absl::Time now = parts_.clock->Now();
    news |= TakeEnded(now);
    news |= LookAtLanes(now);
    news |= Fill(now);
    news |= FinishClosing();
    Publish(now);
    if (news) {
      spins_ = 0;
      rested_ = absl::ZeroDuration();
    } else {
      Rest(now);
    }
  }
  // No new copies; those under way end before what they write to goes.
  for (auto& [plan, lane] : lanes_) lane->Close();
  while (copies_->under_way() > 0) {
    const absl::Time now = parts_.clock->Now();
    if (!TakeEnded(now)) CheckHealth(now);
    Wait(kLongestNap);
  }
  FinishClosing();
}

bool StreamerThread::RunCommands() {
  std::vector<Command> commands;
  {
    const absl::MutexLock lock(&mu_);
    commands.swap(commands_);
  }
  for (Command& command : commands) std::move(command)();
  return !commands.empty();
}

Lane* StreamerThread::Find(PlanId plan) {
  const auto it = lanes_.find(plan);
  if (it == lanes_.end() || it->second->closed()) return nullptr;
  return it->second.get();
}

absl::StatusOr<LaneShare> StreamerThread::OpenNow(LaneSpec spec) {
  HOIST_RETURN_IF_ERROR(broken_);
  HOIST_RETURN_IF_ERROR(CheckSpec(spec));
  const PlanId plan = spec.plan;
  if (lanes_.contains(plan)) {
    return absl::AlreadyExistsError(
        absl::StrCat("plan ", plan.number(), " has a lane already"));
  }
  if (lanes_.size() >= kMaxLanes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kMaxLanes, " plans stream on this device already; close one first"));
  }
  HOIST_ASSIGN_OR_RETURN(
      auto memory,
      LaneMemory::Create(*parts_.device,
                         static_cast<uint32_t>(spec.groups.size()),
                         static_cast<uint32_t>(spec.order.size())));
  HOIST_ASSIGN_OR_RETURN(LaneShare share, memory->Share());
  epoll_event event = {.events = EPOLLIN | EPOLLET, .data = {}};
  // Edges: the client may set the flags that it shares with us, so a read of
  // it could block.
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, memory->wake_fd(), &event) != 0) {
    return ErrnoToStatus(errno, "watch a lane");
  }
  const Lane::Parts parts = {
      .host = parts_.host,
      .events = &events_,
      .cpu_workers = parts_.device->info().kind == DeviceKind::kEmulated};
  share_.Add(plan, spec.share);
  auto lane = std::make_unique<Lane>(std::move(spec), std::move(memory), parts);
  lanes_.emplace(plan, std::move(lane));
  return share;
}

void StreamerThread::CloseNow(Closing closing) {
  const auto it = lanes_.find(closing.plan);
  if (it != lanes_.end()) it->second->Close();
  closing_.push_back(std::move(closing));
}

bool StreamerThread::FinishClosing() {
  bool news = false;
  for (size_t i = 0; i < closing_.size();) {
    const auto it = lanes_.find(closing_[i].plan);
    if (it != lanes_.end() && !it->second->idle()) {
      ++i;
      continue;
    }
    if (it != lanes_.end()) {
      const int wake = it->second->memory().wake_fd();
      // The client's copies of it would keep it in the set.
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, wake, nullptr);
      share_.Remove(closing_[i].plan);
      if (!broken_.ok()) kept_.push_back(std::move(it->second));
      lanes_.erase(it);
      const absl::MutexLock lock(&mu_);
      published_.erase(closing_[i].plan);
    }
    Closing closing = std::move(closing_[i]);
    closing_.erase(closing_.begin() + static_cast<std::ptrdiff_t>(i));
    std::move(closing.done)();
    news = true;
  }
  return news;
}

bool StreamerThread::TakeEnded(absl::Time now) {
  const std::vector<Piece> ended = copies_->Ended();
  // However busy lanes keep this thread, an error is seen.
  looks_ = ended.empty() && copies_->under_way() > 0 ? looks_ + 1 : 0;
  if (looks_ >= kLooksToHealth) {
    looks_ = 0;
    CheckHealth(now);
  }
  for (const Piece& piece : ended) {
    copied_bytes_ += piece.bytes;
    piece.lane->Ended(piece, now);
  }
  return !ended.empty();
}

bool StreamerThread::LookAtLanes(absl::Time now) {
  bool news = false;
  for (auto& [plan, lane] : lanes_) {
    news |= lane->Look(now);
    news |= lane->Advance();
    lane->CheckDeadline(now);
  }
  return news;
}

bool StreamerThread::Fill(absl::Time now) {
  bool news = false;
  held_back_ = false;
  while (copies_->under_way() < kPiecesUnderWay) {
    ready_.clear();
    for (auto& [plan, lane] : lanes_) {
      lane->Advance();
      if (lane->has_piece()) ready_.push_back(plan);
    }
    if (ready_.empty()) break;
    const std::optional<PlanId> next = share_.Pick(ready_, now);
    if (!next.has_value()) {
      held_back_ = true;
      next_turn_ = share_.NextTurn(ready_);
      break;
    }
    Queue(*lanes_.at(*next), now);
    news = true;
  }
  return news;
}

void StreamerThread::Queue(Lane& lane, absl::Time now) {
  Piece piece = lane.TakePiece();
  share_.Charge(lane.plan(), piece.bytes, now);
  bool queued = false;
  const absl::Status status = copies_->Add(std::move(piece), queued);
  if (!queued) lane.NotQueued();
  if (!status.ok()) lane.Fail(Annotate(status, "copy to the device"));
}

// An error of the device: no stream of ours will write a word again.
void StreamerThread::CheckHealth(absl::Time now) {
  const absl::Status health = copies_->Health();
  if (health.ok()) return;
  if (broken_.ok()) spdlog::error("streaming stops: {}", health.ToString());
  broken_ = Annotate(health, "copies to the device failed");
  for (const Piece& piece : copies_->GiveUp()) piece.lane->Ended(piece, now);
  for (auto& [plan, lane] : lanes_) lane->Fail(broken_);
}

void StreamerThread::Publish(absl::Time now) {
  for (auto& [plan, lane] : lanes_) {
    if (!lane->TakeChanged()) continue;
    const absl::MutexLock lock(&mu_);
    const auto [it, is_new] = published_.try_emplace(plan);
    Published& to = it->second;
    if (is_new) to.since = to.mark = now;
    if (lane->stats().copied_bytes != to.stats.copied_bytes) {
      to.last_copy = now;
    }
    to.stats = lane->stats();
    if (now - to.mark < kRateWindow) continue;
    to.since = std::exchange(to.mark, now);
    to.bytes_at_since = std::exchange(to.bytes_at_mark, to.stats.copied_bytes);
  }
}

bool StreamerThread::AllQuiet() const {
  return copies_->under_way() == 0 &&
         std::all_of(lanes_.begin(), lanes_.end(), [this](const auto& entry) {
           return entry.second->quiet(held_back_);
         });
}

void StreamerThread::SetSleeping(bool sleeping) {
  for (auto& [plan, lane] : lanes_) lane->SetSleeping(sleeping);
}

void StreamerThread::Rest(absl::Time now) {
  if (++spins_ <= kSpins) return;
  absl::Time until = held_back_ ? next_turn_ : absl::InfiniteFuture();
  for (const auto& [plan, lane] : lanes_) {
    until = std::min(until, lane->deadline());
  }
  if (rested_ >= kSleepAfter && AllQuiet()) {
    // Who changes a word after this look sees that we sleep, and wakes us.
    SetSleeping(true);
    if (LookAtLanes(now) || Fill(now)) {
      spins_ = 0;
    } else {
      Wait(std::max(until - now, kShortestNap));
    }
    SetSleeping(false);
    return;
  }
  if (copies_->under_way() > 0 && rested_ >= kHealthAfter) CheckHealth(now);
  const absl::Duration longest =
      rested_ >= kLazyAfter && copies_->under_way() == 0 ? kLazyNap
                                                         : kLongestNap;
  absl::Duration nap = std::clamp(rested_ / kNapPart, kShortestNap, longest);
  nap = std::clamp(until - now, kShortestNap, nap);
  // The kernel's part of a nap, which the shortest ones mostly are, is guessed.
  rested_ += nap + kNapOverhead;
  Wait(nap);
}

void StreamerThread::Wait(absl::Duration limit) {
  pollfd poll = {.fd = epoll_.get(), .events = POLLIN, .revents = 0};
  timespec time = {};
  const bool forever = limit == absl::InfiniteDuration();
  if (!forever) time = absl::ToTimespec(std::min(limit, absl::Hours(1)));
  if (ppoll(&poll, 1, forever ? nullptr : &time, nullptr) <= 0) return;
  // Takes the edges; which they were does not matter.
  std::array<epoll_event, 64> events;
  while (epoll_wait(epoll_.get(), events.data(), events.size(), 0) ==
         static_cast<int>(events.size())) {
    continue;
  }
}

}  // namespace hoistd
