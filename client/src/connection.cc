#include "client/src/connection.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "client/src/signals_blocked.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/socket_path.h"

namespace hoist {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Between two tries to connect.
constexpr milliseconds kRetryEvery{20};
// For the reader to come to an end that its socket shows already.
constexpr milliseconds kReaderLag{1000};

Status Gone() {
  return Status(Code::kUnavailable,
                "hoistd has ended this session (stopped, or crashed); connect "
                "again");
}

timeval ToTimeval(milliseconds time) {
  timeval out = {};
  out.tv_sec = static_cast<time_t>(time.count() / 1000);
  out.tv_usec = static_cast<suseconds_t>(time.count() % 1000 * 1000);
  return out;
}

bool HungUp(int socket) {
  pollfd looked = {socket, 0, 0};  // What is asked for is always told.
  return poll(&looked, 1, 0) > 0 && (looked.revents & POLLHUP) != 0;
}

bool NobodyListens(int error) {
  return error == ENOENT || error == ECONNREFUSED || error == EAGAIN;
}

// A try to connect that failed.
struct Refusal {
  std::string path;
  int error = 0;  // errno
};

// One try. The socket, or errno.
Result<UniqueFd> TryToConnect(const std::string& path, timeval send_timeout,
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
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &send_timeout,
             sizeof(send_timeout));
  int got = 0;
  do {
    got = connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
                  sizeof(address));
  } while (got != 0 && errno == EINTR);
  *error = got == 0 ? 0 : errno;
  return socket;
}

// Why no hoistd was reached at any of these.
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
                      "; your user must be in the socket's group (hoist), or "
                      "start a hoistd of your own (hoistd --user)");
  }
  return ErrnoStatus(refusals.front().error,
                     "connect to " + refusals.front().path);
}

}  // namespace

