// Running totals of a device's memory that cannot be given to others.
#ifndef HOIST_DAEMON_CORE_PROMISE_BOOK_H_
#define HOIST_DAEMON_CORE_PROMISE_BOOK_H_

#include <cstdint>
#include <map>
#include <set>

#include "daemon/core/copy_table.h"
#include "daemon/core/device_space.h"

namespace hoistd {

// A copy is firm while it is promised to a plan or busy, that is, leased,
// pinned or being filled. It counts once. Rings are always firm.
//
// Threads: one at a time.
// Bounds:  as many entries as firm copies.
class PromiseBook {
 public:
  // One more standing plan relies on the copy; one less.
  void Promise(const CopyRef& copy, Zone zone, uint64_t bytes);
  void Unpromise(const CopyRef& copy);
  void SetBusy(const CopyRef& copy, Zone zone, uint64_t bytes);
  void SetIdle(const CopyRef& copy);
  // A plan's ring has come; or gone.
  void AddRing(Zone zone, uint64_t bytes);
  void RemoveRing(Zone zone, uint64_t bytes);

  // Whether any copy is promised.
  bool any() const { return promised_ > 0; }
  bool Promised(const CopyRef& copy) const;
  bool IsFirm(const CopyRef& copy) const { return firm_.contains(copy); }
  std::set<CopyRef> FirmCopies() const;
  // Bytes of firm copies and rings; zones without any are omitted.
  const std::map<Zone, uint64_t>& ByZone() const { return by_zone_; }
  // Bytes of rings alone.
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
