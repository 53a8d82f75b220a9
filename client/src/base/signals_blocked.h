#ifndef HOIST_CLIENT_SRC_BASE_SIGNALS_BLOCKED_H_
#define HOIST_CLIENT_SRC_BASE_SIGNALS_BLOCKED_H_

#include <pthread.h>
#include <signal.h>

namespace hoist {

// Blocks all signals on this thread, and on threads that it starts, for its
// lifetime. The program does not know our threads' stacks, so its signal
// handlers must not run on them.
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

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_BASE_SIGNALS_BLOCKED_H_
