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

// Counts each user's calls in flight, over all of its connections. gRPC's own
// limit is per connection.
//
// Threads:  thread-safe.
// Bounds:   one entry per user with a call in flight.
class CallCounts {
 public:
  explicit CallCounts(size_t most) : most_(most) {}

  void Add(const User& user) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(const User& user) ABSL_LOCKS_EXCLUDED(mu_);
  // ResourceExhausted: the user's calls, this one included, exceed the limit.
  absl::Status Check(const User& user) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const size_t most_;
  mutable absl::Mutex mu_;
  std::map<User, size_t> calls_ ABSL_GUARDED_BY(mu_);
};

using FindPeer = std::function<absl::StatusOr<Peer>(const std::string&)>;

// Counts each call from before its method runs until gRPC releases it. Methods
// of gRPC's own services do not call Check, so calls of these beyond the limit
// are cancelled here. `counts` outlives the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
CountCalls(std::shared_ptr<CallCounts> counts, FindPeer find_peer);

}  // namespace hoistd

#endif  // HOIST_DAEMON_RPC_CALL_COUNTS_H_
