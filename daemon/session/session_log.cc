#include "daemon/session/session_log.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/one_line.h"
#include "hoist/v1/session.pb.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

bool IsOrdinary(const absl::Status& why) {
  return absl::IsNotFound(why) || absl::IsCancelled(why) ||
         absl::IsAlreadyExists(why);
}

std::string Who(const Connection& connection) {
  if (connection.phase() != Connection::Phase::kOpen) {
    return Describe(connection);
  }
  return absl::StrCat("session ", connection.session().number(), " of ",
                      Describe(connection));
}

}  // namespace

std::string Describe(const Connection& connection) {
  const int32_t pid = connection.peer().pid;
  return absl::StrCat(
      pid > 0 ? absl::StrCat("pid ", pid)
              : "a process outside of hoistd's pid namespace (pid 0)",
      " ", ToString(connection.peer().uid));
}

void LogRequest(const Connection& connection, const Ticket& ticket,
                const hoist::v1::ClientMessage& message) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  const auto* verb = hoist::v1::ClientMessage::descriptor()->FindFieldByNumber(
      message.body_case());
  SPDLOG_DEBUG("{}: request {}: {}, {} descriptors", Who(connection),
               ticket.request_id, verb == nullptr ? "no verb" : verb->name(),
               ticket.fds);
}

void LogRefusal(const Connection& connection, uint64_t request,
                const absl::Status& why) {
  const auto level =
      IsOrdinary(why) ? spdlog::level::debug : spdlog::level::info;
  if (!spdlog::should_log(level)) return;
  const std::string line =
      absl::StrCat(Who(connection), ": request ", request,
                   " is refused: ", absl::StatusCodeToString(why.code()), ": ",
                   OneLine(why.message()));
  if (level == spdlog::level::debug) {
    SPDLOG_DEBUG("{}", line);
  } else {
    SPDLOG_INFO("{}", line);
  }
}

}  // namespace hoistd
