// A worker's own copies, in turns on a device's link.
#ifndef HOIST_CLIENT_SRC_PERMIT_COPY_PERMIT_H_
#define HOIST_CLIENT_SRC_PERMIT_COPY_PERMIT_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "client/src/device/stream_copies.h"
#include "client/src/device/stream_order.h"
#include "client/src/messages/messages.h"
#include "client/src/permit/permit_life.h"
#include "client/src/session/session.h"
#include "hoist/c/copy_permit.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"

namespace hoist {

// hoist/c/copy_permit.h has the promises of hoist_copy_permit_* calls. In the
// child of a fork only forked() may be called.
//
// Threads:  thread-safe; `mu_` is not held while a call waits on the CPU.
// Owns:     its pages.
class CopyPermit {
 public:
  static Result<std::unique_ptr<CopyPermit>> Open(
      std::shared_ptr<Session> session,
      const hoist_copy_permit_options& options);
  CopyPermit(const CopyPermit&) = delete;
  CopyPermit& operator=(const CopyPermit&) = delete;
  ~CopyPermit() = default;

  Status ToDevice(void* to, const void* from, uint64_t bytes,
                  cuda::Stream stream);
  Status ToHost(void* to, const void* from, uint64_t bytes,
                cuda::Stream stream);
  Status Begin(uint64_t bytes, cuda::Stream stream);
  Status End(uint64_t bytes, cuda::Stream stream);
  void AddToHost(uint64_t bytes);

  bool forked() const { return session_->forked(); }
  hoist_copy_permit_stats stats() const;

 private:
  using Page = std::shared_ptr<PermitPage>;
  // Bytes that are begun and not ended, and their page; nullptr: no grants.
  struct Begun {
    Page page;
    uint64_t bytes = 0;
  };

  CopyPermit(std::shared_ptr<Session> session,
             std::unique_ptr<StreamOrder> order,
             std::unique_ptr<StreamCopies> copies,
             const hoist_copy_permit_options& options)
      : session_(std::move(session)),
        order_(std::move(order)),
        copies_(std::move(copies)),
        life_(session_, options, order_.get()) {}

  // The page that grants a call's copies; nullptr: no grants.
  Result<Page> PageFor(cuda::Stream stream, uint64_t bytes) HOIST_REQUIRES(mu_);
  // Makes the stream wait for the grant of so many bytes. On the CPU the caller
  // waits, without a lock.
  Status Await(PermitPage& page, uint32_t bytes, cuda::Stream stream)
      HOIST_EXCLUDES(mu_);
  Status Ask(PermitPage& page, uint32_t bytes, uint32_t first,
             cuda::Stream stream) HOIST_REQUIRES(mu_);
  Status PutPieces(PermitPage& page, std::byte* to, const std::byte* from,
                   uint64_t bytes, cuda::Stream stream) HOIST_REQUIRES(mu_);
  Status CopyPieces(std::byte* to, const std::byte* from, uint64_t bytes)
      HOIST_EXCLUDES(mu_);
  // A device's error: no more grants.
  Status Broken(PermitPage& page, Status why);

  const std::shared_ptr<Session> session_;
  const std::unique_ptr<StreamOrder> order_;
  const std::unique_ptr<StreamCopies> copies_;
  PermitLife life_;

  mutable Mutex mu_;
  // The page of the last call, and its stream.
  const PermitPage* last_page_ HOIST_GUARDED_BY(mu_) = nullptr;
  cuda::Stream last_stream_ HOIST_GUARDED_BY(mu_) = nullptr;
  std::deque<Begun> begun_ HOIST_GUARDED_BY(mu_);  // Oldest first.
  uint64_t begun_bytes_ HOIST_GUARDED_BY(mu_) = 0;
  hoist_copy_permit_stats stats_ HOIST_GUARDED_BY(mu_) = {};
  std::atomic<uint64_t> to_host_bytes_{0};
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_PERMIT_COPY_PERMIT_H_
