#include "daemon/mover/road.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"

namespace hoistd {

void Road::Add(Transfer transfer) {
  (transfer.urgent ? urgent_ : others_).push_back(std::move(transfer));
}

void Road::Hurry(TransferId id) {
  const auto found =
      std::find_if(others_.begin(), others_.end(),
                   [&](const Transfer& t) { return t.id == id; });
  if (found == others_.end()) return;
  urgent_.push_back(std::move(*found));
  others_.erase(found);
}

std::optional<Transfer> Road::Next() {
  std::deque<Transfer>& queue = urgent_.empty() ? others_ : urgent_;
  if (queue.empty() || under_way_ >= width_) return std::nullopt;
  ++under_way_;
  Transfer next = std::move(queue.front());
  queue.pop_front();
  return next;
}

void Road::Finished() {
  HOIST_CHECK(under_way_ > 0);
  --under_way_;
}

}  // namespace hoistd
