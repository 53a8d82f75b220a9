// Images being received: published groups that are not complete yet.
#ifndef HOIST_DAEMON_CORE_INCOMING_BOOK_H_
#define HOIST_DAEMON_CORE_INCOMING_BOOK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/need_book.h"
#include "daemon/core/quota.h"
#include "daemon/model/model.h"
#include "daemon/model/tensor.h"
#include "daemon/types/ids.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct Incoming {
  RequestId request;
  SessionId session;
  std::string model;
  User owner;
  Readers readers = Readers::kOwner;
  std::optional<Content> expected;  // nullopt: any content.
  std::shared_ptr<const Group> group;
  std::shared_ptr<hoist::UniqueFd> memfd;
  absl::Time deadline;  // To wait for space.
  OwnerId owner_id;
  std::optional<uint64_t> offset;      // Of its space on the host.
  std::optional<TransferId> transfer;  // Brings its bytes.
  uint64_t tried_at = 0;  // Node's space epoch when space was refused.
  Blocked blocked;
};

// An image waits until its transfer starts. Once it has space, it counts in
// `quota` as published by its owner: until it is dropped, or for good when it
// becomes its model's. After its transfer has started it stays until that ends,
// even if its session ends before.
//
// Threads:  one at a time.
// Owns:     the records of images. Borrows `quota`, which must outlive this
//           object.
// Bounds:   one per request; the caller bounds requests.
class IncomingBook {
 public:
  explicit IncomingBook(QuotaBook& quota) : quota_(quota) {}
  IncomingBook(const IncomingBook&) = delete;
  IncomingBook& operator=(const IncomingBook&) = delete;

  void Add(Incoming incoming);
  const Incoming& At(RequestId request) const { return all_.at(request); }
  const std::map<RequestId, Incoming>& all() const { return all_; }
  bool empty() const { return all_.empty(); }

  // Waiting images, oldest first; of all sessions or of one.
  std::vector<RequestId> Waiting() const;
  std::vector<RequestId> WaitingOf(SessionId session) const;
  // Waiting images past their deadline.
  std::vector<RequestId> Late(absl::Time now) const;
  absl::Time NextDeadline() const;

  // A try at this epoch failed; it has no space any more.
  void Block(RequestId request, uint64_t epoch, Blocked why);
  // Nothing can ever make room: its deadline is now.
  void GiveUp(RequestId request, absl::Time now);
  void Place(RequestId request, uint64_t offset);
  void Start(RequestId request, TransferId transfer);

  // Its transfer has ended. The caller owns it and calls Drop unless it becomes
  // a model's group.
  Incoming Take(TransferId transfer);
  // A waiting image.
  Incoming Take(RequestId request);
  // Its space is no longer counted. False: it has none.
  bool Drop(const Incoming& incoming);

 private:
  QuotaBook& quota_;
  std::map<RequestId, Incoming> all_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_INCOMING_BOOK_H_
