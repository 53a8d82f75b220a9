#include "daemon/core/promise_book.h"

#include "daemon/base/check.h"

namespace hoistd {
namespace {

void Take(std::map<Zone, uint64_t>& bytes_of, Zone zone, uint64_t bytes) {
  const auto found = bytes_of.find(zone);
  HOIST_CHECK(found != bytes_of.end() && found->second >= bytes);
  found->second -= bytes;
  if (found->second == 0) bytes_of.erase(found);
}

}  // namespace

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
  Take(by_zone_, firm.zone, firm.bytes);
  firm_.erase(found);
}

void PromiseBook::AddRing(Zone zone, uint64_t bytes) {
  if (bytes == 0) return;
  rings_[zone] += bytes;
  by_zone_[zone] += bytes;
}

void PromiseBook::RemoveRing(Zone zone, uint64_t bytes) {
  if (bytes == 0) return;
  Take(rings_, zone, bytes);
  Take(by_zone_, zone, bytes);
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
