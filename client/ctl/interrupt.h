#ifndef HOIST_CLIENT_CTL_INTERRUPT_H_
#define HOIST_CLIENT_CTL_INTERRUPT_H_

#include <atomic>
#include <functional>
#include <thread>

#include "hoist/shared/unique_fd.h"

namespace hoist::ctl {

// While it lives, Ctrl-C (SIGINT) and SIGTERM do not end the process, but call
// `then`, once. A second one ends it as ever.
//
// Threads:  made and destroyed by one thread; `then` runs on one of its own.
// Bounds:   one at a time, since signals are the process's.
class Interrupt {
 public:
  explicit Interrupt(std::function<void()> then);
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();

  bool came() const { return came_; }

 private:
  void Run();

  const std::function<void()> then_;
  std::atomic<bool> came_ = false;
  UniqueFd wakes_;  // A pipe: the handler writes to it.
  UniqueFd waits_;
  std::thread thread_;
};

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_INTERRUPT_H_
