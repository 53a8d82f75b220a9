// Simulated threads: their work runs at the world's command.
#ifndef HOIST_TESTS_SIM_SYSTEM_SIM_THREADS_H_
#define HOIST_TESTS_SIM_SYSTEM_SIM_THREADS_H_

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/base/threads.h"
#include "tests/sim/system/violation.h"

namespace hoistd::sim {

// Time that advances at the world's command.
class SimClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }
  void AdvanceTo(absl::Time to) { now_ = std::max(now_, to); }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

// A wait for a thread runs the world meanwhile.
//
// Threads:  one.
// Owns:     nothing: the caller owns the results.
class SimThreads final : public Threads {
 public:
  // `pump` does any work that is due; false: there is none, ever.
  SimThreads(const Clock& clock, std::function<bool()> pump)
      : clock_(clock), pump_(std::move(pump)) {}

  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(int) override {
    auto made = std::make_unique<SimExecutor>(*this);
    executors_.push_back(made.get());
    return made;
  }
  absl::StatusOr<std::unique_ptr<Running>> Start(Loop& loop) override {
    auto made = std::make_unique<SimRunning>(*this, loop);
    loops_.push_back(made.get());
    return made;
  }
  void Await(const absl::Notification& done) override {
    while (!done.HasBeenNotified()) {
      if (!pump_()) Violation(Check::kProgress, "a thread waits for ever");
    }
  }

  // --- For the world ------------------------------------------------------

  size_t loops() const { return loops_.size(); }
  // True: the loop would not wait.
  bool Due(size_t loop) { return loops_[loop]->Due(); }
  void Turn(size_t loop) { loops_[loop]->Turn(); }
  // The time of the next wake-up by a timer.
  absl::Time NextDue() const {
    absl::Time next = absl::InfiniteFuture();
    for (const SimRunning* loop : loops_) next = std::min(next, loop->due);
    return next;
  }
  size_t executors() const { return executors_.size(); }
  bool HasTask(size_t executor) const {
    return !executors_[executor]->tasks.empty();
  }
  void RunTask(size_t executor) { executors_[executor]->RunOne(); }

 private:
  struct SimExecutor final : public Executor {
    explicit SimExecutor(SimThreads& of) : threads(of) {}
    ~SimExecutor() override {
      while (!tasks.empty()) RunOne();
      std::erase(threads.executors_, this);
    }
    void Post(Task task) override { tasks.push_back(std::move(task)); }
    void RunOne() {
      Task task = std::move(tasks.front());
      tasks.pop_front();
      task();
    }

    SimThreads& threads;
    std::deque<Task> tasks;
  };
  struct SimRunning final : public Running {
    SimRunning(SimThreads& of, Loop& runs) : threads(of), loop(runs) {}
    ~SimRunning() override {
      while (!loop.over()) {
        if (!threads.pump_()) {
          Violation(Check::kProgress, "a thread does not end");
        }
      }
      std::erase(threads.loops_, this);
    }
    bool Due() {
      if (loop.over()) return false;
      // A wake-up is consumed once, and counts until the next turn.
      woken = woken || loop.Wait(absl::ZeroDuration());
      return woken || threads.clock_.Now() >= due;
    }
    void Turn() {
      if (!std::exchange(begun, true)) loop.Begin();
      woken = false;
      const absl::Duration idle = loop.Turn();
      due = loop.over() ? absl::InfiniteFuture() : threads.clock_.Now() + idle;
    }

    SimThreads& threads;
    Loop& loop;
    bool begun = false;
    bool woken = false;
    absl::Time due = absl::InfinitePast();
  };

  const Clock& clock_;
  const std::function<bool()> pump_;
  std::vector<SimExecutor*> executors_;
  std::vector<SimRunning*> loops_;
};

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SIM_THREADS_H_
