#include "daemon/core/reclaim.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "daemon/core/tenure.h"

namespace hoistd {
namespace {

// Covers the call itself.
constexpr absl::Duration kShortestIdle = absl::Milliseconds(5);

bool IsWhole(const PlanRequest& asked, const absl::StatusOr<PlanGrant>& grant) {
  return grant.ok() && (!asked.takes_all() || grant->streamed_bytes == 0);
}

uint64_t BytesOf(const PlanGrant& grant) {
  return grant.ring_bytes + grant.resident_bytes;
}

Loan LoanTo(const PlanRequest& asked, absl::Time now) {
  return {Loan::Why::kNeed, now, asked.session, asked.args.model};
}

}  // namespace

std::optional<Reclaim::Decided> Reclaim::Begin(RequestId request,
                                               PlanRequest asked,
                                               absl::Time now,
                                               Effects& effects) {
  const absl::Duration deadline = asked.args.deadline;
  if (deadline <= absl::ZeroDuration()) {
    auto grant = offers_.Check(asked);
    return Decided{request, std::move(asked), std::move(grant)};
  }
  Waiting waiting = {std::move(asked), now + deadline, now + kWish, {}};
  if (auto grant = Decide(waiting, now, effects)) {
    return Decided{request, std::move(waiting.asked), *std::move(grant)};
  }
  waiting_.emplace(request, std::move(waiting));
  return std::nullopt;
}

std::optional<Reclaim::Decided> Reclaim::Next(absl::Time now,
                                              Effects& effects) {
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    auto& [request, waiting] = *it;
    auto grant = Decide(waiting, now, effects);
    if (!grant.has_value()) continue;
    waiting.asked.args.deadline = waiting.deadline - now;
    Decided decided = {request, std::move(waiting.asked), *std::move(grant)};
    waiting_.erase(it);
    return decided;
  }
  return std::nullopt;
}

std::optional<absl::StatusOr<PlanGrant>> Reclaim::Decide(Waiting& waiting,
                                                         absl::Time now,
                                                         Effects& effects) {
  absl::StatusOr<PlanGrant> grant = offers_.Check(waiting.asked);
  const bool refused = !grant.ok();
  if (refused && !absl::IsResourceExhausted(grant.status())) return grant;
  const bool needs = waiting.wish_until == absl::InfinitePast();
  if (needs && !refused && waiting.asked.takes_all()) {
    // It does not grow into what the others come back to.
    grown_[{waiting.asked.session, waiting.asked.args.model}] =
        offers_.RoomFor(waiting.asked).least();
    return offers_.CheckShare(waiting.asked, PlansBeside(waiting) + 2);
  }
  if (IsWhole(waiting.asked, grant)) return grant;
  if (!needs) {
    if (waiting.lenders.empty()) {
      AskForWish(waiting, refused ? UINT64_MAX : grant->streamed_bytes, now,
                 effects);
    }
    if (Awaits(waiting) && now < waiting.wish_until) return std::nullopt;
    if (!refused) return grant;
    waiting.wish_until = absl::InfinitePast();
    waiting.lenders.clear();
  }
  if (now >= waiting.deadline) return grant;
  if (Awaits(waiting) || AskForNeed(waiting, now, effects)) {
    return std::nullopt;
  }
  return grant;
}

// Plans whose memory would help this one, the oldest first.
std::vector<PlanId> Reclaim::Lenders(const Waiting& waiting) const {
  const auto& [session, args] = waiting.asked;
  const PlanRoom room = offers_.RoomFor(waiting.asked);
  const bool by_session = room.in_session == room.least();
  const bool by_user = !by_session && room.in_quota == room.least();
  const User uid = tenure_.sessions().At(session).uid();
  std::vector<PlanId> lenders;
  for (const auto& [id, plan] : tenure_.plans().standing()) {
    if (plan.ended || !plan.given || !plan.grant.lends() ||
        id == args.replaces || plan.grant.device != args.device ||
        (by_session && plan.session != session) ||
        (by_user && plan.uid != uid)) {
      continue;
    }
    lenders.push_back(id);
  }
  return lenders;
}

void Reclaim::AskOne(const StandingPlan& plan, absl::Duration idle,
                     const Loan& loan, Effects& effects) {
  loans_.Ask(plan, loan);
  effects.give_way.push_back({plan.session, plan.grant.id, idle});
}

