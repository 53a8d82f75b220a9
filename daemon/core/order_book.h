// The orders in which sessions said they will stage groups.
#ifndef HOIST_DAEMON_CORE_ORDER_BOOK_H_
#define HOIST_DAEMON_CORE_ORDER_BOOK_H_

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// Threads: one at a time.
// Bounds:  one order per session and model, as long as the caller allows.
class OrderBook {
 public:
  // The session will stage `order` over and over. Empty: no order any more.
  void Set(SessionId session, ModelId model, std::vector<GroupIndex> order);
  // The session staged `key`: its cursor moves behind it.
  void Staged(SessionId session, GroupKey key, absl::Time now);
  void ForgetSession(SessionId session);
  void ForgetModel(ModelId model);

  // The soonest next use that any session's order tells; nullopt: none does.
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
