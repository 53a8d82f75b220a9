// What would have threads of its own runs here: on true threads, or, in a
// simulation, one step at a time on one.
#ifndef HOIST_DAEMON_BASE_THREADS_H_
#define HOIST_DAEMON_BASE_THREADS_H_

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace hoistd {

// Runs what it is given, begun in the order of Posts.
//
// Threads:  Post from any, its own included.
// Bounds:   the queue is as long as those who post let it be.
class Executor {
 public:
  using Task = absl::AnyInvocable<void()>;

  virtual ~Executor() = default;  // Runs what was posted. Not from a task.
  virtual void Post(Task task) = 0;
};

// What a thread does, in turns.
//
// Threads:  all calls on that thread.
class Loop {
 public:
  virtual ~Loop() = default;

  // Once, before the first turn.
  virtual void Begin() = 0;
  // Does what can be done now. Returns for how long nothing can be, unless it
  // is woken: zero if there may be more at once, InfiniteDuration for no end.
  virtual absl::Duration Turn() = 0;
  // Waits so long, or until it is woken; true: it was, since the last Wait.
  virtual bool Wait(absl::Duration limit) = 0;
  // After a turn: that was the last one.
  virtual bool over() const = 0;
};

// A loop that runs. Destroying it waits until the loop is over, which is its
// owner's to bring about.
class Running {
 public:
  virtual ~Running() = default;
};

// Threads:  thread-safe.
class Threads {
 public:
  virtual ~Threads() = default;

  // Of so many threads. An error, here and in Start: StartThread's.
  virtual absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(
      int threads) = 0;
  // `loop` outlives what is returned.
  virtual absl::StatusOr<std::unique_ptr<Running>> Start(Loop& loop) = 0;
  // Waits for what others are about to do.
  virtual void Await(const absl::Notification& done) = 0;
};

// Those of the system. Has no state.
Threads& TrueThreads();
// `given`, or where that is nullptr those of the system.
inline Threads& ThreadsOr(Threads* given) {
  return given != nullptr ? *given : TrueThreads();
}

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_THREADS_H_
