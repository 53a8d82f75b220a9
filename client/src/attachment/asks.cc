#include "client/src/attachment/asks.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "client/src/base/start_thread.h"

namespace hoist {

Result<std::unique_ptr<Asks>> Asks::Start(Look look) {
  UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return ErrnoStatus(errno, "make an eventfd");
  std::unique_ptr<Asks> made(new Asks(std::move(look), std::move(event)));
  Status started =
      StartThread(&made->thread_, [asks = made.get()] { asks->Run(); });
  if (!started.ok()) return started;
  return made;
}

void Asks::Stop() {
  stopping_ = true;
  Signal();
  if (thread_.joinable()) thread_.join();
}

// A full eventfd is readable anyway.
void Asks::Signal() { (void)eventfd_write(event_.get(), 1); }

void Asks::Wake() {
  wake_ = true;
  Signal();
}

void Asks::Run() {
  pthread_setname_np(pthread_self(), "hoist-asks");
  constexpr std::chrono::milliseconds kLongest{86'400'000};
  std::optional<std::chrono::milliseconds> again;
  while (true) {
    pollfd one = {event_.get(), POLLIN, 0};
    (void)poll(&one, 1,
               again.has_value()
                   ? static_cast<int>(std::min(*again, kLongest).count())
                   : -1);
    uint64_t signals = 0;
    (void)eventfd_read(event_.get(), &signals);
    if (stopping_) return;
    again = look_(wake_.exchange(false));
  }
}

}  // namespace hoist
