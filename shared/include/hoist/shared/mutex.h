// A mutex with compiler checks (clang's -Wthread-safety): the standard
// library's, with Abseil's names.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#ifndef HOIST_SHARED_MUTEX_H_
#define HOIST_SHARED_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define HOIST_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define HOIST_THREAD_ATTRIBUTE(x)
#endif

// For a member: accessed only while `mu` is held.
#define HOIST_GUARDED_BY(mu) HOIST_THREAD_ATTRIBUTE(guarded_by(mu))
// For a function: called only while `mu` is held; or only while it is not.
#define HOIST_REQUIRES(mu) HOIST_THREAD_ATTRIBUTE(requires_capability(mu))
#define HOIST_EXCLUDES(mu) HOIST_THREAD_ATTRIBUTE(locks_excluded(mu))
// For a function that the check cannot follow; a comment there says why.
#define HOIST_NOT_CHECKED HOIST_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace hoist {

class HOIST_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() HOIST_THREAD_ATTRIBUTE(acquire_capability()) { mu_.lock(); }
  void Unlock() HOIST_THREAD_ATTRIBUTE(release_capability()) { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

// Holds a mutex for a scope.
class HOIST_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mu) HOIST_THREAD_ATTRIBUTE(acquire_capability(mu))
      : mu_(mu) {
    mu_.Lock();
  }
  ~MutexLock() HOIST_THREAD_ATTRIBUTE(release_capability()) { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Releases a held mutex for a scope.
class HOIST_THREAD_ATTRIBUTE(scoped_lockable) MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mu) HOIST_THREAD_ATTRIBUTE(release_capability(mu))
      : mu_(mu) {
    mu_.Unlock();
  }
  ~MutexUnlock() HOIST_THREAD_ATTRIBUTE(release_capability()) { mu_.Lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mu_;
};

// Wake-ups may be spurious: wait in a loop that checks the condition.
class CondVar {
 public:
  void NotifyAll() { changed_.notify_all(); }

  void Wait(Mutex& mu) HOIST_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  // False: the deadline has passed.
  bool WaitUntil(Mutex& mu, std::chrono::steady_clock::time_point deadline)
      HOIST_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const std::cv_status status = changed_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable changed_;
};

}  // namespace hoist

#endif  // HOIST_SHARED_MUTEX_H_
