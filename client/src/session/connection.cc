#include "client/src/session/connection.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <new>
#include <utility>
#include <vector>

#include "client/src/base/patience.h"
#include "client/src/base/start_thread.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/socket_path.h"
#include "hoist/shared/wire.h"

namespace hoist {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A sender that waits for room checks this often whether to stop.
constexpr milliseconds kLookEvery{100};

// Time between attempts to connect.
constexpr milliseconds kRetryEvery{20};
// Time for the reader to see an end that the socket already shows.
constexpr milliseconds kReaderLag{1000};

// An empty release: hoistd only answers it.
const Hoist__V1__ReleaseRequest kPing = HOIST__V1__RELEASE_REQUEST__INIT;

Status Gone() {
  return Status(Code::kUnavailable,
                "hoistd has ended this session (stopped, crashed, or replaced "
                "by one that does not go on with it); its leases and plans are "
                "void: connect again, and stage again");
}

timeval ToTimeval(milliseconds time) {
  timeval out = {};
  out.tv_sec = static_cast<time_t>(time.count() / 1000);
  out.tv_usec = static_cast<suseconds_t>(time.count() % 1000 * 1000);
  return out;
}

bool HungUp(int socket) {
  pollfd looked = {socket, 0, 0};  // POLLHUP needs no request.
  return poll(&looked, 1, 0) > 0 && (looked.revents & POLLHUP) != 0;
}

bool NobodyListens(int error) {
  return error == ENOENT || error == ECONNREFUSED || error == EAGAIN;
}

// A failed attempt to connect.
struct Refusal {
  std::string path;
  int error = 0;  // errno
};

// One attempt. Returns the socket, or sets errno in `*error`.
Result<UniqueFd> TryToConnect(const std::string& path, timeval timeout,
                              int* error) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Status(Code::kInvalidArgument,
                  "socket path " + path + " is longer than the " +
                      std::to_string(sizeof(address.sun_path) - 1) +
                      " bytes that a unix socket may have");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  int got = 0;
  do {
    got = connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
                  sizeof(address));
  } while (got != 0 && errno == EINTR);
  *error = got == 0 ? 0 : errno;
  return socket;
}

std::string InMs(std::chrono::steady_clock::duration time) {
  return std::to_string(std::chrono::round<milliseconds>(time).count()) + " ms";
}

// For a while, and no longer than `left`.
void AwaitRoom(int socket, std::chrono::steady_clock::duration left) {
  pollfd room = {socket, POLLOUT, 0};
  const auto longest =
      std::min(std::chrono::ceil<milliseconds>(left), kLookEvery);
  poll(&room, 1, static_cast<int>(longest.count()));
}

// The group that may open the socket, if visible: the owner of the socket, or
// of its closed directory. In a container its name means nothing.
std::string GroupOf(const std::string& path) {
  struct stat seen = {};
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  if (stat(path.c_str(), &seen) != 0 && stat(folder.c_str(), &seen) != 0) {
    return "hoist";
  }
  return "hoist; here gid " + std::to_string(seen.st_gid);
}

// Says why no hoistd was reached at any of these paths.
Status Unreached(const std::vector<Refusal>& refusals) {
  bool nobody_listens = false;
  std::string tried;
  for (const Refusal& refusal : refusals) {
    nobody_listens = nobody_listens || NobodyListens(refusal.error);
    tried += (tried.empty() ? "" : ", ") + refusal.path + " (" +
             std::strerror(refusal.error) + ")";
  }
  if (nobody_listens) {
    return Status(Code::kUnavailable,
                  "no hoistd listens at " + tried +
                      "; start one (hoistd --user, or the node's: systemctl "
                      "start hoistd), or set HOIST_SOCKET to its socket");
  }
  if (refusals.front().error == EACCES) {
    return Status(Code::kPermissionDenied,
                  "connect to " + tried +
                      "; your user must be in the socket's group (" +
                      GroupOf(refusals.front().path) +
                      "), or start a hoistd of your own (hoistd --user)");
  }
  return ErrnoStatus(refusals.front().error,
                     "connect to " + refusals.front().path);
}

}  // namespace

