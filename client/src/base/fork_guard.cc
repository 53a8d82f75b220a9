#include "client/src/base/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "hoist/shared/mutex.h"

namespace hoist {
namespace {

// Trivially destructible, so that they outlive static destructors.
constinit std::atomic<uint64_t> forks{0};
constinit Mutex list_mutex;
constinit ForkClosedFd* list HOIST_GUARDED_BY(list_mutex) = nullptr;

// The lock is held across the fork, which no static check can follow.
void BeforeFork() HOIST_NOT_CHECKED { list_mutex.Lock(); }
void InParent() HOIST_NOT_CHECKED { list_mutex.Unlock(); }
void InChild() HOIST_NOT_CHECKED {
  for (ForkClosedFd* each = list; each != nullptr; each = each->next()) {
    close(each->fd());
  }
  list = nullptr;
  forks.fetch_add(1, std::memory_order_relaxed);
  list_mutex.Unlock();
}

void RegisterHandlers() {
  static const int registered = pthread_atfork(BeforeFork, InParent, InChild);
  (void)registered;  // Fails on ENOMEM only: forks are unguarded then.
}

}  // namespace

uint64_t ForkGeneration() { return forks.load(std::memory_order_relaxed); }

Status ForkedStatus() {
  return Status(
      Code::kFailedPrecondition,
      "this process was forked after hoist_connect; connect again in it");
}

ForkClosedFd::ForkClosedFd(int fd) : fd_(fd) {
  RegisterHandlers();
  const MutexLock lock(list_mutex);
  next_ = list;
  if (list != nullptr) list->before_ = this;
  list = this;
}

ForkClosedFd::~ForkClosedFd() {
  const MutexLock lock(list_mutex);
  if (next_ != nullptr) next_->before_ = before_;
  (before_ != nullptr ? before_->next_ : list) = next_;
}

}  // namespace hoist
