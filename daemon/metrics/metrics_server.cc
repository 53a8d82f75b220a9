#include "daemon/metrics/metrics_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <list>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/metrics/scrape_request.h"
#include "daemon/socket/peer_process.h"

namespace hoistd {
namespace {

constexpr uid_t kNoUid = static_cast<uid_t>(-1);
constexpr int kAcceptsATurn = 16;
constexpr absl::Duration kAcceptAgain = absl::Seconds(1);

void Signal(int eventfd) {
  const uint64_t one = 1;
  (void)!write(eventfd, &one, sizeof(one));
}

// Passes a snapshot from the engine's thread. Lives as long as either side
// needs it.
//
// Threads: thread-safe.
class Mailbox {
 public:
  explicit Mailbox(hoist::UniqueFd event) : event_(std::move(event)) {}

  void Put(absl::StatusOr<NodeMeasure> picture) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      const absl::MutexLock lock(&mu_);
      picture_ = std::move(picture);
    }
    Wake();
  }
  std::optional<absl::StatusOr<NodeMeasure>> Take() ABSL_LOCKS_EXCLUDED(mu_) {
    uint64_t count = 0;
    (void)!read(event_.get(), &count, sizeof(count));
    const absl::MutexLock lock(&mu_);
    return std::exchange(picture_, std::nullopt);
  }
  void Wake() { Signal(event_.get()); }
  int fd() const { return event_.get(); }

 private:
  const hoist::UniqueFd event_;
  absl::Mutex mu_;
  std::optional<absl::StatusOr<NodeMeasure>> picture_ ABSL_GUARDED_BY(mu_);
};

struct Connection {
  enum class State {
    kReading,  // Its head is still to come.
    kWaiting,  // For a snapshot.
    kWriting,
    kEnding,  // All is sent; an earlier close than the peer's could lose it.
  };

  hoist::UniqueFd fd;
  uid_t uid = kNoUid;
  bool may_read = true;
  absl::Time end;  // At the latest.
  State state = State::kReading;
  std::string in;
  ScrapeRequest request;
  absl::Time asked;
  std::string out;
  size_t sent = 0;
};

