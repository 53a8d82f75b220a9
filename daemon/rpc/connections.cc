#include "daemon/rpc/connections.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/socket/peer_process.h"

namespace hoistd {
namespace {

constexpr uint64_t kStopEvent = 0;
constexpr uint64_t kListenEvent = 1;
// Above the numbers that hoistd itself uses, and within the initial size of the
// kernel's descriptor table (main.cc).
constexpr int kFirstNumber = 1024;
constexpr int kLastNumber = 32768;

constexpr size_t kGoAwayHead = 8;
constexpr absl::string_view kOutOfFds =
    "RESOURCE_EXHAUSTED: hoistd is out of file descriptors; close sessions or "
    "connections, or raise its RLIMIT_NOFILE (systemd: LimitNOFILE)";

// Refuses a connection that gRPC never sees, with HTTP/2's GOAWAY and "enhance
// your calm". No SETTINGS frame precedes it, so gRPC clients treat the
// connection as failed and retry. hoistctl reads the frame.
void Refuse(int socket, absl::string_view why) {
  // One byte must hold the frame's length.
  const absl::string_view text = why.substr(0, 255 - kGoAwayHead);
  std::string frame(2, '\0');
  frame.push_back(static_cast<char>(kGoAwayHead + text.size()));
  frame.append("\7\0\0\0\0\0", 6);
  frame.append("\0\0\0\0\0\0\0\x0b", kGoAwayHead);
  frame.append(text.data(), text.size());
  // Best effort: the peer may be gone, or may not read.
  static_cast<void>(
      send(socket, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connections>> Connections::Create(
    ListeningSocket socket, std::optional<gid_t> admin_group, RpcLimits limits,
    std::optional<User> tenant) {
  HOIST_ASSIGN_OR_RETURN(Acceptor acceptor,
                         Acceptor::Create(std::move(socket)));
  HOIST_ASSIGN_OR_RETURN(Poller poller, Poller::Create());
  std::unique_ptr<Connections> made(new Connections(
      std::move(acceptor), std::move(poller), admin_group, limits, tenant));
  HOIST_RETURN_IF_ERROR(made->Prepare());
  return made;
}

Connections::Connections(Acceptor acceptor, Poller poller,
                         std::optional<gid_t> admin_group, RpcLimits limits,
                         std::optional<User> tenant)
    : acceptor_(std::move(acceptor)),
      poller_(std::move(poller)),
      admin_group_(admin_group),
      limits_(limits),
      tenant_(tenant) {}

absl::Status Connections::Prepare() {
  stop_ = hoist::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_.valid()) return ErrnoToStatus(errno, "watch gRPC's connections");
  HOIST_RETURN_IF_ERROR(poller_.Add(stop_.get(), EPOLLIN, kStopEvent));
  return poller_.Add(acceptor_.fd(), EPOLLIN, kListenEvent);
}

absl::Status Connections::Start(HandOver hand_over) {
  hand_over_ = std::move(hand_over);
  HOIST_ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
  return absl::OkStatus();
}

Connections::~Connections() { Stop(); }

void Connections::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  // Cannot fail: the counter is far from full, and the thread only reads it.
  static_cast<void>(!write(stop_.get(), &one, sizeof(one)));
  thread_.join();
}

absl::StatusOr<Peer> Connections::Find(absl::string_view grpc_peer) const {
  int number = -1;
  if (absl::ConsumePrefix(&grpc_peer, "fd:") &&
      absl::SimpleAtoi(grpc_peer, &number)) {
    absl::MutexLock lock(&mu_);
    const auto it = by_number_.find(number);
    if (it != by_number_.end()) return it->second.peer;
  }
  return absl::UnavailableError("the connection has ended");
}

size_t Connections::count() const {
  absl::MutexLock lock(&mu_);
  return number_of_.size();
}

void Connections::Run() {
  while (true) {
    for (const epoll_event& event : poller_.Wait(/*timeout_ms=*/-1)) {
      const uint64_t tag = event.data.u64;
      if (tag == kStopEvent) return;
      if (tag == kListenEvent) {
        AcceptAll();
      } else {
        Forget(tag);
      }
    }
  }
}

void Connections::AcceptAll() {
  while (true) {
    auto [outcome, fd] = acceptor_.Accept();
    switch (outcome) {
      case Acceptor::Outcome::kAccepted:
        Take(std::move(fd));
        break;
      case Acceptor::Outcome::kNoRoom:
        Refuse(fd.get(), kOutOfFds);
        fd.reset();
        acceptor_.Restock();
        break;
      case Acceptor::Outcome::kNothing:
        return;
      case Acceptor::Outcome::kExhausted:
        acceptor_.Restock();
        // Level-triggered: without a pause this would spin until one is free.
        usleep(10'000);
        return;
    }
  }
}

bool Connections::HasRoom(const Peer& peer) const {
  absl::MutexLock lock(&mu_);
  // Several users together must not lock out the admin who can stop them.
  const size_t kept = peer.admin ? 0 : limits_.all / 8;
  if (number_of_.size() + kept >= limits_.all) return false;
  size_t of_uid = 0;
  for (const auto& [number, entry] : by_number_) {
    if (entry.peer.uid == peer.uid) ++of_uid;
  }
  return of_uid < limits_.one_uid;
}

void Connections::Take(hoist::UniqueFd accepted) {
  absl::StatusOr<PeerProcess> process =
      PeerOf(accepted.get(), admin_group_, tenant_);
  if (absl::IsResourceExhausted(process.status())) {
    return Refuse(accepted.get(), kOutOfFds);
  }
  if (!process.ok()) return;  // The peer is dead, and so is the connection.
  process->peer.via = "grpc";
  if (!HasRoom(process->peer)) return;
  hoist::UniqueFd number = NextNumber(accepted.get());
  if (!number.valid()) return Refuse(accepted.get(), kOutOfFds);
  const uint64_t serial = next_serial_++;
  const int watched = accepted.get();
  {
    absl::MutexLock lock(&mu_);
    Entry& entry = by_number_[number.get()];
    // The kernel reused the number, so gRPC has closed its last connection. The
    // event of that close has not arrived yet.
    number_of_.erase(entry.serial);
    entry = Entry{std::move(process->peer), std::move(accepted), serial};
    number_of_[serial] = number.get();
  }
  // Without EPOLLIN: gRPC reads the bytes. It shuts a connection down before it
  // closes its descriptor, so EPOLLRDHUP reports a close by either end.
  if (!poller_.Add(watched, EPOLLRDHUP, serial).ok()) {
    Forget(serial);
    return;
  }
  hand_over_(number.release());
}

void Connections::Forget(uint64_t serial) {
  hoist::UniqueFd watch;  // Closed outside the lock.
  absl::MutexLock lock(&mu_);
  const auto it = number_of_.find(serial);
  if (it == number_of_.end()) return;
  const auto entry = by_number_.find(it->second);
  if (entry != by_number_.end() && entry->second.serial == serial) {
    watch = std::move(entry->second.watch);
    by_number_.erase(entry);
  }
  number_of_.erase(it);
}

hoist::UniqueFd Connections::NextNumber(int fd) {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);  // It may have changed since the start.
  const int limit =
      static_cast<int>(std::min<rlim_t>(files.rlim_cur, kLastNumber));
  const int first = std::min(kFirstNumber, limit / 2);
  if (next_number_ < first || next_number_ >= limit) next_number_ = first;
  int number = fcntl(fd, F_DUPFD_CLOEXEC, next_number_);
  if (number < 0 || number >= limit) {
    if (number >= 0) close(number);
    number = fcntl(fd, F_DUPFD_CLOEXEC, first);
  }
  if (number >= 0) next_number_ = number + 1;
  return hoist::UniqueFd(number);
}

}  // namespace hoistd
