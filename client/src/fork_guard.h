// What a fork does to this library: the child has no reader thread and must not
// speak on its parent's sockets.
#ifndef HOIST_CLIENT_SRC_FORK_GUARD_H_
#define HOIST_CLIENT_SRC_FORK_GUARD_H_

#include <cstdint>

#include "hoist/shared/status.h"

namespace hoist {

// Counts the forks between the first process that used this library and this
// one. An object made under another number is its parent's: its locks may be
// held by threads that do not exist here, so it is neither locked nor freed.
uint64_t ForkGeneration();

// FailedPrecondition, with what to do about it.
Status ForkedStatus();

// A socket that the child of a fork must not keep, or the session would outlive
// its process. Registered as long as it lives; borrows the descriptor, which
// must outlive it. In the child the descriptor is closed, and the object is
// never destroyed (see ForkGeneration).
class ForkClosedFd {
 public:
  explicit ForkClosedFd(int fd);
  ForkClosedFd(const ForkClosedFd&) = delete;
  ForkClosedFd& operator=(const ForkClosedFd&) = delete;
  ~ForkClosedFd();

  int fd() const { return fd_; }
  ForkClosedFd* next() const { return next_; }

 private:
  const int fd_;
  ForkClosedFd* next_ = nullptr;
  ForkClosedFd* before_ = nullptr;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_FORK_GUARD_H_
