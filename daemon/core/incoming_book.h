// Images that are being received: published groups which are not there yet.
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
#include "daemon/terms/ids.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct Incoming {
  RequestId request;
  SessionId session;
  std::string model;
  User owner;
  Readers readers = Readers::kOwner;
  std::optional<Content> expected;  // nullopt: whatever comes.
  std::shared_ptr<const Group> group;
  std::shared_ptr<hoist::UniqueFd> memfd;
  absl::Time deadline;  // To wait for space.
  OwnerId owner_id;
  std::optional<uint64_t> offset;      // Of its space on the host.
  std::optional<TransferId> transfer;  // That brings its bytes.
  uint64_t tried_at = 0;  // Node's space epoch when space was refused.
  Blocked blocked;
};

// An image waits until its transfer starts. From when it has space that counts
// as published by its owner, in `quota`: until it is dropped, or for good when
// it becomes its model's. Once its transfer has started it stays until that
// ends, whatever becomes of its session.
//
// Threads:  one at a time.
// Owns:     what is said of them. Borrows `quota`, which must outlive this
//           object.
// Bounds:   one a request, which is its callers' to bound.
class IncomingBook {
 public:
  explicit IncomingBook(QuotaBook& quota) : quota_(quota) {}
  IncomingBook(const IncomingBook&) = delete;
  IncomingBook& operator=(const IncomingBook&) = delete;

  void Add(Incoming incoming);
  const Incoming& At(RequestId request) const { return all_.at(request); }
  const std::map<RequestId, Incoming>& all() const { return all_; }
  bool empty() const { return all_.empty(); }

  // Those that wait, oldest first; the session's alone.
  std::vector<RequestId> Waiting() const;
  std::vector<RequestId> WaitingOf(SessionId session) const;
  // Those that have waited too long.
  std::vector<RequestId> Late(absl::Time now) const;
  absl::Time NextDeadline() const;

  // It was tried at this epoch, in vain.
  void Block(RequestId request, uint64_t epoch, Blocked why);
  // Nothing can ever make room: it waits no longer than this.
  void GiveUp(RequestId request, absl::Time now);
  void Place(RequestId request, uint64_t offset);
  void Start(RequestId request, TransferId transfer);

  // Its transfer has ended: it is the caller's, who calls Drop unless it
  // becomes a model's group.
  Incoming Take(TransferId transfer);
  // One that waits.
  Incoming Take(RequestId request);
  // Its space counts no more. False: it has none.
  bool Drop(const Incoming& incoming);

  // Puts what their owners hold into `counted`, anew.
  void CountInto(QuotaBook& counted) const;

 private:
  QuotaBook& quota_;
  std::map<RequestId, Incoming> all_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_INCOMING_BOOK_H_