Result<UniqueFd> ConnectSocket(const std::string& path, milliseconds deadline,
                               milliseconds connect_timeout) {
  const timeval timeout = ToTimeval(connect_timeout);
  const Clock::time_point end = Clock::now() + deadline;
  while (true) {
    const std::vector<std::string> paths =
        path.empty() ? SessionSocketsToTry() : std::vector<std::string>{path};
    std::vector<Refusal> refusals;
    // With default paths, the right socket may not exist yet.
    bool may_come = path.empty();
    for (const std::string& candidate : paths) {
      int error = 0;
      Result<UniqueFd> socket = TryToConnect(candidate, timeout, &error);
      if (!socket.ok() || error == 0) return socket;
      may_come = may_come || NobodyListens(error);
      refusals.push_back({candidate, error});
    }
    const milliseconds left =
        std::chrono::duration_cast<milliseconds>(end - Clock::now());
    if (!may_come || left.count() <= 0) return Unreached(refusals);
    poll(nullptr, 0, static_cast<int>(std::min(left, kRetryEvery).count()));
  }
}

Connection::Connection(UniqueFd socket, Handler* handler)
    : socket_(std::move(socket)),
      fork_closed_(socket_.get()),
      handler_(handler) {
  const MutexLock lock(mu_);  // The thread may fail it at once.
  failed_ = StartThread(&reader_, [this] { Read(); });
}

Connection::~Connection() { Close(); }

Status Connection::Check() const {
  const MutexLock lock(mu_);
  if (!failed_.ok() || !HungUp(socket_.get())) return failed_;
  // hoistd is gone. The reader is about to see that, and perhaps the reason.
  const Clock::time_point end = Clock::now() + kReaderLag;
  while (failed_.ok() && ended_.WaitUntil(mu_, end)) {
  }
  return failed_.ok() ? Gone() : failed_;
}

void Connection::Close() {
  std::call_once(closed_, [this] {
    void_ = true;
    Fail(Status(Code::kFailedPrecondition,
                "the session is closed; connect again"));
    HangUp();
    if (reader_.joinable()) reader_.join();
  });
}

Result<uint64_t> Connection::Expect(bool abandoned) {
  const MutexLock lock(mu_);
  if (!failed_.ok()) return failed_;
  const uint64_t request_id = next_request_id_++;
  pending_[request_id].abandoned = abandoned;
  return request_id;
}

Result<Reply> Connection::Call(const Request& request, std::span<const int> fds,
                               const CallTime& time,
                               const std::atomic<bool>* cancelled) {
  return CallWithin(request, fds, Limits::Of(time, cancelled));
}

Result<Reply> Connection::CallOnce(const Request& request,
                                   std::span<const int> fds,
                                   const CallTime& time) {
  return CallWithin(request, fds, Limits::Of(time, nullptr, /*once=*/true));
}

Result<Reply> Connection::CallWithin(const Request& request,
                                     std::span<const int> fds,
                                     const Limits& limits) {
  Result<Asked> asked = Ask(request, fds, limits);
  if (!asked.ok()) return asked.status();
  return Take(*asked, limits);
}

void Connection::CallMany(
    std::span<const Hoist__V1__StageRequest> requests, const CallTime& time,
    const std::atomic<bool>* cancelled,
    const std::function<bool(size_t i, Result<Reply>)>& each) {
  // Below hoistd's limit of requests in flight per session.
  constexpr size_t kAtOnce = 64;
  struct Sent {
    Limits limits;
    Result<Asked> asked = Status();
  };
  std::deque<Sent> sent;
  const size_t count = requests.size();
  bool wanted = true;
  size_t next = 0;
  for (size_t i = 0; i < count && (wanted || i < next); ++i) {
    while (wanted && next < count && next < i + kAtOnce) {
      Sent& one = sent.emplace_back();
      one.limits = Limits::Of(time, cancelled);
      one.asked = Ask(requests[next].base, {}, one.limits);
      ++next;
    }
    Sent& one = sent.front();
    // Its caller has stopped: the deadline is now.
    if (!wanted) one.limits.end = Clock::now();
    Result<Reply> reply = Status();
    if (one.asked.ok()) {
      reply = Take(*one.asked, one.limits);
      if (!wanted && reply.ok()) handler_->GiveBack(*reply);
    } else {
      reply = one.asked.status();
    }
    sent.pop_front();
    if (wanted) wanted = each(i, std::move(reply));
  }
}

