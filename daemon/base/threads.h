// Runs work that would otherwise start threads: on system threads or, in a
// simulation, step by step on one.
#ifndef HOIST_DAEMON_BASE_THREADS_H_
#define HOIST_DAEMON_BASE_THREADS_H_

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace hoistd {

// Starts tasks in the order of Posts.
//
// Threads:  Post from any, its own included.
// Bounds:   callers bound the queue.
class Executor {
 public:
  using Task = absl::AnyInvocable<void()>;

  virtual ~Executor() = default;  // Runs posted tasks; not from a task.
  virtual void Post(Task task) = 0;
};

// The work of a thread, in turns.
//
// Threads:  all calls on that thread.
class Loop {
 public:
  virtual ~Loop() = default;

  // Called once, before the first turn.
  virtual void Begin() = 0;
  // Does all work that is due. Returns the time until more is due, unless
  // woken: zero if perhaps at once, InfiniteDuration if only after a wake-up.
  virtual absl::Duration Turn() = 0;
  // Waits for `limit`, or until woken; true: woken since the last Wait.
  virtual bool Wait(absl::Duration limit) = 0;
  // After a turn: it was the last one.
  virtual bool over() const = 0;
};

// A running loop. Its destructor waits until the loop is over; the owner must
// cause that.
class Running {
 public:
  virtual ~Running() = default;
};

// Threads:  thread-safe.
class Threads {
 public:
  virtual ~Threads() = default;

  // An executor with this many threads. Errors, also of Start: StartThread's.
  virtual absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(
      int threads) = 0;
  // `loop` outlives the result.
  virtual absl::StatusOr<std::unique_ptr<Running>> Start(Loop& loop) = 0;
  // Waits for work of other threads.
  virtual void Await(const absl::Notification& done) = 0;
};

// The system's threads. Stateless.
Threads& TrueThreads();
// `given`, or if it is nullptr the system's.
inline Threads& ThreadsOr(Threads* given) {
  return given != nullptr ? *given : TrueThreads();
}

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_THREADS_H_
