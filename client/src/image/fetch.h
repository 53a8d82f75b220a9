// Asynchronous loads of groups to a device.
#ifndef HOIST_CLIENT_SRC_IMAGE_FETCH_H_
#define HOIST_CLIENT_SRC_IMAGE_FETCH_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "client/src/session/session.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// hoist/c/stage.h has the promises of hoist_fetch_* calls.
//
// Threads:  thread-safe. Its own thread stages the groups in order, until one
//           fails.
// Owns:     the leases, which end with it.
class Fetch {
 public:
  struct Options {
    std::shared_ptr<Session> session;
    ModelPtr model;
    std::vector<uint32_t> groups;
    uint32_t device = 0;
    std::chrono::milliseconds deadline{0};
  };

  static Result<std::unique_ptr<Fetch>> Start(Options options);
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;
  // Not in the child of a fork.
  ~Fetch();

  Status Wait(std::chrono::milliseconds timeout, size_t* there) const;
  void Cancel();
  int event_fd() const { return event_.get(); }
  bool forked() const { return options_.session->forked(); }

 private:
  Fetch(Options options, UniqueFd event);
  void Run();
  Status StageOne(uint32_t group);

  const Options options_;
  const UniqueFd event_;
  std::atomic<bool> cancelled_{false};
  mutable Mutex mu_;
  mutable CondVar changed_;
  bool done_ HOIST_GUARDED_BY(mu_) = false;
  Status how_ HOIST_GUARDED_BY(mu_);  // The result, once done.
  std::vector<uint64_t> leases_ HOIST_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_IMAGE_FETCH_H_
