#include "daemon/core/incoming_book.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "daemon/core/copy_table.h"

namespace hoistd {

void IncomingBook::Add(Incoming incoming) {
  const RequestId request = incoming.request;
  all_[request] = std::move(incoming);
}

std::vector<RequestId> IncomingBook::Waiting() const {
  std::vector<RequestId> waiting;
  for (const auto& [request, incoming] : all_) {
    if (!incoming.transfer.has_value()) waiting.push_back(request);
  }
  return waiting;
}

std::vector<RequestId> IncomingBook::WaitingOf(SessionId session) const {
  std::vector<RequestId> waiting = Waiting();
  std::erase_if(waiting, [&](RequestId request) {
    return At(request).session != session;
  });
  return waiting;
}

std::vector<RequestId> IncomingBook::Late(absl::Time now) const {
  std::vector<RequestId> late = Waiting();
  std::erase_if(late,
                [&](RequestId request) { return At(request).deadline > now; });
  return late;
}

absl::Time IncomingBook::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const RequestId request : Waiting()) {
    next = std::min(next, At(request).deadline);
  }
  return next;
}

void IncomingBook::Block(RequestId request, uint64_t epoch, Blocked why) {
  Incoming& incoming = all_.at(request);
  if (Drop(incoming)) incoming.offset.reset();
  incoming.tried_at = epoch;
  incoming.blocked = std::move(why);
}

void IncomingBook::GiveUp(RequestId request, absl::Time now) {
  all_.at(request).deadline = now;
}

void IncomingBook::Place(RequestId request, uint64_t offset) {
  Incoming& incoming = all_.at(request);
  HOIST_CHECK(!incoming.offset.has_value());
  incoming.offset = offset;
  quota_.Add(incoming.owner, Quota::kPublishedBytes, SpaceOf(*incoming.group));
}

void IncomingBook::Start(RequestId request, TransferId transfer) {
  Incoming& incoming = all_.at(request);
  HOIST_CHECK(!incoming.transfer.has_value());
  incoming.transfer = transfer;
}

Incoming IncomingBook::Take(TransferId transfer) {
  const auto found = std::find_if(
      all_.begin(), all_.end(),
      [&](const auto& entry) { return entry.second.transfer == transfer; });
  HOIST_CHECK(found != all_.end());
  Incoming incoming = std::move(found->second);
  all_.erase(found);
  return incoming;
}

Incoming IncomingBook::Take(RequestId request) {
  const auto found = all_.find(request);
  HOIST_CHECK(found != all_.end() && !found->second.transfer.has_value());
  Incoming incoming = std::move(found->second);
  all_.erase(found);
  return incoming;
}

bool IncomingBook::Drop(const Incoming& incoming) {
  if (!incoming.offset.has_value()) return false;
  quota_.Remove(incoming.owner, Quota::kPublishedBytes,
                SpaceOf(*incoming.group));
  return true;
}

}  // namespace hoistd
