// One session socket: sends requests, and gives replies to their callers.
#ifndef HOIST_CLIENT_SRC_SESSION_CONNECTION_H_
#define HOIST_CLIENT_SRC_SESSION_CONNECTION_H_

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

#include "client/src/base/fork_guard.h"
#include "client/src/messages/messages.h"
#include "client/src/session/call_limits.h"
#include "hoist/shared/mutex.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// Connects to the session socket at `path`; "": to the first of
// SessionSocketsToTry() that answers. Retries until the deadline while no
// daemon listens. Unavailable: none did. PermissionDenied: one listens, but not
// for this user. `connect_timeout`: limit of one try.
Result<UniqueFd> ConnectSocket(const std::string& path,
                               std::chrono::milliseconds deadline,
                               std::chrono::milliseconds connect_timeout);

// The connection may outlive hoistd: a keeper holds the socket too, and the
// next hoistd resumes over it and announces itself. Then the session reports
// its holdings, and repeats the requests of its waiting callers, within their
// deadlines.
//
// Threads:  thread-safe. Its own thread reads, so that replies may come in any
//           order and hoistd's end is noticed at once. It blocks all signals,
//           and Close() joins it.
// Owns:     the socket.
// Bounds:   one request in flight per waiting caller.
class Connection {
 public:
  // Its owner's callbacks on the reading thread, in order of arrival.
  class Handler {
   public:
    virtual ~Handler() = default;
    // Called for each lease, plan and arena before its caller wakes. Maps the
    // slabs: later grants rely on them. After an error, which the caller gets,
    // the grant is given back.
    virtual Status Admit(Reply* reply) = 0;
    // Gives back a grant, admitted or not, without a caller. Must not wait for
    // a call.
    virtual void GiveBack(const Reply& reply) = 0;
    // hoistd's request. Must not wait for a call.
    virtual void OnAsk(const DaemonAsk& ask) = 0;
    // Packs a ResumeRequest of this id: the session's holdings, for the
    // resuming hoistd with this `number`. Called while no other message can be
    // sent.
    virtual std::string PackGrants(uint64_t number, uint64_t request_id) = 0;
    // The ended holdings. An error ends the session.
    virtual Status OnResumed(const ResumeReply& lost) = 0;
    // Whether anything from hoistd may still be in use. Thread-safe.
    virtual bool InUse() const = 0;
  };
  // One of a ClientMessage's bodies; see Pack.
  using Request = ProtobufCMessage;

  // Notified at once of the session's end.
  class Listener {
   public:
    virtual ~Listener() = default;
    // Called once, on any thread; must neither block nor call the connection.
    virtual void SessionEnded(const Status& why) = 0;
    // A new hoistd has resumed the session, and answers again. Likewise.
    virtual void SessionResumed() = 0;
    // These plans have ended with their hoistd, though the session is resumed.
    // Likewise.
    virtual void PlansEnded(std::span<const uint64_t> plans,
                            const Status& why) = 0;
  };

  // `handler` outlives this object.
  Connection(UniqueFd socket, Handler* handler);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  // Sends and waits. Errors: hoistd's answer. DeadlineExceeded: no answer in
  // time, or silence, also for this thread's Patience; a late grant is given
  // back.
  // Unavailable: hoistd is gone. Internal: an invalid answer.
  // FailedPrecondition: closed. Cancelled: `*cancelled` was set, and WakeCalls
  // called; a late grant is given back.
  Result<Reply> Call(const Request& request, std::span<const int> fds,
                     const CallTime& time,
                     const std::atomic<bool>* cancelled = nullptr);
  // The same for requests that cannot be repeated to the next hoistd. If one
  // resumes the session, the reply is Resumed.
  Result<Reply> CallOnce(const Request& request, std::span<const int> fds,
                         const CallTime& time);
  // Pipelines such calls, some of them in flight at a time. `each` gets the
  // replies in order. After it returns false, no call is sent, and later grants
  // are given back.
  void CallMany(std::span<const Hoist__V1__StageRequest> requests,
                const CallTime& time, const std::atomic<bool>* cancelled,
                const std::function<bool(size_t i, Result<Reply>)>& each);
  // The same for calls that give something back. Succeeds also if hoistd is
  // silent for GiveBackPatience: it reads the message when it continues. Until
  // it is heard again, later calls do not wait.
  Status CallToGiveBack(const Request& request,
                        std::chrono::milliseconds deadline);
  // Waits for an answer to an empty request. DeadlineExceeded: none came.
  Status Ping(std::chrono::milliseconds deadline,
              const std::atomic<bool>* cancelled);
  // Makes all calls check `cancelled`.
  void WakeCalls();
  // Sends, and ignores the reply. If hoistd reads nothing for kGiveBackPatience
  // and the buffer is full, the session ends; otherwise hoistd would not learn
  // of the release. `still` is asked while no other message can be sent; false:
  // nothing is sent.
  using Still = std::function<bool()>;
  void Post(const Request& request, const Still& still = nullptr);

