// models.preload: loads models before their first use.
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

// Loads the configured models one after another, and pins those with `pin`. A
// failure becomes a note, once per reason. Retries after 1 s at first and 60 s
// at last, unless the failure is final.
//
// Threads:  thread-safe; owns one.
// Owns:     its thread. Borrows the engine and the helpers. Its end does not
//           wait for loads under way.
class Preloader {
 public:
  // `note`: receives notes for the operator. Thread-safe; outlives this object.
  Preloader(EngineApi& engine, IoHelpers& io_helpers,
            std::function<void(std::string)> note);
  ~Preloader();

  // Call once. StartThread's errors.
  absl::Status Start();

  // Replaces the list. Models loaded before stay in place.
  void Want(const std::vector<PreloadConfig>& models);

 private:
  struct Item {
    PreloadConfig model;
    bool over = false;  // Loaded, or failed for good.
    std::string told;   // The last noted reason.
  };
  // Shared with the engine's callbacks.
  struct State {
    absl::Mutex mu;
    TimedCondVar changed;  // Of version and ends.
    std::vector<Item> items ABSL_GUARDED_BY(mu);
    uint64_t version ABSL_GUARDED_BY(mu) = 0;  // Of items.
    bool ends ABSL_GUARDED_BY(mu) = false;
    // Of the current load; nullopt: under way.
    std::optional<absl::Status> outcome ABSL_GUARDED_BY(mu);

    void Set(absl::Status status) ABSL_LOCKS_EXCLUDED(mu);
  };

  void Run();
  // Tries each model once; returns whether all are over.
  bool TryAll();
  // Waits for the load. Cancelled: the preloader ends.
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