class Server final : public MetricsServer {
 public:
  Server(MetricsOptions options, const Clock& clock,
         std::shared_ptr<Mailbox> mailbox)
      : options_(std::move(options)),
        clock_(clock),
        mailbox_(std::move(mailbox)) {}
  ~Server() override {
    stopping_ = true;
    mailbox_->Wake();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Listen();
  absl::Status Start() {
    HOIST_ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
    return absl::OkStatus();
  }

 private:
  using State = Connection::State;
  using Connections = std::list<Connection>;

  absl::Status ListenOnTcp(const LoopbackAddress& at);
  void Run();
  void Accept(int listener, absl::Time now);
  void MakeRoom();
  // These return false to close the connection.
  bool Serve(Connection& connection, int16_t events, absl::Time now);
  bool Read(Connection& connection, absl::Time now);
  bool Write(Connection& connection);
  void Answer(Connection& connection, absl::string_view body);
  void Refuse(Connection& connection, int code, std::string why);
  std::string WhoMayRead(uid_t uid) const;
  void Ask(Connection& connection, absl::Time now);
  void TakePicture(absl::Time now);
  const std::string& TextOf(MetricsFormat format);
  void CloseLate(absl::Time now);
  int TimeoutOf(absl::Time now) const;

  const MetricsOptions options_;
  const Clock& clock_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::optional<ListeningSocket> socket_;
  hoist::UniqueFd tcp_;
  std::vector<int> listeners_;
  std::atomic<bool> stopping_ = false;

  // Used by the thread only.
  Connections connections_;                         // Oldest first.
  absl::Time accept_again_ = absl::InfinitePast();  // Not before this.
  bool asking_ = false;
  absl::Time pictured_ = absl::InfinitePast();
  std::optional<NodeMeasure> picture_;
  std::map<MetricsFormat, std::string> texts_;  // Of it.

  std::thread thread_;
};

absl::Status Server::Listen() {
  if (options_.socket.has_value()) {
    SocketFileOptions socket = *options_.socket;
    socket.type = SOCK_STREAM;
    HOIST_ASSIGN_OR_RETURN(ListeningSocket made,
                           ListeningSocket::Create(std::move(socket)));
    socket_.emplace(std::move(made));
    listeners_.push_back(socket_->get());
  }
  if (options_.listen.has_value()) {
    HOIST_RETURN_IF_ERROR(ListenOnTcp(*options_.listen));
    listeners_.push_back(tcp_.get());
  }
  return absl::OkStatus();
}

absl::Status Server::ListenOnTcp(const LoopbackAddress& at) {
  const int kind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  tcp_ = hoist::UniqueFd(socket(at.address.ss_family, kind, 0));
  if (!tcp_.valid()) {
    const absl::Status why = ErrnoToStatus(errno, "make a TCP socket");
    return absl::FailedPreconditionError(absl::StrCat(
        std::string(why.message()),
        "; under systemd AF_INET takes a drop-in, which hoist brings as "
        "metrics-loopback.conf"));
  }
  const int on = 1;
  setsockopt(tcp_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(tcp_.get(), reinterpret_cast<const sockaddr*>(&at.address),
           at.bytes) != 0 ||
      listen(tcp_.get(), SOMAXCONN) != 0) {
    const absl::Status why = ErrnoToStatus(errno, "listen on loopback");
    return absl::Status(why.code(), absl::StrCat(std::string(why.message()),
                                                 "; free that port, or choose "
                                                 "another one"));
  }
  return absl::OkStatus();
}

void Server::Run() {
  std::vector<pollfd> polled;
  while (!stopping_) {
    absl::Time now = clock_.Now();
    polled.clear();
    polled.push_back({mailbox_->fd(), POLLIN, 0});
    for (const int listener : listeners_) {
      const bool waits = accept_again_ > now;
      polled.push_back({listener, static_cast<int16_t>(waits ? 0 : POLLIN), 0});
    }
    for (const Connection& connection : connections_) {
      int16_t events = POLLIN;
      if (connection.state == State::kWaiting) events = 0;
      if (connection.state == State::kWriting) events = POLLOUT;
      polled.push_back({connection.fd.get(), events, 0});
    }
    if (poll(polled.data(), polled.size(), TimeoutOf(now)) < 0) continue;
    now = clock_.Now();
    TakePicture(now);
    size_t at = 1 + listeners_.size();
    for (auto it = connections_.begin(); it != connections_.end();) {
      const int16_t events = polled[at++].revents;
      it = Serve(*it, events, now) ? std::next(it) : connections_.erase(it);
    }
    CloseLate(now);
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if ((polled[1 + i].revents & POLLIN) != 0) Accept(listeners_[i], now);
    }
  }
}

int Server::TimeoutOf(absl::Time now) const {
  absl::Time next = absl::InfiniteFuture();
  if (accept_again_ > now) next = accept_again_;
  for (const Connection& connection : connections_) {
    next = std::min(next, connection.end);
    if (connection.state == State::kWaiting) {
      next = std::min(next, connection.asked + options_.limits.engine);
    }
  }
  if (next == absl::InfiniteFuture()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(next - now) + 1;
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

// Closes a connection of the user with the most. A user with a crowd of
// connections keeps others out only until their next attempt.
void Server::MakeRoom() {
  if (connections_.size() < options_.limits.connections) return;
  std::map<uid_t, size_t> count;
  for (const Connection& one : connections_) ++count[one.uid];
  const auto most = std::max_element(
      count.begin(), count.end(),
      [](const auto& a, const auto& b) { return a.second < b.second; });
  connections_.erase(
      std::find_if(connections_.begin(), connections_.end(),
                   [&](const Connection& c) { return c.uid == most->first; }));
}

void Server::Accept(int listener, absl::Time now) {
  for (int i = 0; i < kAcceptsATurn; ++i) {
    hoist::UniqueFd fd(
        accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      // Without this pause, accept would be retried in a loop.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
        accept_again_ = now + kAcceptAgain;
      }
      return;
    }
    MakeRoom();
    Connection& made = connections_.emplace_back();
    if (socket_.has_value() && listener == socket_->get()) {
      ucred peer = {};
      socklen_t bytes = sizeof(peer);
      if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0) {
        made.uid = peer.uid;
      }
      const absl::StatusOr<PeerProcess> process =
          PeerOf(fd.get(), options_.admin_group);
      made.may_read = process.ok() && process->peer.admin;
    }
    made.fd = std::move(fd);
    made.end = now + options_.limits.connection;
  }
}

bool Server::Serve(Connection& connection, int16_t events, absl::Time now) {
  if ((events & (POLLERR | POLLNVAL)) != 0) return false;
  switch (connection.state) {
    case State::kWaiting:
      return (events & POLLHUP) == 0;
    case State::kWriting:
      return events == 0 || Write(connection);
    case State::kReading:
    case State::kEnding:
      return events == 0 || Read(connection, now);
  }
  return false;
}

