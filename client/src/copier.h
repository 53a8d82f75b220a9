// A worker's own copies, in turns of a device's link.
#ifndef HOIST_CLIENT_SRC_COPIER_H_
#define HOIST_CLIENT_SRC_COPIER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "client/src/copier_life.h"
#include "client/src/messages.h"
#include "client/src/session.h"
#include "client/src/stream_copies.h"
#include "client/src/stream_order.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// What hoist_copier_* calls promise is in hoist_c.h.
//
// Threads:  thread-safe; `mu_` is not held while a call waits on the CPU.
// Owns:     its pages.
class Copier {
 public:
  struct Stats {
    uint64_t granted_bytes = 0;
    uint64_t ungranted_bytes = 0;
    uint64_t to_host_bytes = 0;
    uint64_t wake_ups = 0;
    bool grants = false;
  };

  static Result<std::unique_ptr<Copier>> Open(std::shared_ptr<Session> session,
                                              const OpenCopierRequest& request);
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;
  // Not in the child of a fork.
  ~Copier() = default;

  Status ToDevice(void* to, const void* from, uint64_t bytes,
                  cuda::Stream stream);
  Status ToHost(void* to, const void* from, uint64_t bytes,
                cuda::Stream stream);
  Status Begin(uint64_t bytes, cuda::Stream stream);
  Status End(uint64_t bytes, cuda::Stream stream);
  void AddToHost(uint64_t bytes);

  bool forked() const { return session_->forked(); }
  Stats stats() const;

 private:
  using Page = std::shared_ptr<CopierPage>;
  // Of what was begun and not ended, oldest first: where it was asked for;
  // nullptr: nowhere.
  struct Begun {
    Page page;
    uint64_t bytes = 0;
  };

  Copier(std::shared_ptr<Session> session, std::unique_ptr<StreamOrder> order,
         std::unique_ptr<StreamCopies> copies, const OpenCopierRequest& request)
      : session_(std::move(session)),
        order_(std::move(order)),
        copies_(std::move(copies)),
        life_(session_, request, order_.get()) {}

  // Of a call that puts copies on the stream: where its grants come from;
  // nullptr: it has none.
  Result<Page> PageFor(cuda::Stream stream, uint64_t bytes) HOIST_REQUIRES(mu_);
  // Lets the stream wait until so many bytes are granted. On the CPU the caller
  // does, and holds no lock.
  Status Await(CopierPage& page, uint32_t bytes, cuda::Stream stream)
      HOIST_EXCLUDES(mu_);
  Status Ask(CopierPage& page, uint32_t bytes, uint32_t first,
             cuda::Stream stream) HOIST_REQUIRES(mu_);
  Status PutPieces(CopierPage& page, std::byte* to, const std::byte* from,
                   uint64_t bytes, cuda::Stream stream) HOIST_REQUIRES(mu_);
  Status CopyPieces(std::byte* to, const std::byte* from, uint64_t bytes)
      HOIST_EXCLUDES(mu_);
  // An error of the device: nothing is granted any more.
  Status Broken(CopierPage& page, Status why);

  const std::shared_ptr<Session> session_;
  const std::unique_ptr<StreamOrder> order_;
  const std::unique_ptr<StreamCopies> copies_;
  CopierLife life_;

  mutable Mutex mu_;
  // The page's last, of which streams know.
  const CopierPage* last_page_ HOIST_GUARDED_BY(mu_) = nullptr;
  cuda::Stream last_stream_ HOIST_GUARDED_BY(mu_) = nullptr;
  std::deque<Begun> begun_ HOIST_GUARDED_BY(mu_);
  uint64_t begun_bytes_ HOIST_GUARDED_BY(mu_) = 0;
  Stats stats_ HOIST_GUARDED_BY(mu_);
  std::atomic<uint64_t> to_host_bytes_{0};
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_COPIER_H_
