#include "client/ctl/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace hoist::ctl {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};
constexpr char kSignal = 's';
constexpr char kOver = 'o';

// What a handler can reach is the process's: where it writes to.
std::atomic<int> handler_writes_to = -1;

void OnSignal(int number) {
  const int before = errno;
  // The next one ends the process.
  signal(number, SIG_DFL);
  const ssize_t ignored = write(handler_writes_to.load(), &kSignal, 1);
  static_cast<void>(ignored);
  errno = before;
}

void SetHandlers(void (*handler)(int)) {
  for (const int number : kSignals) {
    struct sigaction action = {};
    action.sa_handler = handler;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(number, &action, nullptr);
  }
}

}  // namespace

Interrupt::Interrupt(std::function<void()> then) : then_(std::move(then)) {
  int ends[2];
  // Without them signals end the process, as ever.
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  waits_ = UniqueFd(ends[0]);
  wakes_ = UniqueFd(ends[1]);
  handler_writes_to = wakes_.get();
  thread_ = std::thread([this] { Run(); });
  SetHandlers(OnSignal);
}

Interrupt::~Interrupt() {
  if (!thread_.joinable()) return;
  SetHandlers(SIG_DFL);
  const ssize_t ignored = write(wakes_.get(), &kOver, 1);
  static_cast<void>(ignored);
  thread_.join();
  handler_writes_to = -1;
}

void Interrupt::Run() {
  char what = 0;
  while (true) {
    const ssize_t bytes = read(waits_.get(), &what, 1);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes != 1 || what == kOver) return;
    came_ = true;
    then_();
  }
}

}  // namespace hoist::ctl
