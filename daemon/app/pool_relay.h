#ifndef HOIST_DAEMON_APP_POOL_RELAY_H_
#define HOIST_DAEMON_APP_POOL_RELAY_H_

#include <spdlog/spdlog.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/engine/engine.h"

namespace hoistd {

// Passes the host pool's growth and failures to the engine, while there is an
// engine.
//
// Threads: thread-safe.
class PoolRelay {
 public:
  void Connect(Engine* engine) {
    const absl::MutexLock lock(&mu_);
    engine_ = engine;
    if (engine_ != nullptr && ready_ > 0) engine_->Resize(OnHost(), {ready_});
  }
  void Grown(uint64_t ready_bytes) {
    const absl::MutexLock lock(&mu_);
    ready_ = ready_bytes;
    if (engine_ != nullptr) engine_->Resize(OnHost(), {ready_});
  }
  void Note(std::string note) {
    const absl::MutexLock lock(&mu_);
    if (engine_ != nullptr) return engine_->AddNote(std::move(note));
    SPDLOG_WARN("{}", note);
  }

 private:
  absl::Mutex mu_;
  Engine* engine_ ABSL_GUARDED_BY(mu_) = nullptr;
  uint64_t ready_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_POOL_RELAY_H_
