#include "daemon/plan/link_share.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "daemon/base/check.h"

namespace hoistd {
namespace {

// Virtual times grow by bytes; a double is exact to 2^53. They restart from 0
// long before.
constexpr double kRebaseAt = 1e12;

size_t IndexOf(LinkClass of) { return static_cast<size_t>(of); }

}  // namespace

absl::Time LinkShare::Entry::AllowedAt() const {
  const uint64_t rate = options.max_bytes_per_second;
  if (rate == 0 || owed <= double(kBurstBytes)) return absl::InfinitePast();
  return as_of + absl::Seconds((owed - double(kBurstBytes)) / double(rate));
}

LinkShare::Entry& LinkShare::Of(LinkParty party) {
  const auto it = parties_.find(party);
  HOIST_CHECK(it != parties_.end());
  return it->second;
}

void LinkShare::Add(LinkParty party, const ShareOptions& options) {
  HOIST_CHECK(options.weight > 0);
  Entry entry;
  entry.options = options;
  entry.turn.start = virtual_time_[LevelOf(party, options)];
  HOIST_CHECK(parties_.emplace(party, entry).second);
}

void LinkShare::Remove(LinkParty party) {
  HOIST_CHECK(parties_.erase(party) == 1);
}

void LinkShare::Set(LinkParty party, const ShareOptions& options) {
  HOIST_CHECK(options.weight > 0);
  Entry& entry = Of(party);
  // Levels have separate clocks; the party keeps its lead over one.
  const double ahead =
      entry.turn.start - virtual_time_[LevelOf(party, entry.options)];
  entry.turn.start =
      virtual_time_[LevelOf(party, options)] + std::max(ahead, 0.0);
  entry.options = options;
}

// An always ready party is never behind the clock, which is the minimum over
// ready ones. Others join at the clock.
double LinkShare::StartOfNext(LinkParty party, const Entry& entry) const {
  return std::max(entry.turn.finish(entry.options.weight),
                  virtual_time_.at(LevelOf(party, entry.options)));
}

double LinkShare::StartOfNext(LinkClass of) const {
  const size_t i = IndexOf(of);
  return std::max(classes_[i].finish(kWeights[i]), classes_time_);
}

std::optional<LinkParty> LinkShare::Pick(const std::vector<LinkParty>& ready,
                                         absl::Time now) {
  std::optional<LinkParty> best;
  const Entry* best_entry = nullptr;
  for (const LinkParty party : ready) {
    const Entry& entry = Of(party);
    if (entry.AllowedAt() > now) continue;
    const auto rank = [&](LinkParty one, const Entry& e) {
      return std::tuple(StartOfNext(one.of), one.of, -e.options.priority,
                        StartOfNext(one, e), one.plan, one.permit);
    };
    if (best_entry == nullptr ||
        rank(party, entry) < rank(*best, *best_entry)) {
      best = party;
      best_entry = &entry;
    }
  }
  return best;
}

void LinkShare::Charge(LinkParty party, uint64_t bytes, absl::Time now) {
  Entry& entry = Of(party);
  const Level level = LevelOf(party, entry.options);
  entry.turn = {StartOfNext(party, entry), bytes};
  virtual_time_[level] = entry.turn.start;
  if (entry.turn.start > kRebaseAt) Rebase(level);

  classes_time_ = StartOfNext(party.of);
  classes_[IndexOf(party.of)] = {classes_time_, bytes};
  if (classes_time_ > kRebaseAt) {
    for (Turn& turn : classes_) turn.start -= classes_time_;
    classes_time_ = 0;
  }
  ChargeCap(entry, bytes, now);
}

bool LinkShare::IsOwed(LinkClass of) const {
  const size_t i = IndexOf(of);
  return classes_[i].finish(kWeights[i]) <= classes_time_;
}

void LinkShare::ChargeCap(Entry& entry, uint64_t bytes, absl::Time now) {
  const uint64_t rate = entry.options.max_bytes_per_second;
  if (rate == 0) {
    entry.owed = 0;
  } else if (now > entry.as_of) {
    const double paid = absl::ToDoubleSeconds(now - entry.as_of) * double(rate);
    entry.owed = std::max(entry.owed - paid, 0.0);
  }
  if (rate != 0) entry.owed += double(bytes);
  entry.as_of = std::max(entry.as_of, now);
}

void LinkShare::Rebase(Level level) {
  const double now = std::exchange(virtual_time_[level], 0.0);
  for (auto& [party, entry] : parties_) {
    if (LevelOf(party, entry.options) == level) entry.turn.start -= now;
  }
}

absl::Time LinkShare::NextTurn(const std::vector<LinkParty>& ready) const {
  absl::Time next = absl::InfiniteFuture();
  for (const LinkParty party : ready) {
    const Entry& entry = parties_.at(party);
    if (entry.options.max_bytes_per_second == 0) continue;
    next = std::min(next, entry.AllowedAt());
  }
  return next;
}

}  // namespace hoistd
