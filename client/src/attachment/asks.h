// hoistd's asks of an attachment that gives way: a thread that heeds them.
#ifndef HOIST_CLIENT_SRC_ATTACHMENT_ASKS_H_
#define HOIST_CLIENT_SRC_ATTACHMENT_ASKS_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Threads:  thread-safe, but for Stop.
class Asks {
 public:
  // Runs in the thread after each signal on event(), and again after the time
  // that it returned. `wake`: Wake was called since the last run.
  using Look = std::function<std::optional<std::chrono::milliseconds>(bool)>;

  // ResourceExhausted: no thread, or no descriptor.
  static Result<std::unique_ptr<Asks>> Start(Look look);
  Asks(const Asks&) = delete;
  Asks& operator=(const Asks&) = delete;
  ~Asks() { Stop(); }
  // Waits for `look`, which is not called again.
  void Stop();

  int event() const { return event_.get(); }  // An eventfd.
  // Neither blocks.
  void Signal();
  void Wake();

 private:
  Asks(Look look, UniqueFd event)
      : look_(std::move(look)), event_(std::move(event)) {}
  void Run();

  const Look look_;
  const UniqueFd event_;
  std::atomic<bool> wake_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_ATTACHMENT_ASKS_H_