Result<UniqueFd> ConnectSocket(const std::string& path, milliseconds deadline,
                               milliseconds send_timeout) {
  const timeval timeout = ToTimeval(send_timeout);
  const Clock::time_point end = Clock::now() + deadline;
  while (true) {
    const std::vector<std::string> paths =
        path.empty() ? SessionSocketsToTry() : std::vector<std::string>{path};
    std::vector<Refusal> refusals;
    // Where we look for one ourselves, the right one may be yet to come.
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

Connection::Connection(UniqueFd socket, Admit admit)
    : socket_(std::move(socket)),
      fork_closed_(socket_.get()),
      admit_(std::move(admit)) {
  const SignalsBlocked blocked;  // The new thread inherits it.
  reader_ = std::thread([this] { Read(); });
}

Connection::~Connection() { Close(); }

Status Connection::Check() const {
  std::unique_lock<std::mutex> lock(mu_);
  if (!failed_.ok() || !HungUp(socket_.get())) return failed_;
  // hoistd is gone, and the reader is about to see it, and perhaps why.
  ended_.wait_for(lock, kReaderLag, [this] { return !failed_.ok(); });
  return failed_.ok() ? Gone() : failed_;
}

void Connection::Close() {
  std::call_once(closed_, [this] {
    Fail(Status(Code::kFailedPrecondition,
                "the session is closed; connect again"));
    if (reader_.joinable()) reader_.join();
  });
}

std::shared_ptr<Connection::Pending> Connection::Expect(uint64_t* request_id) {
  auto pending = std::make_shared<Pending>();
  const std::lock_guard<std::mutex> lock(mu_);
  *request_id = next_request_id_++;
  if (failed_.ok()) {
    pending_.emplace(*request_id, pending);
  } else {
    pending->done = true;
    pending->reply = failed_;
  }
  return pending;
}

Result<Reply> Connection::Call(const Encode& encode, std::span<const int> fds,
                               milliseconds deadline) {
  uint64_t request_id = 0;
  const std::shared_ptr<Pending> pending = Expect(&request_id);
  if (pending->done) return std::move(pending->reply);
  bool would_block = false;
  const Status sent =
      SendPacket(socket_.get(), encode(request_id), fds, &would_block);
  std::unique_lock<std::mutex> lock(mu_);
  if (!sent.ok() && !pending->done) {
    pending_.erase(request_id);
    if (would_block) {
      return Status(Code::kDeadlineExceeded, "hoistd takes no more requests");
    }
    return sent.code() == Code::kResourceExhausted ? sent : Gone();
  }
  const bool arrived = pending->arrived.wait_until(
      lock, Clock::now() + deadline, [&pending] { return pending->done; });
  if (!arrived) {
    pending->abandoned = true;
    return Status(Code::kDeadlineExceeded,
                  "hoistd did not answer within " +
                      std::to_string(deadline.count()) + " ms");
  }
  if (!pending->reply.ok()) return pending->reply.status();
  if (!pending->reply->status.ok()) return pending->reply->status;
  return std::move(pending->reply);
}

void Connection::Post(const Encode& encode) {
  uint64_t request_id = 0;
  const std::shared_ptr<Pending> pending = Expect(&request_id);
  if (pending->done) return;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    pending->abandoned = true;
  }
  // A failure means that hoistd is gone, and with it what this gives back.
  (void)SendPacket(socket_.get(), encode(request_id), {});
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
    // Our own kind of error where the bytes are wrong; else the socket's end.
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

Status Connection::Deliver(Reply reply) {
  // Request 0 is nobody's: hoistd says why it ends the session.
  if (reply.request_id == 0 && !reply.status.ok()) return reply.status;
  std::shared_ptr<Pending> pending;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    const auto it = pending_.find(reply.request_id);
    if (it == pending_.end()) {
      if (!failed_.ok()) return failed_;
      return Status(Code::kInternal, "hoistd answered request " +
                                         std::to_string(reply.request_id) +
                                         ", which was not made");
    }
    pending = it->second;
  }
  const Status admitted = admit_(&reply);
  bool give_back = !admitted.ok();
  {
    const std::lock_guard<std::mutex> lock(mu_);
    // Fail() may have answered meanwhile; it took the request off the table.
    pending_.erase(reply.request_id);
    if (pending->abandoned || pending->done) {
      give_back = true;
    } else {
      pending->done = true;
      if (admitted.ok()) {
        pending->reply = std::move(reply);
      } else {
        pending->reply = admitted;
      }
      pending->arrived.notify_all();
    }
  }
  if (give_back) GiveBack(reply);
  return Status();
}

void Connection::GiveBack(const Reply& reply) {
  if (const auto* lease = std::get_if<LeaseGrant>(&reply.body)) {
    Post([lease](uint64_t id) {
      return EncodeRelease(id, std::span(&lease->id, 1));
    });
  } else if (const auto* plan = std::get_if<PlanGrant>(&reply.body)) {
    Post([plan](uint64_t id) { return EncodeClearPlan(id, plan->id); });
  }
}

void Connection::Fail(Status why) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!failed_.ok()) return;
    failed_ = why;
    for (auto& [id, pending] : pending_) {
      pending->done = true;
      pending->reply = failed_;
      pending->arrived.notify_all();
    }
    pending_.clear();
    ended_.notify_all();
    // Wakes the reader and any sender, and tells hoistd that all is given back.
    shutdown(socket_.get(), SHUT_RDWR);
  }
  const std::lock_guard<std::mutex> lock(listeners_mu_);
  for (Listener* listener : listeners_) listener->SessionEnded(why);
}

Status Connection::AddListener(Listener* listener) {
  {
    const std::lock_guard<std::mutex> lock(listeners_mu_);
    listeners_.push_back(listener);
  }
  return Check();
}

void Connection::RemoveListener(Listener* listener) {
  const std::lock_guard<std::mutex> lock(listeners_mu_);
  std::erase(listeners_, listener);
}

}  // namespace hoist
