#include "daemon/mover/transfer_queue.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"

namespace hoistd {

void TransferQueue::Add(Transfer transfer) {
  (transfer.urgent ? urgent_ : others_).push_back(std::move(transfer));
}

void TransferQueue::Hurry(TransferId id) {
  const auto found =
      std::find_if(others_.begin(), others_.end(),
                   [&](const Transfer& t) { return t.id == id; });
  if (found == others_.end()) return;
  urgent_.push_back(std::move(*found));
  others_.erase(found);
}

bool TransferQueue::HasRoomFor(const Transfer& transfer) const {
  const auto under_way = static_cast<int>(under_way_.size());
  if (under_way < width_.width) return true;
  return under_way < width_.of_small &&
         bytes_ + transfer.group->image_bytes <= kSmallBytes;
}

std::optional<Transfer> TransferQueue::Next() {
  std::deque<Transfer>& queue = urgent_.empty() ? others_ : urgent_;
  if (queue.empty() || !HasRoomFor(queue.front())) return std::nullopt;
  Transfer next = std::move(queue.front());
  queue.pop_front();
  const uint64_t bytes = next.group->image_bytes;
  HOIST_CHECK(under_way_.emplace(next.id, bytes).second);
  bytes_ += bytes;
  return next;
}

void TransferQueue::Finished(TransferId id) {
  const auto found = under_way_.find(id);
  HOIST_CHECK(found != under_way_.end());
  bytes_ -= found->second;
  under_way_.erase(found);
}

}  // namespace hoistd
