#include "tests/fault/deaths/ledger.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace hoistd::testing {
namespace {

template <typename Response, typename Request, typename Method>
Response Ask(hoist::v1::Admin::Stub& admin, Method method,
             const Request& request) {
  grpc::ClientContext context;
  Response response;
  static_cast<void>((admin.*method)(&context, request, &response));
  return response;
}

}  // namespace

Ledger::Ledger(const std::string& grpc_socket, pid_t hoistd)
    : hoistd_(hoistd),
      admin_(hoist::v1::Admin::NewStub(grpc::CreateChannel(
          "unix:" + grpc_socket, grpc::InsecureChannelCredentials()))) {}

std::string Ledger::Read() {
  namespace v1 = hoist::v1;
  const auto status = Ask<v1::NodeStatus>(*admin_, &v1::Admin::Stub::Status,
                                          v1::StatusRequest());
  const auto sessions = Ask<v1::ListSessionsResponse>(
      *admin_, &v1::Admin::Stub::ListSessions, v1::ListSessionsRequest());
  std::ostringstream text;
  text << "sessions " << status.sessions() << ", leases " << status.leases()
       << ", models " << status.models() << '\n';
  for (const v1::SessionStatus& session : sessions.sessions()) {
    text << session.client_name() << ": " << session.leases() << " leases, "
         << session.plans() << " plans, " << session.waiting() << " waiting\n";
  }
  for (const v1::TierStatus& tier : status.tiers()) {
    text << v1::Tier_Name(tier.tier()) << ": " << tier.used_bytes() << " used, "
         << tier.leased_bytes() << " leased, " << tier.pinned_bytes()
         << " pinned\n";
    for (const v1::Holder& holder : tier.holders()) {
      text << "  " << holder.name() << " " << holder.bytes() << '\n';
    }
  }
  text << Descriptors();
  return text.str();
}

// Slabs stay for whoever stages next, and so do I/O helpers;
// sockets come and go with calls.
std::string Ledger::Descriptors() const {
  std::map<std::string, int> found;
  const std::string folder = "/proc/" + std::to_string(hoistd_) + "/fd";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string target =
        std::filesystem::read_symlink(entry.path(), error).string();
    const bool counts = target.find("pidfd") != std::string::npos
                            ? IsOfWorker(entry.path().filename())
                            : target.find("eventfd") != std::string::npos ||
                                  (target.find("memfd") != std::string::npos &&
                                   target.find("slab") == std::string::npos);
    if (counts) ++found[target];
  }
  std::ostringstream text;
  for (const auto& [what, count] : found) text << what << ' ' << count << '\n';
  return text.str();
}

// Alive or dead.
bool Ledger::IsOfWorker(const std::string& pidfd) const {
  std::ifstream info("/proc/" + std::to_string(hoistd_) + "/fdinfo/" + pidfd);
  std::string pid;
  for (std::string word; info >> word;) {
    if (word == "Pid:") info >> pid;
  }
  std::ifstream name("/proc/" + pid + "/comm");
  std::string comm;
  name >> comm;
  return comm != "hoistd" && comm.find("helper") == std::string::npos;
}

void Ledger::Forget(const std::string& model) {
  hoist::v1::EvictRequest request;
  request.mutable_copies()->set_model(model);
  request.set_forget(true);
  static_cast<void>(Ask<hoist::v1::EvictResponse>(
      *admin_, &hoist::v1::Admin::Stub::Evict, request));
}

std::vector<uint32_t> Ledger::Pids() {
  std::vector<uint32_t> pids;
  const auto sessions = Ask<hoist::v1::ListSessionsResponse>(
      *admin_, &hoist::v1::Admin::Stub::ListSessions,
      hoist::v1::ListSessionsRequest());
  for (const auto& session : sessions.sessions()) {
    pids.push_back(session.pid());
  }
  return pids;
}

}  // namespace hoistd::testing
