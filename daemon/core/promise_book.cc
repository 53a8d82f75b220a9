#include "daemon/core/promise_book.h"

#include "daemon/base/check.h"

namespace hoistd {

void PromiseBook::Promise(const CopyRef& copy, uint64_t bytes) {
  const auto [found, is_new] = firm_.try_emplace(copy, Firm{.bytes = bytes});
  HOIST_CHECK(found->second.bytes == bytes);
  if (is_new) bytes_ += bytes;
  if (++found->second.plans == 1) ++promised_;
}

void PromiseBook::Unpromise(const CopyRef& copy) {
  Firm& firm = firm_.at(copy);
  HOIST_CHECK(firm.plans > 0);
  if (--firm.plans > 0) return;
  --promised_;
  DropIfIdle(copy);
}

void PromiseBook::SetBusy(const CopyRef& copy, uint64_t bytes, bool busy) {
  if (!busy && !firm_.contains(copy)) return;
  const auto [found, is_new] = firm_.try_emplace(copy, Firm{.bytes = bytes});
  if (is_new) bytes_ += bytes;
  found->second.busy = busy;
  DropIfIdle(copy);
}

void PromiseBook::DropIfIdle(const CopyRef& copy) {
  const auto found = firm_.find(copy);
  if (found->second.plans > 0 || found->second.busy) return;
  bytes_ -= found->second.bytes;
  firm_.erase(found);
}

bool PromiseBook::Promised(const CopyRef& copy) const {
  const auto found = firm_.find(copy);
  return found != firm_.end() && found->second.plans > 0;
}

uint64_t PromiseBook::BytesWith(const CopyRef& copy, uint64_t bytes) const {
  return firm_.contains(copy) ? bytes_ : bytes_ + bytes;
}

}  // namespace hoistd
