#include "daemon/core/order_book.h"

#include <algorithm>

namespace hoistd {

void OrderBook::Set(SessionId session, ModelId model,
                    std::vector<GroupIndex> order) {
  if (order.empty()) {
    orders_.erase({session, model});
  } else {
    orders_[{session, model}] = Order{std::move(order)};
  }
}

void OrderBook::Staged(SessionId session, GroupKey key, absl::Time now) {
  const auto found = orders_.find({session, key.model});
  if (found == orders_.end()) return;
  Order& order = found->second;
  const size_t n = order.groups.size();
  for (size_t ahead = 0; ahead < n; ++ahead) {
    const size_t at = (order.cursor + ahead) % n;
    if (order.groups[at] != key.group) continue;
    order.cursor = (at + 1) % n;
    if (order.last_staged != absl::InfinitePast()) {
      // An average that forgets: seven parts old, one part new.
      order.step = (order.step * 7 + (now - order.last_staged)) / 8;
    }
    order.last_staged = now;
    return;
  }
}

void OrderBook::ForgetSession(SessionId session) {
  std::erase_if(orders_,
                [&](const auto& o) { return o.first.first == session; });
}

void OrderBook::ForgetModel(ModelId model) {
  std::erase_if(orders_,
                [&](const auto& o) { return o.first.second == model; });
}

std::optional<absl::Duration> OrderBook::UntilUse(GroupKey key) const {
  std::optional<absl::Duration> soonest;
  for (const auto& [who, order] : orders_) {
    if (who.second != key.model) continue;
    const size_t n = order.groups.size();
    for (size_t ahead = 0; ahead < n; ++ahead) {
      if (order.groups[(order.cursor + ahead) % n] != key.group) continue;
      const absl::Duration until = order.step * (ahead + 1);
      soonest = std::min(soonest.value_or(until), until);
      break;
    }
  }
  return soonest;
}

}  // namespace hoistd
