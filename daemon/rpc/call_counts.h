#ifndef HOIST_DAEMON_RPC_CALL_COUNTS_H_
#define HOIST_DAEMON_RPC_CALL_COUNTS_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/core/requests.h"
#include "grpcpp/support/server_interceptor.h"

namespace hoistd {

// How many calls each user has in flight, over all of its connections: gRPC
// bounds them by connection alone.
//
// Threads:  thread-safe.
// Bounds:   one entry a user with a call.
class CallCounts {
 public:
  explicit CallCounts(size_t most) : most_(most) {}

  void Add(const User& user) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const User& user) ABSL_LOCKS_EXCLUDED(mu_);
  // ResourceExhausted: those of the user, the one that asks among them, are
  // more than one may have.
  absl::Status Check(const User& user) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const size_t most_;
  mutable absl::Mutex mu_;
  std::map<User, size_t> calls_ ABSL_GUARDED_BY(mu_);
};

using FindPeer = std::function<absl::StatusOr<Peer>(const std::string&)>;

// Counts each call from before its method runs until gRPC forgets it. Methods
// of other services than ours, which ask nobody, are cancelled where there are
// too many. `counts` outlives the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
CountCalls(std::shared_ptr<CallCounts> counts, FindPeer find_peer);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_CALL_COUNTS_H_
