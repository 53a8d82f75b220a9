#include "daemon/core/promise_book.h"

#include "daemon/base/check.h"

namespace hoistd {

PromiseBook::Firm& PromiseBook::Add(const CopyRef& copy, Zone zone,
                                    uint64_t bytes) {
  const auto [found, is_new] =
      firm_.try_emplace(copy, Firm{.zone = zone, .bytes = bytes});
  HOIST_CHECK(found->second.zone == zone && found->second.bytes == bytes);
  if (is_new) by_zone_[zone] += bytes;
  return found->second;
}

void PromiseBook::Promise(const CopyRef& copy, Zone zone, uint64_t bytes) {
  if (++Add(copy, zone, bytes).plans == 1) ++promised_;
}

void PromiseBook::Unpromise(const CopyRef& copy) {
  Firm& firm = firm_.at(copy);
  HOIST_CHECK(firm.plans > 0);
  if (--firm.plans > 0) return;
  --promised_;
  DropIfIdle(copy);
}

void PromiseBook::SetBusy(const CopyRef& copy, Zone zone, uint64_t bytes) {
  Add(copy, zone, bytes).busy = true;
}

void PromiseBook::SetIdle(const CopyRef& copy) {
  const auto found = firm_.find(copy);
  if (found == firm_.end()) return;
  found->second.busy = false;
  DropIfIdle(copy);
}

void PromiseBook::DropIfIdle(const CopyRef& copy) {
  const auto found = firm_.find(copy);
  const Firm& firm = found->second;
  if (firm.plans > 0 || firm.busy) return;
  const auto zone = by_zone_.find(firm.zone);
  zone->second -= firm.bytes;
  if (zone->second == 0) by_zone_.erase(zone);
  firm_.erase(found);
}

bool PromiseBook::Promised(const CopyRef& copy) const {
  const auto found = firm_.find(copy);
  return found != firm_.end() && found->second.plans > 0;
}

std::set<CopyRef> PromiseBook::FirmCopies() const {
  std::set<CopyRef> copies;
  for (const auto& [copy, firm] : firm_) copies.insert(copy);
  return copies;
}

}  // namespace hoistd
