#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "client/ctl/calls.h"
#include "client/ctl/commands.h"
#include "client/ctl/text.h"
#include "hoist/shared/unique_fd.h"

namespace hoist::ctl {
namespace {

// Not OK: there is none, or nobody could be asked.
struct FoundSession {
  grpc::Status status;
  v1::SessionStatus session;
};

FoundSession FindSession(Connection& daemon, uint64_t id) {
  v1::ListSessionsResponse all;
  FoundSession found;
  found.status =
      Call(daemon, Lasts::kTimeout, &v1::Admin::Stub::ListSessions, {}, &all);
  if (!found.status.ok()) return found;
  for (const v1::SessionStatus& session : all.sessions()) {
    if (session.id() != id) continue;
    found.session = session;
    return found;
  }
  found.status =
      grpc::Status(grpc::StatusCode::NOT_FOUND,
                   "there is no session " + std::to_string(id) +
                       " that you may end; `hoistctl sessions` lists them");
  return found;
}

grpc::Status NotKilled(const v1::SessionStatus& session, int error) {
  return grpc::Status(
      error == EPERM ? grpc::StatusCode::PERMISSION_DENIED
                     : grpc::StatusCode::FAILED_PRECONDITION,
      "process " + std::to_string(session.pid()) + " of session " +
          std::to_string(session.id()) +
          " cannot be ended: " + std::strerror(error) +
          (error == EPERM ? "; run hoistctl as root, or as its user" : ""));
}

// By hoistctl itself, as the one who runs it may: hoistd's own user may end
// nobody else's process. Admins live where hoistd does, and so know processes
// by its numbers; of others the number could be somebody else's.
grpc::Status Kill(Connection& daemon, const v1::SessionStatus& session) {
  v1::NodeStatus for_admins;
  const grpc::Status admin =
      Call(daemon, Lasts::kTimeout, &v1::Admin::Stub::Status, {}, &for_admins);
  if (!admin.ok()) return admin;
  if (session.pid() == 0) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                        "the process of session " +
                            std::to_string(session.id()) +
                            " has no number here; end its container");
  }
  const UniqueFd process(
      static_cast<int>(syscall(SYS_pidfd_open, session.pid(), 0)));
  // It ended just now.
  if (!process.valid() && errno == ESRCH) return grpc::Status::OK;
  if (!process.valid()) return NotKilled(session, errno);
  // While the session is there its process lives: what was opened is that one,
  // and nobody who has got its number since.
  const FoundSession still = FindSession(daemon, session.id());
  if (still.status.error_code() == grpc::StatusCode::NOT_FOUND) {
    return grpc::Status::OK;
  }
  if (!still.status.ok()) return still.status;
  if (syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0) != 0 &&
      errno != ESRCH) {
    return NotKilled(session, errno);
  }
  return grpc::Status::OK;
}

// Of one that was killed, also where hoistd cannot tell it to end: until its
// end is seen, which is soon.
grpc::Status AwaitGone(Connection& daemon,
                       const v1::EndSessionRequest& request) {
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(request.deadline_ms());
  while (true) {
    const grpc::Status found = FindSession(daemon, request.session_id()).status;
    if (found.error_code() == grpc::StatusCode::NOT_FOUND) {
      return grpc::Status::OK;
    }
    if (!found.ok()) return found;
    if (std::chrono::steady_clock::now() >= end) {
      return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED,
                          "its process was ended, and its session is there "
                          "yet; `hoistctl sessions` shows when it is not");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

int End(Connection& daemon, const v1::EndSessionRequest& request, bool kills,
        const Output& output) {
  v1::EndSessionResponse ended;
  if (kills) {
    const FoundSession found = FindSession(daemon, request.session_id());
    if (!found.status.ok()) return daemon.Fail(found.status, output);
    const grpc::Status killed = Kill(daemon, found.session);
    if (!killed.ok()) return daemon.Fail(killed, output);
    *ended.mutable_session() = found.session;
  }
  v1::EndSessionResponse told;
  grpc::Status got =
      Call(daemon, Lasts::kWork, &v1::Admin::Stub::EndSession, request, &told);
  if (got.ok()) {
    ended = told;
  } else if (kills) {
    got = AwaitGone(daemon, request);
  }
  if (!got.ok()) return daemon.Fail(got, output);
  if (output.json) {
    PrintJson(ended, JsonStyle::kPretty, output);
    return kExitOk;
  }
  const v1::SessionStatus& session = ended.session();
  output.out << "ended session " << session.id() << " ("
             << Shown(session.client_name()) << ", process "
             << ProcessText(session.pid()) << "): " << session.leases()
             << " leases of " << HumanBytes(session.leased_bytes()) << " and "
             << session.plans() << " plans";
  if (session.arenas() > 0) {
    output.out << ", and " << session.arenas() << " arenas of "
               << HumanBytes(session.arena_bytes());
  }
  output.out << " are given back\n";
  return kExitOk;
}

}  // namespace hoist::ctl
