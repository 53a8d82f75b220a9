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
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/base/status.h"
#include "daemon/session/peer_process.h"

namespace hoistd {
namespace {

constexpr uint64_t kStopEvent = 0;
constexpr uint64_t kListenEvent = 1;
// Numbers above the ones that hoistd itself uses, and few enough that the
// kernel's table of descriptors stays small.
constexpr int kFirstNumber = 1024;
constexpr int kLastNumber = 32768;

absl::Status AddToEpoll(int epoll, int fd, uint32_t events, uint64_t tag) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = tag;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    return ErrnoToStatus(errno, "watch gRPC's connections");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connections>> Connections::Create(
    ListeningSocket socket, std::optional<gid_t> admin_group, RpcLimits limits,
    std::optional<User> tenant) {
  std::unique_ptr<Connections> made(
      new Connections(std::move(socket), admin_group, limits, tenant));
  HOIST_RETURN_IF_ERROR(made->Prepare());
  return made;
}

Connections::Connections(ListeningSocket socket,
                         std::optional<gid_t> admin_group, RpcLimits limits,
                         std::optional<User> tenant)
    : socket_(std::move(socket)),
      admin_group_(admin_group),
      limits_(limits),
      tenant_(tenant) {}

absl::Status Connections::Prepare() {
  epoll_ = hoist::UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  stop_ = hoist::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !stop_.valid()) {
    return ErrnoToStatus(errno, "watch gRPC's connections");
  }
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  number_limit_ =
      static_cast<int>(std::min<rlim_t>(files.rlim_cur, kLastNumber));
  next_number_ = std::min(kFirstNumber, number_limit_ / 2);
  HOIST_RETURN_IF_ERROR(
      AddToEpoll(epoll_.get(), stop_.get(), EPOLLIN, kStopEvent));
  HOIST_RETURN_IF_ERROR(
      AddToEpoll(epoll_.get(), socket_.get(), EPOLLIN, kListenEvent));
  return absl::OkStatus();
}

void Connections::Start(HandOver hand_over) {
  hand_over_ = std::move(hand_over);
  thread_ = std::thread([this] { Run(); });
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
    epoll_event events[32];
    const int n = epoll_wait(epoll_.get(), events, 32, -1);
    for (int i = 0; i < n; ++i) {
      const uint64_t tag = events[i].data.u64;
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
    hoist::UniqueFd fd(
        accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      Take(std::move(fd));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EMFILE || errno == ENFILE) {
      // Level-triggered: without a pause this would spin until one is free.
      usleep(10'000);
    }
    return;
  }
}

bool Connections::HasRoom(const Peer& peer) const {
  absl::MutexLock lock(&mu_);
  // Several users together must not lock out who can put an end to it.
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
  if (!process.ok()) return;  // It is dead; so is the connection.
  process->peer.via = "grpc";
  if (!HasRoom(process->peer)) return;
  hoist::UniqueFd number = NextNumber(accepted.get());
  if (!number.valid()) return;
  const uint64_t serial = next_serial_++;
  const int watched = accepted.get();
  {
    absl::MutexLock lock(&mu_);
    Entry& entry = by_number_[number.get()];
    // gRPC closed the number's last connection, or the kernel would not have
    // given it again; only the news of it has not come through yet.
    number_of_.erase(entry.serial);
    entry = Entry{std::move(process->peer), std::move(accepted), serial};
    number_of_[serial] = number.get();
  }
  // Without EPOLLIN: the bytes are gRPC's. It shuts a connection down before
  // it closes its descriptor, so both ends' leaving is seen here.
  if (!AddToEpoll(epoll_.get(), watched, EPOLLRDHUP, serial).ok()) {
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
  int number = fcntl(fd, F_DUPFD_CLOEXEC, next_number_);
  if (number < 0 || number >= number_limit_) {
    if (number >= 0) close(number);
    next_number_ = std::min(kFirstNumber, number_limit_ / 2);
    number = fcntl(fd, F_DUPFD_CLOEXEC, next_number_);
  }
  if (number >= 0) next_number_ = number + 1;
  if (next_number_ >= number_limit_) {
    next_number_ = std::min(kFirstNumber, number_limit_ / 2);
  }
  return hoist::UniqueFd(number);
}

}  // namespace hoistd
