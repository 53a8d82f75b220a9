#include "daemon/rpc/call_counts.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/server_context.h"

namespace hoistd {
namespace {

namespace grpcx = grpc::experimental;

// Lives as long as gRPC's own record of the call.
class CountedCall final : public grpcx::Interceptor {
 public:
  CountedCall(std::shared_ptr<CallCounts> counts, std::optional<User> user)
      : counts_(std::move(counts)), user_(std::move(user)) {
    if (user_.has_value()) counts_->Add(*user_);
  }
  ~CountedCall() override {
    if (user_.has_value()) counts_->Remove(*user_);
  }
  void Intercept(grpcx::InterceptorBatchMethods* methods) override {
    methods->Proceed();
  }

 private:
  const std::shared_ptr<CallCounts> counts_;
  const std::optional<User> user_;
};

class CallCountsFactory final
    : public grpcx::ServerInterceptorFactoryInterface {
 public:
  CallCountsFactory(std::shared_ptr<CallCounts> counts, FindPeer find_peer)
      : counts_(std::move(counts)), find_peer_(std::move(find_peer)) {}

  grpcx::Interceptor* CreateServerInterceptor(
      grpcx::ServerRpcInfo* info) override {
    std::optional<User> user;
    if (const auto peer = find_peer_(info->server_context()->peer());
        peer.ok()) {
      user = peer->uid;
    }
    auto call = std::make_unique<CountedCall>(counts_, user);
    if (user.has_value() && !absl::StartsWith(info->method(), "/hoist.v1.") &&
        !counts_->Check(*user).ok()) {
      info->server_context()->TryCancel();
    }
    return call.release();  // gRPC owns it.
  }

 private:
  const std::shared_ptr<CallCounts> counts_;
  const FindPeer find_peer_;
};

}  // namespace

void CallCounts::Add(const User& user) {
  absl::MutexLock lock(&mu_);
  ++calls_[user];
}

void CallCounts::Remove(const User& user) {
  absl::MutexLock lock(&mu_);
  const auto found = calls_.find(user);
  if (--found->second == 0) calls_.erase(found);
}

absl::Status CallCounts::Check(const User& user) const {
  absl::MutexLock lock(&mu_);
  const auto found = calls_.find(user);
  if (found == calls_.end() || found->second <= most_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(ToString(user), " has ", most_,
                   " gRPC calls in flight, the most there may be; wait for "
                   "one to end, or cancel one"));
}

std::unique_ptr<grpcx::ServerInterceptorFactoryInterface> CountCalls(
    std::shared_ptr<CallCounts> counts, FindPeer find_peer) {
  return std::make_unique<CallCountsFactory>(std::move(counts),
                                             std::move(find_peer));
}

}  // namespace hoistd
