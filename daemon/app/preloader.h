// models.preload: models that are there before anybody asks.
#ifndef HOIST_DAEMON_APP_PRELOADER_H_
#define HOIST_DAEMON_APP_PRELOADER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/timed_cond_var.h"
#include "daemon/config/config.h"
#include "daemon/engine/engine_api.h"
#include "daemon/io_helper/io_helpers.h"
#include "daemon/rpc/bring_up.h"

namespace hoistd {

// Loads the configured models, one after another, and pins those that are to be
// pinned. A model that cannot be had is told as a note, once for each reason.
// The preloader tries again, after a second at first and a minute at last,
// unless that can never work out.
//
// Threads:  thread-safe; owns one.
// Owns:     nothing of the engine and the helpers, which outlive it. What is
//           under way as it ends is waited for by nobody.
class Preloader {
 public:
  // `note`: told what an operator should know. Thread-safe, outlives it.
  Preloader(EngineApi& engine, IoHelpers& io_helpers,
            std::function<void(std::string)> note);
  ~Preloader();

  // Once. StartThread's errors.
  absl::Status Start();

  // From now on these; those that were loaded before stay where they are.
  void Want(const std::vector<PreloadConfig>& models);

 private:
  struct Item {
    PreloadConfig model;
    bool over = false;  // It is there, or never will be.
    std::string told;   // Why it is not.
  };
  // The engine's callbacks have it, too.
  struct State {
    absl::Mutex mu;
    TimedCondVar changed;  // Of version and ends.
    std::vector<Item> items ABSL_GUARDED_BY(mu);
    uint64_t version ABSL_GUARDED_BY(mu) = 0;  // Of items.
    bool ends ABSL_GUARDED_BY(mu) = false;
    // What the one that is being loaded has come to.
    std::optional<absl::Status> outcome ABSL_GUARDED_BY(mu);

    void Set(absl::Status status) ABSL_LOCKS_EXCLUDED(mu);
  };

  void Run();
  // One after another; whether all are over.
  bool TryAll();
  // Waits for it, or for the end: Cancelled.
  absl::Status Load(const PreloadConfig& model);
  static void Loaded(EngineApi& engine, const Peer& self,
                     const PreloadConfig& model,
                     const std::shared_ptr<State>& state, BroughtUp loaded);

  EngineApi& engine_;
  IoHelpers& io_helpers_;
  const std::function<void(std::string)> note_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_APP_PRELOADER_H_