Result<Connection::Asked> Connection::Ask(const Request& request,
                                          std::span<const int> fds,
                                          const Limits& limits) {
  const Result<uint64_t> request_id = Expect(/*abandoned=*/false);
  if (!request_id.ok()) return request_id.status();
  bool full = false;
  const Status sent = Send(Pack(request_id.value(), request), fds, limits,
                           &full, [&](bool done) {
                             if (!done) return true;
                             const MutexLock lock(mu_);
                             Pending& asked = pending_.at(request_id.value());
                             asked.request = &request;
                             asked.fds = fds;
                             asked.once = limits.once;
                             return true;
                           });
  Pending* pending = nullptr;
  {
    const MutexLock lock(mu_);
    pending = &pending_.at(request_id.value());
    if (!sent.ok() && !pending->reply.has_value()) {
      pending_.erase(request_id.value());
      if (full) {
        return Status(Code::kDeadlineExceeded, "hoistd takes no more requests");
      }
      if (sent.code() == Code::kResourceExhausted) return sent;
      pending = nullptr;
    }
  }
  // hoistd may have sent a reason that the reader is about to see.
  if (pending == nullptr) {
    Status why = Check();
    return why.ok() ? Gone() : why;
  }
  return Asked{request_id.value(), pending};
}

Result<Reply> Connection::Take(const Asked& asked, const Limits& limits) {
  Pending* const pending = asked.pending;
  const Status awaited = Await(pending, limits);
  const MutexLock lock(mu_);
  if (!pending->reply.has_value()) {
    pending->abandoned = true;
    pending->request = nullptr;
    return awaited;
  }
  Result<Reply> reply = *std::move(pending->reply);
  pending_.erase(asked.request_id);
  if (!reply.ok() || reply->status.ok()) return reply;
  return reply->status;
}

Status Connection::Send(std::string_view body, std::span<const int> fds,
                        const Limits& limits, bool* full,
                        const std::function<bool(bool done)>& in_turn) {
  if (body.size() > kMaxRequestBody) {
    return Status(Code::kResourceExhausted,
                  "the request has " + std::to_string(body.size()) +
                      " bytes, and hoistd takes " +
                      std::to_string(kMaxRequestBody) +
                      " at most: say it in fewer groups, tensors or parts (of "
                      "parts, runs of one size are one)");
  }
  const Clock::time_point end =
      std::min(limits.end, limits.SilentUntil(Clock::now()));
  while (true) {
    Status tried;
    {
      const MutexLock sending(send_mu_);
      if (!in_turn(false)) return Status();
      tried = SendPacket(socket_.get(), body, fds, full, Sending::kNow);
      if (tried.ok()) in_turn(true);
    }
    if (tried.ok() || !*full) return tried;
    const Clock::duration left = end - Clock::now();
    if (left <= Clock::duration::zero() || limits.cancelled_now()) return tried;
    AwaitRoom(socket_.get(), left);
    const MutexLock lock(mu_);
    if (!failed_.ok()) return failed_;
  }
}

