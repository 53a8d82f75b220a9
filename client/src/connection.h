// One session socket: requests out, replies back to whoever waits for them.
#ifndef HOIST_CLIENT_SRC_CONNECTION_H_
#define HOIST_CLIENT_SRC_CONNECTION_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/src/fork_guard.h"
#include "client/src/messages.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Connects to the session socket at `path`; "": at the first that answers of
// SessionSocketsToTry(). Tries again until the deadline where nobody listens
// yet. Unavailable: nobody did. PermissionDenied: somebody does, for others.
// `connect_timeout`: how long one try may take.
Result<UniqueFd> ConnectSocket(const std::string& path,
                               std::chrono::milliseconds deadline,
                               std::chrono::milliseconds connect_timeout);

// hoistd may die without the connection's end: whoever keeps what outlives it
// has the socket too, and the next hoistd goes on over it, and says so. Then
// the session says what it has, and asks again what callers still wait for;
// meanwhile they wait, as long as they said they would.
//
// Threads:  thread-safe. A thread of its own reads, so that replies find their
//           callers in any order and hoistd's end is noticed at once; it blocks
//           all signals, and Close() joins it.
// Owns:     the socket.
// Bounds:   as many requests in flight as callers wait.
class Connection {
 public:
  // What its owner does on the reading thread, in the order of what came.
  class Handler {
   public:
    virtual ~Handler() = default;
    // Each lease, plan and arena, before its caller wakes: maps the slabs,
    // which later ones rely on. An error goes to the caller, and what was
    // granted goes back.
    virtual Status Admit(Reply* reply) = 0;
    // What was admitted goes back: nobody waits for it.
    virtual void GoesBack(const Reply& reply) = 0;
    // hoistd asks. Must not wait for a call.
    virtual void OnAsk(const SlabAsk& ask) = 0;
    // What the session has, for the hoistd that goes on with it; `number` is
    // set by the caller.
    virtual ResumeRequest WhatItHas() = 0;
    // What of that had ended. An error ends the session.
    virtual Status OnResumed(const ResumeReply& lost) = 0;
    // Whether anything that hoistd gave may still be read or computed with.
    // Thread-safe.
    virtual bool InUse() const = 0;
  };
  using Encode = std::function<std::string(uint64_t request_id)>;

  // Who must know at once that the session has ended.
  class Listener {
   public:
    virtual ~Listener() = default;
    // Once, on any thread; must neither block nor call the connection.
    virtual void SessionEnded(const Status& why) = 0;
    // Another hoistd goes on with the session, and it can be asked again.
    // Likewise.
    virtual void SessionResumed() = 0;
    // These plans have ended with the hoistd that had made them, though the
    // session goes on. Likewise.
    virtual void PlansEnded(std::span<const uint64_t> plans,
                            const Status& why) = 0;
  };

  // `handler` outlives this object.
  Connection(UniqueFd socket, Handler* handler);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  // Sends and waits. Errors: what hoistd answered; DeadlineExceeded: nothing
  // came in time, or this thread's Patience ended without a sign of life (a
  // lease that comes later is given back); Unavailable: hoistd is gone;
  // Internal: it sent what it must not; FailedPrecondition: closed.
  // Cancelled: `*cancelled` was set, and WakeCalls called; as if it were late.
  Result<Reply> Call(const Encode& encode, std::span<const int> fds,
                     std::chrono::milliseconds deadline,
                     const std::atomic<bool>* cancelled = nullptr);
  // Many such calls, of which some wait at a time: `each` gets their replies in
  // order. After the first that says false none is sent, and what comes yet
  // goes back.
  using EncodeNth = std::function<std::string(size_t i, uint64_t request_id)>;
  void CallMany(size_t count, const EncodeNth& encode,
                std::chrono::milliseconds deadline,
                const std::atomic<bool>* cancelled,
                const std::function<bool(size_t i, Result<Reply>)>& each);
  // The same for what gives something back, which also succeeds where hoistd
  // gives no sign of life for GiveBackPatience: it reads the message once it
  // goes on. Until it is heard of again, later ones do not wait at all.
  Status CallToGiveBack(const Encode& encode,
                        std::chrono::milliseconds deadline);
  // Waits for an answer to an empty request. DeadlineExceeded: none came.
  Status Ping(std::chrono::milliseconds deadline,
              const std::atomic<bool>* cancelled);
  // Has all calls look at what cancels them.
  void WakeCalls();
  // Sends, and leaves the reply alone. Where hoistd reads nothing for
  // kGiveBackPatience and no message fits any more, the session ends: what it
  // had would stay its own otherwise.
  void Post(const Encode& encode);

