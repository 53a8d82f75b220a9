#ifndef HOIST_DAEMON_RPC_STREAM_CALL_H_
#define HOIST_DAEMON_RPC_STREAM_CALL_H_

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/rpc/admin_convert.h"
#include "grpcpp/support/server_callback.h"

namespace hoistd {

// A server stream with backpressure: one message is in flight. The next one is
// requested only when the peer can take it, so a slow peer costs no queue
// unless the derived class keeps one.
//
// Threads:  thread-safe. Owned by gRPC until the call is done, and by the
//           callbacks that refer to it.
template <typename Message>
class StreamCall : public grpc::ServerWriteReactor<Message>,
                   public std::enable_shared_from_this<StreamCall<Message>> {
 public:
  // Ends the stream once Next has nothing left. The first end counts.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (!end_.has_value()) end_ = ToGrpc(status);
    }
    Wake();
  }

 protected:
  // Call once, before the reactor is given to gRPC.
  void Own(std::shared_ptr<StreamCall> self) { self_ = std::move(self); }

  // Sends the next message, or the end, if there is one and no write is in
  // flight.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_) {
    bool write = false;
    {
      absl::MutexLock lock(&mu_);
      if (writing_ || finished_) return;
      message_.Clear();
      if (!gone_ && Next(&message_)) {
        writing_ = write = true;
      } else if (end_.has_value()) {
        finished_ = true;
      } else {
        return;
      }
    }
    // The flag set above keeps other threads from writing or finishing.
    if (write) {
      this->StartWrite(&message_);
    } else {
      this->Finish(*end_);
    }
  }

  // The next message, if there is one.
  virtual bool Next(Message* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;
  // The call is over, or its peer has gone: releases its holdings. Once.
  virtual void OnGone() = 0;
  bool gone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return gone_; }

  absl::Mutex mu_;

 private:
  void Leave() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (std::exchange(gone_, true)) return;
    }
    OnGone();
    End(absl::CancelledError("the call was cancelled, or its deadline passed"));
  }

  void OnWriteDone(bool ok) final {
    {
      absl::MutexLock lock(&mu_);
      writing_ = false;
    }
    if (!ok) Leave();
    Wake();
  }
  void OnCancel() final { Leave(); }
  void OnDone() final {
    Leave();
    self_.reset();
  }

  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;
  // Not changed once it is set, or while `writing_`.
  std::optional<grpc::Status> end_;
  Message message_;
  std::shared_ptr<StreamCall> self_;  // gRPC's share; only OnDone resets it.
};

// A stream whose newest message alone counts: it replaces one that was not sent
// yet.
template <typename Message>
class LatestCall : public StreamCall<Message> {
 protected:
  void Put(Message message) ABSL_LOCKS_EXCLUDED(this->mu_) {
    {
      absl::MutexLock lock(&this->mu_);
      latest_ = std::move(message);
    }
    this->Wake();
  }
  void OnGone() override {}

  std::optional<Message> latest_ ABSL_GUARDED_BY(this->mu_);

 private:
  bool Next(Message* message) final ABSL_EXCLUSIVE_LOCKS_REQUIRED(this->mu_) {
    if (!latest_.has_value()) return false;
    *message = *std::move(latest_);
    latest_.reset();
    return true;
  }
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_STREAM_CALL_H_
