// Notifies listeners of a connection's end and resumption.
#include <span>
#include <vector>

#include "client/src/session/connection.h"

namespace hoist {

Status Connection::AddListener(Listener* listener) {
  {
    const MutexLock lock(listeners_mu_);
    listeners_.push_back(listener);
  }
  return Check();
}

void Connection::RemoveListener(Listener* listener) {
  const MutexLock lock(listeners_mu_);
  std::erase(listeners_, listener);
}

void Connection::TellPlansEnded(std::span<const uint64_t> plans,
                                const Status& why) {
  const MutexLock lock(listeners_mu_);
  for (Listener* listener : listeners_) listener->PlansEnded(plans, why);
}

void Connection::TellResumed() {
  const MutexLock lock(listeners_mu_);
  for (Listener* listener : listeners_) listener->SessionResumed();
}

}  // namespace hoist
