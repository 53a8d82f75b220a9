// What of one device cannot be given to somebody else, as running totals.
#ifndef HOIST_DAEMON_CORE_PROMISE_BOOK_H_
#define HOIST_DAEMON_CORE_PROMISE_BOOK_H_

#include <cstdint>
#include <map>
#include <set>

#include "daemon/core/copy_table.h"
#include "daemon/core/device_space.h"

namespace hoistd {

// Copies are firm while a plan was promised them or they are busy: leased,
// pinned or being filled. Each counts once. Rings are firm while they are
// there.
//
// Threads: one at a time.
// Bounds:  as many entries as firm copies.
class PromiseBook {
 public:
  // One more plan that stands counts on the copy; one less.
  void Promise(const CopyRef& copy, Zone zone, uint64_t bytes);
  void Unpromise(const CopyRef& copy);
  void SetBusy(const CopyRef& copy, Zone zone, uint64_t bytes);
  void SetIdle(const CopyRef& copy);
  // A plan's ring is there; or no longer.
  void AddRing(Zone zone, uint64_t bytes);
  void RemoveRing(Zone zone, uint64_t bytes);

  // Whether any copy is promised.
  bool any() const { return promised_ > 0; }
  bool Promised(const CopyRef& copy) const;
  bool IsFirm(const CopyRef& copy) const { return firm_.contains(copy); }
  std::set<CopyRef> FirmCopies() const;
  // What firm copies and rings take; zones without any are left out.
  const std::map<Zone, uint64_t>& ByZone() const { return by_zone_; }
  // What rings alone do.
  const std::map<Zone, uint64_t>& rings() const { return rings_; }

  bool operator==(const PromiseBook&) const = default;

 private:
  struct Firm {
    Zone zone;
    uint64_t bytes = 0;
    uint32_t plans = 0;
    bool busy = false;

    bool operator==(const Firm&) const = default;
  };
  Firm& Add(const CopyRef& copy, Zone zone, uint64_t bytes);
  void DropIfIdle(const CopyRef& copy);

  std::map<CopyRef, Firm> firm_;
  uint64_t promised_ = 0;  // Copies with plans.
  std::map<Zone, uint64_t> by_zone_;
  std::map<Zone, uint64_t> rings_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_PROMISE_BOOK_H_