void Reclaim::AskForWish(Waiting& waiting, uint64_t missing, absl::Time now,
                         Effects& effects) {
  uint64_t bytes = 0;
  for (const PlanId id : Lenders(waiting)) {
    if (bytes >= missing) return;
    const StandingPlan& plan = *tenure_.plans().Find(id);
    waiting.lenders.insert(id);
    bytes += BytesOf(plan.grant);
    // As nobody knows its next pass: it then loses at most as much again (ski
    // rental).
    AskOne(plan, std::max(kShortestIdle, offers_.TimeToBring(plan.grant)),
           LoanTo(waiting.asked, now), effects);
  }
}

bool Reclaim::AskForNeed(Waiting& waiting, absl::Time now, Effects& effects) {
  for (const PlanId id : Lenders(waiting)) {
    if (!waiting.lenders.insert(id).second) continue;
    AskOne(*tenure_.plans().Find(id), absl::ZeroDuration(),
           LoanTo(waiting.asked, now), effects);
    return true;
  }
  return false;
}

void Reclaim::Grow(absl::Time now, Effects& effects) {
  // Those that wait come first.
  if (!waiting_.empty() || looked_at_ == offers_.epoch()) return;
  looked_at_ = offers_.epoch();
  for (const auto& [id, plan] : tenure_.plans().standing()) {
    const PlanGrant& grant = plan.grant;
    if (plan.ended || !plan.given || !grant.lends()) continue;
    const std::pair key(plan.session, grant.model);
    if (grant.streamed_bytes == 0) {
      grown_.erase(key);
      continue;
    }
    PlanRequest anew = {plan.session,
                        {.model = grant.model, .device = grant.device}};
    anew.args.replaces = id;
    const uint64_t room = offers_.RoomFor(anew).least();
    // A small gain is not worth a new plan.
    if (room < BytesOf(grant) + grant.streamed_bytes / 4) continue;
    uint64_t& before = grown_[key];
    if (room <= before) continue;
    before = room;
    AskOne(plan, absl::ZeroDuration(), {Loan::Why::kGrowth, now}, effects);
  }
}

PlanTotals Reclaim::Ask(SessionId session, absl::Duration idle, absl::Time now,
                        Effects& effects) {
  PlanTotals totals;
  for (const auto& [id, plan] : tenure_.plans().standing()) {
    if (plan.ended || plan.session != session) continue;
    const bool heeds = plan.given && plan.grant.gives_way;
    ++(heeds ? totals.asked : totals.kept);
    (heeds ? totals.asked_bytes : totals.kept_bytes) += BytesOf(plan.grant);
    if (heeds) AskOne(plan, idle, {Loan::Why::kAdmin, now}, effects);
  }
  return totals;
}

void Reclaim::AskForRoom(DeviceIndex device, uint64_t bytes, const Loan& loan,
                         Effects& effects) {
  std::erase_if(for_room_,
                [&](PlanId id) { return tenure_.plans().Find(id) == nullptr; });
  for (const auto& [id, plan] : tenure_.plans().standing()) {
    if (!plan.given || !plan.grant.lends() || plan.grant.device != device) {
      continue;
    }
    if (!plan.ended && for_room_.insert(id).second) {
      AskOne(plan, absl::ZeroDuration(), loan, effects);
    }
    bytes -= std::min(bytes, BytesOf(plan.grant));
    if (bytes == 0) return;
  }
}

uint64_t Reclaim::PlansBeside(const Waiting& waiting) const {
  const auto& standing = tenure_.plans().standing();
  return std::count_if(standing.begin(), standing.end(), [&](const auto& one) {
    return !one.second.ended &&
           one.second.grant.device == waiting.asked.args.device;
  });
}

// Whether a plan that was asked still stands.
bool Reclaim::Awaits(const Waiting& waiting) const {
  return std::any_of(
      waiting.lenders.begin(), waiting.lenders.end(),
      [&](PlanId id) { return tenure_.plans().Find(id) != nullptr; });
}

void Reclaim::Leave(SessionId session) {
  loans_.Leave(session);
  std::erase_if(waiting_, [&](const auto& entry) {
    return entry.second.asked.session == session;
  });
  std::erase_if(
      grown_, [&](const auto& entry) { return entry.first.first == session; });
}

absl::Time Reclaim::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [request, waiting] : waiting_) {
    next = std::min(next, waiting.wish_until == absl::InfinitePast()
                              ? waiting.deadline
                              : waiting.wish_until);
  }
  return next;
}

}  // namespace hoistd
