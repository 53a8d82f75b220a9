// The staging orders that sessions announced.
#ifndef HOIST_DAEMON_CORE_ORDER_BOOK_H_
#define HOIST_DAEMON_CORE_ORDER_BOOK_H_

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/types/ids.h"

namespace hoistd {

// Threads: one at a time.
// Bounds:  one order per session and model; the caller bounds its length.
class OrderBook {
 public:
  // The session stages `order` repeatedly. Empty: clears the order.
  void Set(SessionId session, ModelId model, std::vector<GroupIndex> order);
  // The session staged `key`: moves its cursor behind it.
  void Staged(SessionId session, GroupKey key, absl::Time now);
  void ForgetSession(SessionId session);
  void ForgetModel(ModelId model);

  // The soonest next use by any session's order; nullopt: in none.
  std::optional<absl::Duration> UntilUse(GroupKey key) const;

 private:
  struct Order {
    std::vector<GroupIndex> groups;
    size_t cursor = 0;  // The next to be staged.
    absl::Time last_staged = absl::InfinitePast();
    absl::Duration step = absl::Milliseconds(1);  // Mean between two stages.
  };
  std::map<std::pair<SessionId, ModelId>, Order> orders_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_ORDER_BOOK_H_
