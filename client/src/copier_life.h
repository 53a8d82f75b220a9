// Whether a copier's copies are granted, and that none waits where they are
// not.
#ifndef HOIST_CLIENT_SRC_COPIER_LIFE_H_
#define HOIST_CLIENT_SRC_COPIER_LIFE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "client/src/connection.h"
#include "client/src/copier_page.h"
#include "client/src/messages.h"
#include "client/src/session.h"
#include "client/src/stream_order.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// A page is void once its session or its hoistd has ended, or hoistd is silent:
// a thread then lets through what waits for it, until streams are done with
// it, and opens another one where the session goes on. It sleeps while nothing
// waits.
//
// Threads:  thread-safe. Takes no lock that is held over a wait, so that an end
//           always gets through to the GPU.
// Owns:     pages, until nobody else has them. Borrows `order`.
class CopierLife final : public Connection::Listener {
 public:
  CopierLife(std::shared_ptr<Session> session, const OpenCopierRequest& request,
             StreamOrder* order)
      : session_(std::move(session)), request_(request), order_(order) {}
  CopierLife(const CopierLife&) = delete;
  CopierLife& operator=(const CopierLife&) = delete;
  // Close, if it was opened.
  ~CopierLife() override;

  // Once. An error is hoistd's, or says why it cannot be used here.
  Status Open();
  // Gives the page back. Returns when all streams are done with all pages: they
  // may wait for grants, which are let through.
  void Close();

  // nullptr: nothing is granted now.
  std::shared_ptr<CopierPage> page() const;
  // Something was put on a stream.
  void Watch() {
    if (!watching_.exchange(true)) Notify();
  }
  // Nothing is granted any more: the device failed.
  void End();

  void SessionEnded(const Status&) override { End(); }
  void SessionResumed() override;
  void PlansEnded(std::span<const uint64_t>, const Status&) override {}

 private:
  Result<std::shared_ptr<CopierPage>> NewPage();
  void Run();
  bool used() const;  // Some page is, by a stream.
  void Retire() HOIST_REQUIRES(mu_);
  // True: some page is not done with.
  bool LetThrough() HOIST_REQUIRES(mu_);
  // Lets go of the lock while they wait.
  void Reopen() HOIST_REQUIRES(mu_);
  void LookForSilence() HOIST_REQUIRES(mu_);
  void Notify() {
    const MutexLock lock(mu_);
    changed_.NotifyAll();
  }

  const std::shared_ptr<Session> session_;
  const OpenCopierRequest request_;
  StreamOrder* const order_;

  mutable Mutex mu_;
  CondVar changed_;
  std::shared_ptr<CopierPage> page_ HOIST_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<CopierPage>> retired_ HOIST_GUARDED_BY(mu_);
  uint64_t open_id_ HOIST_GUARDED_BY(mu_) = 0;  // Of hoistd's; 0: it has none.
  bool reopen_ HOIST_GUARDED_BY(mu_) = false;
  bool ended_ HOIST_GUARDED_BY(mu_) = false;
  uint32_t last_granted_ HOIST_GUARDED_BY(mu_) = 0;
  std::atomic<bool> watching_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_COPIER_LIFE_H_