Status Connection::Await(Pending* pending, const Limits& limits) {
  const Clock::time_point begin = Clock::now();
  const bool patient = limits.SilentUntil(begin) == Clock::time_point::max();
  const Clock::duration ping_every =
      (limits.patience.count() > 0 ? limits.patience : kGiveBackPatience) / 4;
  Clock::time_point next_ping = begin + ping_every;
  const MutexLock lock(mu_);
  while (!pending->reply.has_value()) {
    const Clock::time_point now = Clock::now();
    if (limits.cancelled_now()) {
      return Status(Code::kCancelled, "nobody waits for it any more");
    }
    const Clock::time_point since = std::max(begin, heard_);
    const Clock::time_point silent_at = limits.SilentUntil(since);
    if (now >= silent_at) {
      silent_ = true;
      NoteSilence();
      return Status(Code::kDeadlineExceeded,
                    "hoistd gives no sign of life for " + InMs(now - since) +
                        "; it is stopped, or hangs");
    }
    if (now >= limits.end) {
      return Status(Code::kDeadlineExceeded,
                    "hoistd did not answer within " + InMs(now - begin));
    }
    if (!patient && now >= next_ping) {
      next_ping = now + ping_every;
      const MutexUnlock unlock(mu_);
      bool full = false;  // Then no ping is needed.
      (void)SendAbandoned(kPing.base, {now}, &full);
      continue;
    }
    pending->arrived.WaitUntil(
        mu_,
        patient ? limits.end : std::min({limits.end, next_ping, silent_at}));
  }
  return Status();
}

Status Connection::CallToGiveBack(const Request& request,
                                  milliseconds deadline) {
  if (silent_) {
    Post(request);
    return Check();
  }
  const Status given =
      CallWithin(request, {}, {Clock::now() + deadline, GiveBackPatience()})
          .status();
  if (given.code() == Code::kDeadlineExceeded && silent_) return Check();
  return given;
}

Status Connection::Ping(milliseconds deadline,
                        const std::atomic<bool>* cancelled) {
  Status heard =
      CallWithin(kPing.base, {},
                 {Clock::now() + deadline, milliseconds(0), cancelled})
          .status();
  if (heard.code() == Code::kDeadlineExceeded) {
    silent_ = true;
    NoteSilence();
  }
  return heard;
}

void Connection::WakeCalls() {
  const MutexLock lock(mu_);
  for (auto& [id, pending] : pending_) pending.arrived.NotifyAll();
}

Status Connection::SendAbandoned(const Request& request, const Limits& limits,
                                 bool* full, const Still& still) {
  const Result<uint64_t> request_id = Expect(/*abandoned=*/true);
  if (!request_id.ok()) return request_id.status();
  return Send(Pack(request_id.value(), request), {}, limits, full,
              [&](bool done) {
                if (done) return true;
                const bool sends = !still || still();
                const MutexLock lock(mu_);
                // Resume may have dropped it since.
                pending_[request_id.value()].abandoned = true;
                if (!sends) pending_.erase(request_id.value());
                return sends;
              });
}

void Connection::Post(const Request& request, const Still& still) {
  bool full = false;
  const milliseconds patience = silent_ ? milliseconds(0) : kGiveBackPatience;
  const Status sent =
      SendAbandoned(request, {Clock::now() + patience}, &full, still);
  // Failed: hoistd is gone, and with it the holdings that this releases.
  if (sent.ok() || !full) return;
  Fail(Status(Code::kUnavailable,
              "hoistd reads nothing (it is stopped, or hangs), and no more "
              "messages fit; the session has ended, and gives back what it had "
              "when that is not in use any more; connect again"));
}

void Connection::Read() {
  pthread_setname_np(pthread_self(), "hoist-session");
  try {
    ReadUntilEnd();
  } catch (const std::bad_alloc&) {
    Fail(Status(Code::kResourceExhausted,
                "out of memory while reading a reply; connect again"));
  }
}

void Connection::ReadUntilEnd() {
  Status read;
  while (read.ok()) read = ReadOne();
  Fail(std::move(read));
}

Status Connection::ReadOne() {
  Result<std::optional<Packet>> packet = ReceivePacket(socket_.get());
  if (!packet.ok()) {
    // A malformed packet has an error code of its own; any other error is the
    // socket's end.
    switch (packet.status().code()) {
      case Code::kInvalidArgument:
        return Status(Code::kInternal, "hoistd sent a malformed reply: " +
                                           packet.status().message());
      case Code::kFailedPrecondition:
      case Code::kResourceExhausted:
        return packet.status();
      default:
        return Gone();
    }
  }
  if (!packet->has_value()) return Gone();
  Result<Reply> reply = DecodeReply(*std::move(*packet));
  if (!reply.ok()) return reply.status();
  return Deliver(std::move(reply).value());
}