// Reads a little per call, so that an endless sender delays no other client.
bool Server::Read(Connection& connection, absl::Time now) {
  std::array<char, 4096> buffer;
  const ssize_t got =
      recv(connection.fd.get(), buffer.data(), buffer.size(), 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  if (connection.state == State::kEnding) return true;  // Too late.
  connection.in.append(buffer.data(), static_cast<size_t>(got));
  const size_t head = EndOfHead(connection.in);
  if (std::min(head, connection.in.size()) > options_.limits.head_bytes) {
    Refuse(connection, 431,
           absl::StrCat("a request's head has at most ",
                        options_.limits.head_bytes, " bytes"));
  } else if (head == std::string::npos) {
    return true;
  } else {
    connection.request =
        ParseScrape(absl::string_view(connection.in).substr(0, head));
    if (connection.request.code != 200) {
      Answer(connection, "");
    } else if (!connection.may_read) {
      Refuse(connection, 403, WhoMayRead(connection.uid));
    } else {
      Ask(connection, now);
    }
  }
  return connection.state != State::kWriting || Write(connection);
}

std::string Server::WhoMayRead(uid_t uid) const {
  const std::string& group = options_.admin_group_name;
  return absl::StrCat("metrics are for root, hoistd's own user",
                      group.empty() ? "" : " and the group ", group,
                      " of this node; you are uid ", uid);
}

void Server::Ask(Connection& connection, absl::Time now) {
  connection.in.clear();
  if (picture_.has_value() && now - pictured_ < options_.limits.fresh) {
    return Answer(connection, TextOf(connection.request.format));
  }
  connection.state = State::kWaiting;
  connection.asked = now;
  if (std::exchange(asking_, true)) return;
  options_.measure([mailbox = mailbox_](absl::StatusOr<NodeMeasure> picture) {
    mailbox->Put(std::move(picture));
  });
}

void Server::TakePicture(absl::Time now) {
  std::optional<absl::StatusOr<NodeMeasure>> came = mailbox_->Take();
  if (!came.has_value()) return;
  asking_ = false;
  texts_.clear();
  picture_.reset();
  if (came->ok()) {
    pictured_ = now;
    picture_ = **std::move(came);
  }
  for (Connection& connection : connections_) {
    if (connection.state != State::kWaiting) continue;
    if (picture_.has_value()) {
      Answer(connection, TextOf(connection.request.format));
    } else {
      Refuse(connection, 503, std::string(came->status().message()));
    }
  }
}

const std::string& Server::TextOf(MetricsFormat format) {
  std::string& text = texts_[format];
  if (text.empty()) text = options_.render(*picture_, format);
  return text;
}

void Server::Answer(Connection& connection, absl::string_view body) {
  connection.in.clear();
  connection.out = ScrapeResponse(connection.request, body);
  connection.state = State::kWriting;
}

void Server::Refuse(Connection& connection, int code, std::string why) {
  connection.request.code = code;
  connection.request.why = std::move(why);
  Answer(connection, "");
}

bool Server::Write(Connection& connection) {
  while (connection.sent < connection.out.size()) {
    const ssize_t sent =
        send(connection.fd.get(), connection.out.data() + connection.sent,
             connection.out.size() - connection.sent, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    connection.sent += static_cast<size_t>(sent);
  }
  connection.out = std::string();
  connection.state = State::kEnding;
  return shutdown(connection.fd.get(), SHUT_WR) == 0;
}

void Server::CloseLate(absl::Time now) {
  std::erase_if(connections_, [&](Connection& connection) {
    if (connection.state == State::kWaiting &&
        now >= connection.asked + options_.limits.engine) {
      Refuse(connection, 503,
             absl::StrCat("hoistd's engine has not answered for ",
                          absl::FormatDuration(options_.limits.engine),
                          "; if it stays so, systemd's watchdog ends it"));
    }
    return now >= connection.end;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Create(
    MetricsOptions options, const Clock& clock) {
  hoist::UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return ErrnoToStatus(errno, "make an eventfd");
  auto server = std::make_unique<Server>(
      std::move(options), clock, std::make_shared<Mailbox>(std::move(event)));
  HOIST_RETURN_IF_ERROR(server->Listen());
  HOIST_RETURN_IF_ERROR(server->Start());
  return server;
}

}  // namespace hoistd
