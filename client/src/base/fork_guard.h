// Effects of a fork: the child has no reader thread, and must not use its
// parent's sockets.
#ifndef HOIST_CLIENT_SRC_BASE_FORK_GUARD_H_
#define HOIST_CLIENT_SRC_BASE_FORK_GUARD_H_

#include <cstdint>

#include "hoist/shared/status.h"

namespace hoist {

// Counts the forks between the first process that used this library and this
// one. An object with another number is the parent's: threads that do not exist
// here may hold its locks, so it is neither locked nor freed.
uint64_t ForkGeneration();

// FailedPrecondition, with the remedy.
Status ForkedStatus();

// A socket that the child of a fork must not keep, or the session would outlive
// its process. Registered for its lifetime; borrows the descriptor, which must
// outlive it. The child closes the descriptor, and never destroys the object
// (see ForkGeneration).
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

#endif  // HOIST_CLIENT_SRC_BASE_FORK_GUARD_H_
