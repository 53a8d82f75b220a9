// Opens and ends a permit's pages, and lets waits through when a page is void.
#ifndef HOIST_CLIENT_SRC_PERMIT_PERMIT_LIFE_H_
#define HOIST_CLIENT_SRC_PERMIT_PERMIT_LIFE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "client/src/device/stream_order.h"
#include "client/src/messages/messages.h"
#include "client/src/permit/permit_page.h"
#include "client/src/session/connection.h"
#include "client/src/session/session.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// A page is void once its session or hoistd has ended, or hoistd is silent. A
// thread then lets its waits through, until streams are done with it, and opens
// another one if the session resumes. It sleeps while nothing waits.
//
// Threads:  thread-safe. Takes no lock that is held over a wait, so that an end
//           always reaches the GPU.
// Owns:     pages, until their last other holder ends. Borrows `order`.
class PermitLife final : public Connection::Listener {
 public:
  PermitLife(std::shared_ptr<Session> session,
             const hoist_copy_permit_options& options, StreamOrder* order)
      : session_(std::move(session)), options_(options), order_(order) {}
  PermitLife(const PermitLife&) = delete;
  PermitLife& operator=(const PermitLife&) = delete;
  // Closes, if it was opened.
  ~PermitLife() override;

  // Once. An error is hoistd's, or the reason why the page cannot be used here.
  Status Open();
  // Gives the page back. Returns when all streams are done with all pages; lets
  // their waits through.
  void Close();

  // nullptr: no grants now.
  std::shared_ptr<PermitPage> page() const;
  // To be called after work was put on a stream.
  void Watch() {
    if (!watching_.exchange(true)) Notify();
  }
  // The device failed: no more grants.
  void End();

  void SessionEnded(const Status&) override { End(); }
  void SessionResumed() override;
  void PlansEnded(std::span<const uint64_t>, const Status&) override {}

 private:
  Result<std::shared_ptr<PermitPage>> NewPage();
  void GiveBack();  // hoistd's permit, if it is open.
  void Run();
  bool used() const;  // Whether a stream uses a page.
  void Retire() HOIST_REQUIRES(mu_);
  // True: some page is still in use.
  bool LetThrough() HOIST_REQUIRES(mu_);
  // Releases the lock while they wait.
  void Reopen() HOIST_REQUIRES(mu_);
  void LookForSilence() HOIST_REQUIRES(mu_);
  void Notify() {
    const MutexLock lock(mu_);
    changed_.NotifyAll();
  }

  const std::shared_ptr<Session> session_;
  const hoist_copy_permit_options options_;
  StreamOrder* const order_;

  mutable Mutex mu_;
  CondVar changed_;
  std::shared_ptr<PermitPage> page_ HOIST_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<PermitPage>> retired_ HOIST_GUARDED_BY(mu_);
  uint64_t open_id_ HOIST_GUARDED_BY(mu_) = 0;  // hoistd's id; 0: none.
  bool reopen_ HOIST_GUARDED_BY(mu_) = false;
  bool ended_ HOIST_GUARDED_BY(mu_) = false;
  uint32_t last_granted_ HOIST_GUARDED_BY(mu_) = 0;
  std::atomic<bool> watching_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PERMIT_PERMIT_LIFE_H_
