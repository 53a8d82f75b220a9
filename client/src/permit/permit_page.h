// A permit's page, mapped by its client.
#ifndef HOIST_CLIENT_SRC_PERMIT_PERMIT_PAGE_H_
#define HOIST_CLIENT_SRC_PERMIT_PERMIT_PAGE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "client/src/device/stream_order.h"
#include "client/src/messages/messages.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/permit_layout.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Threads:  Put, Ask, Granted and Done: one at a time. The others: any.
// Owns:     the mapping, its registration, the eventfd. Borrows `order`.
class PermitPage {
 public:
  // Internal: not a page, or it could shrink. FailedPrecondition: another
  // version.
  static Result<std::unique_ptr<PermitPage>> Map(PermitGrant grant,
                                                 StreamOrder* order);
  PermitPage(const PermitPage&) = delete;
  PermitPage& operator=(const PermitPage&) = delete;
  // No stream may still use it.
  ~PermitPage() { order_->Unregister(mapping_.span()); }

  uint64_t id() const { return id_; }

  // To be called before the bytes' ops are put on a stream.
  void Put(uint32_t bytes);
  // Ops for the next `put` bytes, to be put on streams in this order. Ask: the
  // stream has come to the copy.
  WordOp Ask(uint32_t bytes);
  // Waits for the grant of at most permit::kPieceBytes.
  WordOp Granted(uint32_t bytes);
  // Reports so many bytes as copied.
  WordOp Done(uint32_t bytes);
  void AddRead(uint64_t bytes) { page().read += bytes; }

  // To be called after the CPU has written a word.
  void Wake();

  // Lets the next asks through; see permit::Released.
  void Release();
  // All of `put` is done.
  bool idle() const { return page().put.load() == page().done.load(); }
  // An ask is not granted.
  bool waits() const { return page().asked.load() != page().granted.load(); }
  uint32_t granted() const { return page().granted.load(); }
  // Marks all as done: no stream will write a word any more.
  void Abandon() { page().done.store(page().put.load()); }
  uint64_t wake_ups() const { return wake_ups_; }

 private:
  PermitPage(uint64_t id, Mapping mapping, UniqueFd wake, StreamOrder* order)
      : id_(id),
        mapping_(std::move(mapping)),
        wake_(std::move(wake)),
        order_(order) {}

  permit::Page& page() const {
    return *reinterpret_cast<permit::Page*>(mapping_.data());
  }

  const uint64_t id_;
  const Mapping mapping_;
  const UniqueFd wake_;
  StreamOrder* const order_;
  // The words' values after all enqueued writes.
  uint32_t put_ = 0;
  uint32_t asked_ = 0;
  uint32_t granted_ = 0;
  uint32_t done_ = 0;
  std::atomic<uint64_t> wake_ups_{0};
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PERMIT_PERMIT_PAGE_H_
