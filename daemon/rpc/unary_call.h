#ifndef HOIST_DAEMON_RPC_UNARY_CALL_H_
#define HOIST_DAEMON_RPC_UNARY_CALL_H_

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/rpc/admin_convert.h"
#include "grpcpp/support/server_callback.h"

namespace hoistd {

// A call with one answer, from any thread. The first answer counts; it is
// dropped if the caller has gone.
//
// Threads:  thread-safe. Owned by gRPC until the call is done, and by the
//           callbacks that will answer it.
template <typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // `response` is gRPC's, and valid until the call is done.
  static std::shared_ptr<UnaryCall> Start(Response* response) {
    std::shared_ptr<UnaryCall> call(new UnaryCall(response));
    call->self_ = call;
    return call;
  }

  void Reply(Response value) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (answered_) return;
      answered_ = true;
      *response_ = std::move(value);
    }
    this->Finish(grpc::Status::OK);
  }

  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (answered_) return;
      answered_ = true;
    }
    this->Finish(ToGrpc(status));
  }

 private:
  explicit UnaryCall(Response* response) : response_(response) {}

  void OnCancel() override {
    Fail(
        absl::CancelledError("the call was cancelled, or its deadline passed"));
  }
  void OnDone() override { self_.reset(); }

  absl::Mutex mu_;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  Response* const response_;
  std::shared_ptr<UnaryCall> self_;  // gRPC's share; only OnDone resets it.
};

// Starts a call of `given`, whose error answers it; else `go(call, value)`
// will.
template <typename Response, typename Given, typename Go>
grpc::ServerUnaryReactor* StartUnaryCall(Response* response,
                                         absl::StatusOr<Given> given,
                                         const Go& go) {
  auto call = UnaryCall<Response>::Start(response);
  if (given.ok()) {
    go(call, *std::move(given));
  } else {
    call->Fail(given.status());
  }
  return call.get();
}

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_UNARY_CALL_H_