  // Why no call can succeed any more, or ok. Checks the socket itself: notices
  // any death before the call.
  Status Check() const;
  // Ok while permanent grants are this process's. They end when the session is
  // closed here or hoistd tells it to end, not with hoistd's death.
  Status CheckHeld() const { return void_ ? Check() : Status(); }
  // Gives all back, even in use.
  void Close();
  // To be called when a use ends. After the last use of a failed session it
  // hangs up, so that hoistd learns of the release. Before that the connection
  // stays open: a living hoistd would give the memory to others.
  void Release();

  // An error is the reason why the session has ended; `listener` may have been
  // called, too.
  Status AddListener(Listener* listener);
  // After this returns, `listener` is no longer called.
  void RemoveListener(Listener* listener);
  // Whether it ended before hoistd sent anything.
  bool ended_unheard() const;
  // Whether a new hoistd has resumed it. Then a repeated request may have been
  // done before, by the previous hoistd.
  bool was_resumed() const { return was_resumed_.load(); }
  void TellPlansEnded(std::span<const uint64_t> plans, const Status& why);
  void TellResumed();

 private:
  // A request in flight. Its caller takes the reply, and ends it. Without a
  // caller the reply ends it, and grants are given back.
  struct Pending {
    CondVar arrived;
    std::optional<Result<Reply>> reply;
    bool abandoned = false;
    bool once = false;  // See CallOnce.
    // A call's sent bytes, if any. Valid while its caller waits.
    const Request* request = nullptr;
    std::span<const int> fds = {};
  };

  using Clock = std::chrono::steady_clock;
  using Limits = CallLimits;

  // The id of a new request; adds its entry to `pending_`.
  Result<uint64_t> Expect(bool abandoned) HOIST_EXCLUDES(mu_);
  // Sent requests, to be taken or dropped.
  struct Asked {
    uint64_t request_id = 0;
    Pending* pending = nullptr;
  };
  Result<Asked> Ask(const Request& request, std::span<const int> fds,
                    const Limits& limits) HOIST_EXCLUDES(mu_);
  Result<Reply> Take(const Asked& asked, const Limits& limits)
      HOIST_EXCLUDES(mu_);
  Result<Reply> CallWithin(const Request& request, std::span<const int> fds,
                           const Limits& limits) HOIST_EXCLUDES(mu_);
  // Waits for room, which delays no other thread. `*full`: none in time.
  // `in_turn` is called before each attempt, and once it is done; no other
  // message goes between. False: it is not sent.
  Status Send(std::string_view body, std::span<const int> fds,
              const Limits& limits, bool* full,
              const std::function<bool(bool done)>& in_turn)
      HOIST_EXCLUDES(mu_);
  // Nobody waits for the reply.
  Status SendAbandoned(const Request& request, const Limits& limits, bool* full,
                       const Still& still = nullptr) HOIST_EXCLUDES(mu_);
  // Waits for the reply, or for the reason to stop.
  Status Await(Pending* pending, const Limits& limits) HOIST_EXCLUDES(mu_);
  void Read();
  void ReadUntilEnd();
  Status ReadOne();
  Status Deliver(Reply reply);
  Status Resume(uint64_t number);
  void Fail(Status why);
  void HangUp();

  const UniqueFd socket_;
  const ForkClosedFd fork_closed_;
  Handler* const handler_;
  Mutex send_mu_;  // Before mu_. Held over each send.
  mutable Mutex mu_;
  mutable CondVar ended_;  // When failed_ is set.
  Status failed_ HOIST_GUARDED_BY(mu_);
  uint64_t next_request_id_ HOIST_GUARDED_BY(mu_) = 1;
  std::unordered_map<uint64_t, Pending> pending_ HOIST_GUARDED_BY(mu_);
  Clock::time_point heard_ HOIST_GUARDED_BY(mu_);  // When the last packet came.
  // A wait has timed out since then.
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

#endif  // HOIST_CLIENT_SRC_SESSION_CONNECTION_H_
