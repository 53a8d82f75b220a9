// A copier's page as its client maps it.
#ifndef HOIST_CLIENT_SRC_COPIER_PAGE_H_
#define HOIST_CLIENT_SRC_COPIER_PAGE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "client/src/messages.h"
#include "client/src/stream_order.h"
#include "hoist/shared/copier_layout.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Threads:  Put, Ask, Granted and Done: one at a time. The others: any.
// Owns:     the mapping, its registration, the eventfd. Borrows `order`.
class CopierPage {
 public:
  // Internal: it is none, or could shrink under its reader.
  // FailedPrecondition: of another version.
  static Result<std::unique_ptr<CopierPage>> Map(CopierGrant grant,
                                                 StreamOrder* order);
  CopierPage(const CopierPage&) = delete;
  CopierPage& operator=(const CopierPage&) = delete;
  // Nothing on any stream uses it any more.
  ~CopierPage() { order_->Unregister(mapping_.span()); }

  uint64_t id() const { return id_; }

  // Before the ops that stand for it are put on a stream.
  void Put(uint32_t bytes);
  // To be put on streams in this order. Of the next bytes that were put: that
  // the stream could copy them;
  WordOp Ask(uint32_t bytes);
  // that it may copy them, which are at most copier::kPieceBytes;
  WordOp Granted(uint32_t bytes);
  // that so many are copied.
  WordOp Done(uint32_t bytes);
  void AddRead(uint64_t bytes) { page().read += bytes; }

  // Behind a word that a CPU has written.
  void Wake();

  // Lets through what is asked for next; see copier::Released.
  void Release();
  // All that was put is done.
  bool idle() const { return page().put.load() == page().done.load(); }
  // Something is asked for and not granted.
  bool waits() const { return page().asked.load() != page().granted.load(); }
  uint32_t granted() const { return page().granted.load(); }
  // No stream will write a word any more: all of it is done.
  void Abandon() { page().done.store(page().put.load()); }
  uint64_t wake_ups() const { return wake_ups_; }

 private:
  CopierPage(uint64_t id, Mapping mapping, UniqueFd wake, StreamOrder* order)
      : id_(id),
        mapping_(std::move(mapping)),
        wake_(std::move(wake)),
        order_(order) {}

  copier::Page& page() const {
    return *reinterpret_cast<copier::Page*>(mapping_.data());
  }

  const uint64_t id_;
  const Mapping mapping_;
  const UniqueFd wake_;
  StreamOrder* const order_;
  // What the words will be once streams have written what they were given.
  uint32_t put_ = 0;
  uint32_t asked_ = 0;
  uint32_t granted_ = 0;
  uint32_t done_ = 0;
  std::atomic<uint64_t> wake_ups_{0};
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_COPIER_PAGE_H_
