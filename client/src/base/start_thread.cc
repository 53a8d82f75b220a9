#include "client/src/base/start_thread.h"

#include <pthread.h>
#include <signal.h>

#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace hoist {
namespace {

// Of this thread, and of those that it starts, for its lifetime.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

Status NoThread(const std::string& why) {
  return Status(Code::kResourceExhausted,
                "libhoist cannot start a thread (" + why +
                    "); raise the limit of tasks (ulimit -u, --pids-limit) or "
                    "of memory (ulimit -v)");
}

}  // namespace

Status StartThread(std::thread* thread, std::function<void()> body) {
  const SignalsBlocked blocked;
  try {
    *thread = std::thread(std::move(body));
    return Status();
  } catch (const std::system_error& thrown) {
    return NoThread(thrown.what());
  } catch (const std::bad_alloc&) {
    return NoThread("out of memory");
  }
}

void WithHelpers(uint64_t helpers, const std::function<void()>& body) {
  std::vector<std::thread> threads(helpers);
  for (std::thread& thread : threads) {
    if (!StartThread(&thread, std::ref(body)).ok()) break;
  }
  body();
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace hoist
