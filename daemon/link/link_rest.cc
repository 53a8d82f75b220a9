// How the link's thread rests while there is no news.
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "daemon/link/link.h"

namespace hoistd {
namespace {

// Spins before the first nap: immediate news (the next group's done word) needs
// no nap.
constexpr int kSpins = 16;
constexpr absl::Duration kShortestNap = absl::Microseconds(1);
// The nap if all loads are images without waiters. Two pieces are queued, so
// the link does not idle meanwhile, and more small images share a piece.
constexpr absl::Duration kLoadNap = absl::Microseconds(50);
constexpr absl::Duration kNapOverhead = absl::Microseconds(3);
constexpr absl::Duration kLongestNap = absl::Milliseconds(1);
constexpr absl::Duration kLazyNap = absl::Milliseconds(5);
constexpr absl::Duration kLazyAfter = absl::Seconds(10);
// A nap is this part of the time since the last news, which bounds the added
// delay.
constexpr int kNapPart = 32;
// Sleep only after this: until then we nap, so that a worker that stages layer
// after layer need not wake us for each.
constexpr absl::Duration kSleepAfter = absl::Milliseconds(5);
constexpr absl::Duration kHealthAfter = absl::Milliseconds(1);

}  // namespace

bool Link::LoadsAlone() const {
  constexpr size_t kQueues = 3;  // Other members are lanes and permits.
  return members_.size() == kQueues && Of(LinkClass::kLeases).under_way == 0 &&
         leases_.quiet(held_back_);
}

bool Link::AllQuiet() const {
  return copies_->under_way() == 0 && grants_.empty() && !no_room_ &&
         std::ranges::all_of(members_, [this](const auto& entry) {
           return entry.second.customer->quiet(held_back_);
         });
}

void Link::SetSleeping(bool sleeping) {
  for (auto& [party, member] : members_) {
    member.customer->SetSleeping(sleeping);
  }
}

absl::Duration Link::Rest(absl::Time now) {
  if (++spins_ <= kSpins) return absl::ZeroDuration();
  absl::Time until = FirstDue();
  if (held_back_) until = std::min(until, next_turn_);
  for (const auto& [party, member] : members_) {
    until = std::min(until, member.customer->deadline());
  }
  if (rested_ >= kSleepAfter && AllQuiet()) {
    // A change after the look below wakes us: it sees us asleep.
    SetSleeping(true);
    sleeping_ = true;
    if (!Look(now) && !Fill(now)) return std::max(until - now, kShortestNap);
    spins_ = 0;
    return absl::ZeroDuration();
  }
  if (copies_->under_way() > 0 && rested_ >= kHealthAfter) CheckHealth(now);
  const absl::Duration longest =
      rested_ >= kLazyAfter && copies_->under_way() == 0 ? kLazyNap
                                                         : kLongestNap;
  absl::Duration nap = std::clamp(
      rested_ / kNapPart, LoadsAlone() ? kLoadNap : kShortestNap, longest);
  nap = std::clamp(until - now, kShortestNap, nap);
  // The kernel's part of a nap is an estimate; it is most of the shortest naps.
  rested_ += nap + kNapOverhead;
  return nap;
}

bool Link::Wait(absl::Duration limit) {
  pollfd poll = {.fd = epoll_.get(), .events = POLLIN, .revents = 0};
  timespec time = {};
  const bool forever = limit == absl::InfiniteDuration();
  if (!forever) time = absl::ToTimespec(std::min(limit, absl::Hours(1)));
  if (ppoll(&poll, 1, forever ? nullptr : &time, nullptr) <= 0) {
    return false;
  }
  // Consumes all edges; their sources do not matter.
  std::array<epoll_event, 64> events;
  while (epoll_wait(epoll_.get(), events.data(), events.size(), 0) ==
         static_cast<int>(events.size())) {
    continue;
  }
  return true;
}

}  // namespace hoistd
