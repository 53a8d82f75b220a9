// What of one device cannot be given to somebody else, as running totals.
#ifndef HOIST_DAEMON_CORE_PROMISE_BOOK_H_
#define HOIST_DAEMON_CORE_PROMISE_BOOK_H_

#include <cstdint>
#include <map>

#include "daemon/core/copy_table.h"

namespace hoistd {

// Copies are firm while a plan was promised them or they are busy: leased,
// pinned or being filled. Each counts once.
//
// Threads: one at a time.
// Bounds:  as many entries as firm copies.
class PromiseBook {
 public:
  // One more plan that stands counts on the copy; one less.
  void Promise(const CopyRef& copy, uint64_t bytes);
  void Unpromise(const CopyRef& copy);
  void SetBusy(const CopyRef& copy, uint64_t bytes, bool busy);

  // Whether any copy is promised.
  bool any() const { return promised_ > 0; }
  bool Promised(const CopyRef& copy) const;
  // Of all firm copies, if this one were too.
  uint64_t BytesWith(const CopyRef& copy, uint64_t bytes) const;

  bool operator==(const PromiseBook&) const = default;

 private:
  struct Firm {
    uint64_t bytes = 0;
    uint32_t plans = 0;
    bool busy = false;

    bool operator==(const Firm&) const = default;
  };
  void DropIfIdle(const CopyRef& copy);

  std::map<CopyRef, Firm> firm_;
  uint64_t promised_ = 0;  // Copies with plans.
  uint64_t bytes_ = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_PROMISE_BOOK_H_
