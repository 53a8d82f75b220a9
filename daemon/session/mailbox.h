// The queue of replies from the engine's thread to the session thread.
#ifndef HOIST_DAEMON_SESSION_MAILBOX_H_
#define HOIST_DAEMON_SESSION_MAILBOX_H_

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/session/reply.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Threads:  Post and Close from any thread; they block only on a short lock.
//           TakeAll from the session thread.
// Bounds:   one entry per request in flight, which the server limits.
class Mailbox {
 public:
  static absl::StatusOr<std::unique_ptr<Mailbox>> Create();

  // False: closed; the reply was dropped, and its descriptors with it.
  bool Post(Reply reply) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Reply> TakeAll() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the replies that were not taken; no one else will see them.
  std::vector<Reply> Close() ABSL_LOCKS_EXCLUDED(mu_);
  // Makes fd() readable without a reply.
  void Wake();

  // Readable while there may be something to take.
  int fd() const { return event_.get(); }

 private:
  explicit Mailbox(hoist::UniqueFd event) : event_(std::move(event)) {}

  const hoist::UniqueFd event_;
  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Reply> replies_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_SESSION_MAILBOX_H_