bool Connection::ended_unheard() const {
  const MutexLock lock(mu_);
  return !failed_.ok() && !answered_.load();
}

Status Connection::Deliver(Reply reply) {
  answered_.store(true);
  // Messages with request id 0 have no caller: the reason for the session's
  // end, or hoistd's own request.
  if (reply.request_id == 0 && !reply.status.ok()) {
    void_ = true;
    return reply.status;
  }
  if (const auto* ask = std::get_if<DaemonAsk>(&reply.body)) {
    handler_->OnAsk(*ask);
    return Status();
  }
  if (const auto* resumed = std::get_if<Resumed>(&reply.body)) {
    return Resume(resumed->number);
  }
  {
    const MutexLock lock(mu_);
    heard_ = Clock::now();
    silent_ = false;
    const auto it = pending_.find(reply.request_id);
    if (it == pending_.end() || it->second.reply.has_value()) {
      if (!failed_.ok()) return failed_;
      return Status(Code::kInternal, "hoistd answered request " +
                                         std::to_string(reply.request_id) +
                                         ", which was not made");
    }
  }
  if (const auto* lost = std::get_if<ResumeReply>(&reply.body)) {
    {
      const MutexLock lock(mu_);
      pending_.erase(reply.request_id);
    }
    return handler_->OnResumed(*lost);
  }
  const Status admitted = handler_->Admit(&reply);
  bool give_back = !admitted.ok();
  {
    const MutexLock lock(mu_);
    // Fail() may have answered it meanwhile.
    const auto it = pending_.find(reply.request_id);
    if (it == pending_.end() || it->second.reply.has_value()) {
      give_back = true;
    } else if (it->second.abandoned) {
      give_back = true;
      pending_.erase(it);
    } else if (!admitted.ok()) {
      it->second.reply = admitted;
      it->second.arrived.NotifyAll();
    } else {
      it->second.reply = std::move(reply);
      it->second.arrived.NotifyAll();
    }
  }
  if (give_back) handler_->GiveBack(reply);
  return Status();
}

// The previous hoistd will not answer, and the new one has not seen its
// requests: they are sent again.
Status Connection::Resume(uint64_t number) {
  const MutexLock sending(send_mu_);
  was_resumed_.store(true);
  const Result<uint64_t> request_id = Expect(/*abandoned=*/true);
  if (!request_id.ok()) return request_id.status();
  Status sent = SendPacket(
      socket_.get(), handler_->PackGrants(number, request_id.value()), {});
  // The lock keeps the callers waiting, so their requests stay valid.
  const MutexLock lock(mu_);
  std::erase_if(pending_, [&](const auto& entry) {
    return entry.second.abandoned && entry.first != request_id.value();
  });
  for (auto& [id, pending] : pending_) {
    if (pending.request == nullptr || pending.reply.has_value()) continue;
    if (!sent.ok()) break;
    if (pending.once) {
      pending.reply = Reply{.request_id = id, .body = Resumed{number}};
      pending.arrived.NotifyAll();
      continue;
    }
    sent = SendPacket(socket_.get(), Pack(id, *pending.request), pending.fds);
  }
  return sent.ok() ? sent : Gone();
}

void Connection::Fail(Status why) {
  {
    const MutexLock lock(mu_);
    if (!failed_.ok()) return;
    failed_ = why;
    std::erase_if(pending_, [](const auto& p) { return p.second.abandoned; });
    for (auto& [id, pending] : pending_) {
      if (!pending.reply.has_value()) pending.reply = failed_;
      pending.arrived.NotifyAll();
    }
    ended_.NotifyAll();
  }
  Release();
  const MutexLock lock(listeners_mu_);
  for (Listener* listener : listeners_) listener->SessionEnded(why);
}

// Wakes the reader and any sender. hoistd takes it as the release of all
// holdings.
void Connection::HangUp() { shutdown(socket_.get(), SHUT_RDWR); }

void Connection::Release() {
  {
    const MutexLock lock(mu_);
    if (failed_.ok()) return;
  }
  if (!handler_->InUse()) HangUp();
}

}  // namespace hoist
