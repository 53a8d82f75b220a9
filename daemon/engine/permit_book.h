#ifndef HOIST_DAEMON_ENGINE_PERMIT_BOOK_H_
#define HOIST_DAEMON_ENGINE_PERMIT_BOOK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/requests.h"
#include "daemon/permit/permit_desk.h"
#include "daemon/plan/link_share.h"
#include "daemon/types/ids.h"
#include "daemon/types/user.h"

namespace hoistd {

// The copy permits of all sessions, and the bounds on their number.
//
// Threads:  one at a time, the engine's.
// Owns:     the desks. Borrows the links, which outlive it.
// Bounds:   kMostOfSession permits per session, kMostOfUser per user.
// Restart:  a permit ends with its hoistd; the next one's have other ids.
class PermitBook {
 public:
  // One per concurrently copying stream suffices. Each costs hoistd a page, an
  // eventfd and a poll in each turn of its link.
  static constexpr size_t kMostOfSession = 8;
  static constexpr size_t kMostOfUser = 256;

  using Post = std::function<void(absl::AnyInvocable<void()>)>;

  // `post` runs a function later on the engine's thread.
  explicit PermitBook(Post post) : post_(std::move(post)) {}

  // Of the next device. `threads`: as for PermitDesk.
  void AddDevice(Link& link, Threads* threads);
  // Closes all permits; functions already posted do nothing.
  void Stop() { desks_.clear(); }
  // Ids begin above `last`.
  void SkipIds(uint64_t last) { last_ = last; }

  // Calls `done` on the engine's thread. NotFound: no such device with copies.
  // ResourceExhausted: a bound. Cancelled: the session was closed meanwhile.
  // Other errors are PermitDesk's.
  void Open(SessionId session, User user, DeviceIndex device,
            const ShareOptions& share,
            absl::AnyInvocable<void(absl::StatusOr<OpenedPermit>)> done);
  // NotFound: the session has no such permit.
  absl::Status Close(SessionId session, PermitId id);
  void CloseAllOf(SessionId session);
  // NotFound.
  absl::StatusOr<ShareChanged> SetShare(PermitId id, const ShareChange& change);

  // Of the device's permits: those open now, and the bytes copied by all.
  std::vector<PermitStats> Stats(DeviceIndex device) const;
  PermitDesk::Totals Totals(DeviceIndex device) const;

 private:
  struct Entry {
    SessionId session;
    User user;
    DeviceIndex device;
    ShareOptions share;
  };

  absl::Status Check(SessionId session, User user, DeviceIndex device) const;
  PermitDesk& DeskOf(const Entry& entry) {
    return *desks_[entry.device.number()];
  }

  const Post post_;
  std::map<PermitId, Entry> permits_;
  uint64_t last_ = 0;
  // One per device; nullptr: in place, without copies. Their callbacks post.
  std::vector<std::unique_ptr<PermitDesk>> desks_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_PERMIT_BOOK_H_
