#include "daemon/core/need_book.h"

#include <algorithm>

#include "daemon/base/check.h"

namespace hoistd {

NeedBook::Filed NeedBook::FiledAs(const Need& need, State state) {
  Filed filed;
  filed.state = state;
  filed.urgent = need.urgent;
  filed.prefetch = need.waiters.empty() && !need.urgent;
  if (state == State::kBlocked && need.urgent && need.blocked.alike) {
    filed.alike = need.blocked.bytes;
  }
  // Without waiters it is due at once.
  filed.due = absl::InfinitePast();
  if (filed.prefetch) filed.due = need.give_up;
  if (!need.waiters.empty()) filed.due = absl::InfiniteFuture();
  for (const Waiter& waiter : need.waiters) {
    filed.due = std::min(filed.due, waiter.deadline);
    // While bytes are on their way, no space is awaited.
    filed.no_wait |= waiter.no_wait && state == State::kBlocked;
  }
  return filed;
}

void NeedBook::File(Age age, const Need& need, const Filed& filed) {
  due_.emplace(filed.due, age);
  if (filed.no_wait) no_wait_.insert(age);
  if (filed.state == State::kReady) ready_[filed.urgent].insert(age);
  if (filed.state != State::kBlocked) return;
  (filed.alike      ? blocked_alike_[*filed.alike]
   : filed.prefetch ? blocked_prefetches_[need.copy.place.at]
                    : blocked_)
      .insert(age);
}

void NeedBook::Unfile(Age age, const Need& need, const Filed& filed) {
  due_.erase({filed.due, age});
  no_wait_.erase(age);
  ready_[filed.urgent].erase(age);
  blocked_.erase(age);
  if (filed.alike.has_value()) {
    const auto alike = blocked_alike_.find(*filed.alike);
    alike->second.erase(age);
    if (alike->second.empty()) blocked_alike_.erase(alike);
  }
  const auto crowd = blocked_prefetches_.find(need.copy.place.at);
  if (crowd == blocked_prefetches_.end()) return;
  crowd->second.erase(age);
  if (crowd->second.empty()) blocked_prefetches_.erase(crowd);
}

Need* NeedBook::Find(const CopyRef& copy) {
  return const_cast<Need*>(std::as_const(*this).Find(copy));
}

const Need* NeedBook::Find(const CopyRef& copy) const {
  const auto found = ages_.find(copy);
  return found == ages_.end() ? nullptr : &needs_.at(found->second).need;
}

Need& NeedBook::Add(const CopyRef& copy, Age age) {
  HOIST_CHECK(ages_.emplace(copy, age).second);
  Entry& entry = needs_[age];
  entry.need.copy = copy;
  entry.filed = FiledAs(entry.need, State::kReady);
  File(age, entry.need, entry.filed);
  return entry.need;
}

void NeedBook::Erase(Age age) {
  const auto found = needs_.find(age);
  HOIST_CHECK(found != needs_.end());
  const auto& [need, filed] = found->second;
  Unfile(age, need, filed);
  ages_.erase(need.copy);
  needs_.erase(found);
  WakeNext(age);
}

void NeedBook::SetState(const Need& need, State state) {
  const Age age = ages_.at(need.copy);
  Filed& filed = needs_.at(age).filed;
  const Filed now = FiledAs(need, state);
  if (now == filed) return;
  Unfile(age, need, filed);
  filed = now;
  File(age, need, filed);
}

void NeedBook::Changed(const Need& need) {
  SetState(need, needs_.at(ages_.at(need.copy)).filed.state);
}

void NeedBook::Wake(const CopyRef& copy) {
  if (const Need* need = Find(copy)) SetState(*need, State::kReady);
}

void NeedBook::Wake(GroupKey key) {
  for (const Age age : AgesOf(key)) SetState(At(age), State::kReady);
}

void NeedBook::WakeBlocked() {
  std::vector<Age> woken(blocked_.begin(), blocked_.end());
  for (const auto& [at, crowd] : blocked_prefetches_) {
    auto last = crowd.begin();
    std::advance(last, std::min(crowd.size(), kPrefetchesTried));
    woken.insert(woken.end(), crowd.begin(), last);
  }
  for (const Age age : woken) SetState(At(age), State::kReady);
  std::vector<uint64_t> alike;
  for (const auto& [bytes, crowd] : blocked_alike_) alike.push_back(bytes);
  for (const uint64_t bytes : alike) WakeOldest(bytes);
}

void NeedBook::WakeOldest(uint64_t alike) {
  const auto crowd = blocked_alike_.find(alike);
  if (crowd == blocked_alike_.end()) return;
  const Age age = *crowd->second.begin();
  oldest_[age] = alike;
  SetState(At(age), State::kReady);
}

void NeedBook::Tried(Age age, bool met) { met ? Erase(age) : WakeNext(age); }

void NeedBook::WakeNext(Age age) {
  const auto woken = oldest_.extract(age);
  if (woken.empty()) return;
  const auto found = needs_.find(age);
  if (found == needs_.end() || found->second.filed.alike != woken.mapped()) {
    WakeOldest(woken.mapped());
  }
}

const Need* NeedBook::CrowdedBy(const Need& need) const {
  if (!FiledAs(need, State::kReady).prefetch) return nullptr;
  const auto crowd = blocked_prefetches_.find(need.copy.place.at);
  if (crowd == blocked_prefetches_.end() ||
      crowd->second.size() < kPrefetchesTried) {
    return nullptr;
  }
  return &needs_.at(*crowd->second.begin()).need;
}

std::vector<NeedBook::Age> NeedBook::Ready(bool urgent) const {
  return {ready_[urgent].begin(), ready_[urgent].end()};
}

bool NeedBook::AnyReady() const {
  return !ready_[0].empty() || !ready_[1].empty();
}

bool NeedBook::IsReady(Age age) const {
  return ready_[0].contains(age) || ready_[1].contains(age);
}

std::vector<NeedBook::Age> NeedBook::Due(absl::Time now) const {
  std::set<Age> due = no_wait_;
  for (const auto& [time, age] : due_) {
    if (time > now) break;
    due.insert(age);
  }
  return {due.begin(), due.end()};
}

absl::Time NeedBook::NextDeadline() const {
  return due_.empty() ? absl::InfiniteFuture() : due_.begin()->first;
}

std::vector<NeedBook::Age> NeedBook::Ages() const {
  std::vector<Age> ages;
  for (const auto& [age, entry] : needs_) ages.push_back(age);
  return ages;
}

std::vector<NeedBook::Age> NeedBook::AgesOf(GroupKey key) const {
  std::vector<Age> ages;
  for (auto it = ages_.lower_bound({key, {OnDevice(DeviceIndex(0)), false}});
       it != ages_.end() && it->first.key == key; ++it) {
    ages.push_back(it->second);
  }
  return ages;
}

std::set<ModelId> NeedBook::Models() const {
  std::set<ModelId> models;
  for (const auto& [copy, age] : ages_) models.insert(copy.key.model);
  return models;
}

void NeedBook::Check() const {
  size_t ready = 0, blocked = 0, no_wait = 0;
  for (const auto& [age, entry] : needs_) {
    const auto& [need, filed] = entry;
    HOIST_CHECK(filed == FiledAs(need, filed.state));
    HOIST_CHECK(ages_.at(need.copy) == age);
    HOIST_CHECK(due_.contains({filed.due, age}));
    ready += filed.state == State::kReady;
    blocked += filed.state == State::kBlocked;
    no_wait += filed.no_wait;
    HOIST_CHECK(IsReady(age) == (filed.state == State::kReady));
  }
  size_t crowds = 0;
  for (const auto& [bytes, crowd] : blocked_alike_) crowds += crowd.size();
  for (const auto& [at, crowd] : blocked_prefetches_) crowds += crowd.size();
  HOIST_CHECK(ages_.size() == needs_.size() && due_.size() == needs_.size());
  HOIST_CHECK(ready_[0].size() + ready_[1].size() == ready);
  HOIST_CHECK(blocked_.size() + crowds == blocked);
  HOIST_CHECK(no_wait_.size() == no_wait);
}

}  // namespace hoistd
