#include "daemon/rpc/refusal_log.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/base/one_line.h"
#include "grpcpp/server_context.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

namespace grpcx = grpc::experimental;

bool IsOrdinary(absl::StatusCode code) {
  return code == absl::StatusCode::kNotFound ||
         code == absl::StatusCode::kCancelled ||
         code == absl::StatusCode::kAlreadyExists;
}

class LoggedCall final : public grpcx::Interceptor {
 public:
  LoggedCall(FindPeer find_peer, grpcx::ServerRpcInfo* call)
      : find_peer_(std::move(find_peer)), call_(call) {}

  void Intercept(grpcx::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpcx::InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      if (!status.ok()) Log(status);
    }
    methods->Proceed();
  }

 private:
  void Log(const grpc::Status& status) const {
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    absl::string_view method = call_->method();
    const bool worker = absl::ConsumePrefix(&method, "/hoist.v1.Worker/");
    const auto level = worker && !IsOrdinary(code) ? spdlog::level::info
                                                   : spdlog::level::debug;
    if (!spdlog::should_log(level)) return;
    std::string who = "somebody";
    if (const auto peer = find_peer_(call_->server_context()->peer());
        peer.ok()) {
      who = absl::StrCat("pid ", peer->pid, " ", ToString(peer->uid));
    }
    const std::string line =
        absl::StrCat(who, ": ", OneLine(method),
                     " is refused: ", absl::StatusCodeToString(code), ": ",
                     OneLine(status.error_message()));
    if (level == spdlog::level::debug) {
      SPDLOG_DEBUG("{}", line);
    } else {
      SPDLOG_INFO("{}", line);
    }
  }

  const FindPeer find_peer_;
  grpcx::ServerRpcInfo* const call_;  // gRPC's; it outlives this.
};

class RefusalLogFactory final
    : public grpcx::ServerInterceptorFactoryInterface {
 public:
  explicit RefusalLogFactory(FindPeer find_peer)
      : find_peer_(std::move(find_peer)) {}

  grpcx::Interceptor* CreateServerInterceptor(
      grpcx::ServerRpcInfo* info) override {
    // gRPC owns it.
    return std::make_unique<LoggedCall>(find_peer_, info).release();
  }

 private:
  const FindPeer find_peer_;
};

}  // namespace

std::unique_ptr<grpcx::ServerInterceptorFactoryInterface> LogRefusals(
    FindPeer find_peer) {
  return std::make_unique<RefusalLogFactory>(std::move(find_peer));
}

}  // namespace hoistd
