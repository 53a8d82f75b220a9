#ifndef HOIST_CLIENT_SRC_SIGNALS_BLOCKED_H_
#define HOIST_CLIENT_SRC_SIGNALS_BLOCKED_H_

#include <pthread.h>
#include <signal.h>

namespace hoist {

// Blocks all signals on this thread, and so on threads that it starts, as long
// as it lives. No signal is meant for a thread of ours: a handler of the
// program's must not run on a stack that it knows nothing of.
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

#endif  // HOIST_CLIENT_SRC_SIGNALS_BLOCKED_H_
