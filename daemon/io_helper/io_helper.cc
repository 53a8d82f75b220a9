#include "daemon/io_helper/io_helper.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/status.h"
#include "daemon/io_helper/helper_line.h"

namespace hoistd {
namespace {

constexpr char kAnswers = 'A';
constexpr char kIsIdle = 'I';

void SendOrEnd(int line, std::string_view body, std::span<const int> fds) {
  if (!hoist::SendPacket(line, body, fds).ok()) _exit(EXIT_FAILURE);
}

}  // namespace

void Tell(int line, const absl::Status& status, std::string_view body,
          std::span<const int> fds) {
  std::string text(1, kAnswers);
  Pack(static_cast<int32_t>(status.code()), text);
  if (status.ok()) {
    text.append(body);
  } else {
    text.append(status.message().data(), status.message().size());
  }
  SendOrEnd(line, text, fds);
}

hoist::Packet HearMore(int line) {
  hoist::Result<std::optional<hoist::Packet>> packet =
      hoist::ReceivePacket(line);
  if (!packet.ok() || !packet->has_value()) _exit(EXIT_SUCCESS);
  return *std::move(packet).value();
}

void SayIdle(int line) { SendOrEnd(line, std::string(1, kIsIdle), {}); }

bool IsIdle(const hoist::Packet& packet) {
  return packet.body.size() == 1 && packet.body[0] == kIsIdle;
}

absl::Status TakeAnswer(hoist::Packet& packet) {
  std::string_view rest = packet.body;
  char kind = 0;
  int32_t code = 0;
  if (!Unpack(rest, kind) || kind != kAnswers || !Unpack(rest, code)) {
    return absl::InternalError("a helper's answer is malformed");
  }
  packet.body.erase(0, packet.body.size() - rest.size());
  if (code == 0) return absl::OkStatus();
  return {static_cast<absl::StatusCode>(code), packet.body};
}

absl::StatusOr<hoist::Packet> IoHelper::Call(HelperCall call, std::string what,
                                             std::string_view body,
                                             std::span<const int> fds) {
  if (lost_ || !Rest()) return why_;
  what_ = std::move(what);
  std::string request;
  Pack(call, request);
  request.append(body);
  busy_ = true;
  const hoist::Status sent =
      hoist::SendPacket(process_.line.get(), request, fds);
  if (!sent.ok()) return Lose(Annotate(ToAbsl(sent), what_));
  return Next();
}

absl::StatusOr<hoist::Packet> IoHelper::Next() {
  HOIST_ASSIGN_OR_RETURN(hoist::Packet packet, Wait());
  // An Idle answer here is a bug of ours: the call has no further answer.
  if (IsIdle(packet)) return Lose(absl::InternalError("no more answers"));
  if (absl::Status s = TakeAnswer(packet); !s.ok()) return s;
  return packet;
}

absl::Status IoHelper::Say(std::string_view body) {
  if (lost_) return why_;
  const hoist::Status sent = hoist::SendPacket(process_.line.get(), body, {});
  return sent.ok() ? absl::OkStatus() : Lose(Annotate(ToAbsl(sent), what_));
}

absl::StatusOr<std::span<const std::byte>> IoHelper::Bounce() {
  if (bounce_.size() > 0) return bounce_.span();
  HOIST_ASSIGN_OR_RETURN(
      bounce_fd_, ToAbsl(hoist::CreateMemfd("hoist-io-helper", kBounceBytes)));
  HOIST_ASSIGN_OR_RETURN(
      bounce_, ToAbsl(hoist::Mapping::OfFd(bounce_fd_.get(), kBounceBytes,
                                           hoist::Mapping::Access::kRead)));
  return bounce_.span();
}

bool IoHelper::Rest() {
  // Skips answers of an abandoned call.
  while (busy_ && !lost_) {
    absl::StatusOr<hoist::Packet> packet = Wait();
    if (packet.ok() && IsIdle(*packet)) busy_ = false;
  }
  return !lost_;
}

absl::StatusOr<hoist::Packet> IoHelper::Wait() {
  if (lost_) return why_;
  const MonotonicClock clock;
  const absl::Time until = clock.Now() + deadline_;
  while (true) {
    pollfd waits[2] = {{process_.line.get(), POLLIN, 0}, {stop_fd_, POLLIN, 0}};
    const int64_t ms = absl::ToInt64Milliseconds(until - clock.Now()) + 1;
    const int ready =
        poll(waits, 2, static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000)));
    if (ready < 0 && errno != EINTR) {
      return Lose(ErrnoToStatus(errno, "wait for an I/O helper"));
    }
    if (ready > 0 && waits[0].revents != 0) break;
    if (ready > 0) return Lose(absl::UnavailableError("hoistd is stopping"));
    if (clock.Now() < until) continue;
    return Lose(absl::DeadlineExceededError(absl::StrCat(
        what_, ": the file system has not answered for ",
        absl::FormatDuration(deadline_),
        " (disk.read_deadline); repair or unmount it, then register the model "
        "again")));
  }
  hoist::Result<std::optional<hoist::Packet>> packet =
      hoist::ReceivePacket(process_.line.get());
  if (packet.ok() && packet->has_value()) return *std::move(packet).value();
  if (packet.status().code() == hoist::Code::kResourceExhausted) {
    return Lose(Annotate(ToAbsl(packet.status()), what_));
  }
  return Lose(absl::UnavailableError(
      absl::StrCat(what_, ": the process that did it died; try again")));
}

absl::Status IoHelper::Lose(absl::Status why) {
  lost_ = true;
  why_ = why;
  return why;
}

HelperProcess IoHelper::Kill() {
  if (process_.pidfd.valid()) {
    syscall(SYS_pidfd_send_signal, process_.pidfd.get(), SIGKILL, nullptr, 0);
  }
  // Without a pidfd it ends by itself when its line closes.
  shutdown(process_.line.get(), SHUT_WR);
  return std::move(process_);
}

}  // namespace hoistd