  // Why no call can succeed any more, or ok. Looks at the socket itself: a
  // hoistd that died before this was called is never taken for alive.
  Status Check() const;
  // Ok while what hoistd gave for good is this process's: until the session is
  // closed here, or hoistd has told it to end. If hoistd dies, it stays so.
  Status CheckHeld() const { return void_ ? Check() : Status(); }
  // Gives all back, whatever is in use.
  void Close();
  // What was in use is not any more. If the session has failed, hoistd is told
  // that all is given back: until then the connection stays, since hoistd may
  // live, and would give the memory to others.
  void LetGo();

  // Not ok: the session has ended already, for this reason; `listener` may have
  // been told so too.
  Status AddListener(Listener* listener);
  // When this returns, `listener` is not called any more.
  void RemoveListener(Listener* listener);
  // Whether it has ended before hoistd said anything over it.
  bool ended_unheard() const;
  // Whether some hoistd has gone on with it: what was asked may have been done
  // by the one before, and then asked again.
  bool was_resumed() const { return was_resumed_.load(); }
  void TellPlansEnded(std::span<const uint64_t> plans, const Status& why);
  void TellResumed();

 private:
  // A request; it goes with its caller, who takes the reply, or if nobody waits
  // any more with the reply, whose grants are given back.
  struct Pending {
    CondVar arrived;
    std::optional<Result<Reply>> reply;
    bool abandoned = false;
    // Of a call: what was sent, if it was. Valid while its caller waits.
    const Encode* encode = nullptr;
    std::span<const int> fds = {};
  };

  using Clock = std::chrono::steady_clock;
  struct Limits {
    Clock::time_point end;
    std::chrono::milliseconds patience{0};  // 0: until the end.
    const std::atomic<bool>* cancelled = nullptr;
    bool cancelled_now() const { return cancelled != nullptr && *cancelled; }
  };

  // The id of a new request, which has an entry in `pending_` from now on.
  Result<uint64_t> Expect(bool abandoned) HOIST_EXCLUDES(mu_);
  // What was sent, and is to be taken, or let go of.
  struct Asked {
    uint64_t request_id = 0;
    Pending* pending = nullptr;
  };
  Result<Asked> Ask(const Encode& encode, std::span<const int> fds,
                    const Limits& limits) HOIST_EXCLUDES(mu_);
  Result<Reply> Take(const Asked& asked, const Limits& limits)
      HOIST_EXCLUDES(mu_);
  Result<Reply> CallWithin(const Encode& encode, std::span<const int> fds,
                           const Limits& limits) HOIST_EXCLUDES(mu_);
  // Waits for room. `*full`: there was none in time.
  Status Send(std::string_view body, std::span<const int> fds,
              const Limits& limits, bool* full);
  // Until the reply is there, or why it is waited for no more.
  Status Await(Pending* pending, const Limits& limits) HOIST_EXCLUDES(mu_);
  void Read();
  void ReadUntilEnd();
  Status ReadOne();
  Status Deliver(Reply reply);
  Status Resume(uint64_t number);
  void GiveBack(const Reply& reply);
  void Fail(Status why);
  void HangUp();

  const UniqueFd socket_;
  const ForkClosedFd fork_closed_;
  Handler* const handler_;
  Mutex send_mu_;  // Before mu_. Held over each send, so that none overtakes.
  mutable Mutex mu_;
  mutable CondVar ended_;  // When failed_ is set.
  Status failed_ HOIST_GUARDED_BY(mu_);
  uint64_t next_request_id_ HOIST_GUARDED_BY(mu_) = 1;
  std::unordered_map<uint64_t, Pending> pending_ HOIST_GUARDED_BY(mu_);
  Clock::time_point heard_ HOIST_GUARDED_BY(mu_);  // When a packet came last.
  // Somebody waited in vain since then.
  std::atomic<bool> silent_{false};
  Mutex listeners_mu_;  // Held while they are called.
  std::vector<Listener*> listeners_ HOIST_GUARDED_BY(listeners_mu_);
  std::atomic<bool> answered_{false};
  std::atomic<bool> was_resumed_{false};
  std::atomic<bool> void_{false};  // See CheckHeld.
  std::once_flag closed_;
  std::thread reader_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_CONNECTION_H_
