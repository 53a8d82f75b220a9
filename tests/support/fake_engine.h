// A scripted engine: the test controls each verb.
#ifndef HOIST_TESTS_SUPPORT_FAKE_ENGINE_H_
#define HOIST_TESTS_SUPPORT_FAKE_ENGINE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/clock.h"
#include "daemon/engine/engine_api.h"

namespace hoistd::testing {

// One call of a verb, and the callback for its answer.
template <typename Args>
struct Asked {
  SessionId session;  // None: an admin's.
  Args args;
  Done<typename Args::Result> done;
};

// The calls of one verb. The test takes and answers them; or the fake's thread
// answers them with the test's function.
template <typename Args>
class VerbScript {
 public:
  using Call = Asked<Args>;

  // Answers all calls from now on, waiting ones included. nullptr: calls wait
  // again.
  void Answer(std::function<void(Call)> answer) ABSL_LOCKS_EXCLUDED(mu_) {
    std::deque<Call> waiting;
    {
      absl::MutexLock lock(&mu_);
      answer_ = answer;
      if (answer) waiting.swap(waiting_);
    }
    for (Call& call : waiting) answer(std::move(call));
  }

  // The oldest unanswered call; waits for one. It must come: a wait in vain
  // ends by the test's timeout.
  Call Next() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &VerbScript::HasWaiting));
    Call call = std::move(waiting_.front());
    waiting_.pop_front();
    return call;
  }

  size_t waiting() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return waiting_.size();
  }

  // The number of calls of the verb.
  size_t calls() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return calls_;
  }

  // Called by the fake, on its thread.
  void Handle(Call call) ABSL_LOCKS_EXCLUDED(mu_) {
    std::function<void(Call)> answer;
    {
      absl::MutexLock lock(&mu_);
      ++calls_;
      answer = answer_;
      if (!answer) waiting_.push_back(std::move(call));
    }
    if (answer) answer(std::move(call));
  }

 private:
  bool HasWaiting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !waiting_.empty();
  }

  mutable absl::Mutex mu_;
  std::function<void(Call)> answer_ ABSL_GUARDED_BY(mu_);
  std::deque<Call> waiting_ ABSL_GUARDED_BY(mu_);
  size_t calls_ ABSL_GUARDED_BY(mu_) = 0;
};

// One script per request type of a variant.
template <typename Requests>
struct VerbScripts;
template <typename... Args>
struct VerbScripts<std::variant<Args...>> : VerbScript<Args>... {};

// Threads:  thread-safe. Like the engine's, calls return at once; a thread of
//           its own takes them in order and runs the scripted answers.
//
// By default OpenSession is answered with 1, 2, 3 ..., and Subscribe and
// Unsubscribe as by the engine.
class FakeEngine final : public EngineApi {
 public:
  MonotonicClock clock;
  TraceRecorder recorder{clock};

  explicit FakeEngine(NodeFacts facts = {}) : facts_(std::move(facts)) {
    verb<OpenSessionArgs>().Answer(
        [this](auto call) { call.done(NewSession()); });
    verb<SubscribeArgs>().Answer([this](auto call) {
      call.done(AddSubscriber(std::move(call.args.on_event)));
    });
    verb<UnsubscribeArgs>().Answer([this](auto call) {
      call.done(RemoveSubscriber(call.args.subscription));
    });
    thread_ = std::thread([this] { RunThread(); });
  }
  // Runs earlier requests; drops waiting calls unanswered.
  ~FakeEngine() override {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    thread_.join();
  }

  // The calls of the verb with these arguments.
  template <typename Args>
  VerbScript<Args>& verb() {
    return scripts_;
  }

  // Runs `work` on the fake's thread, after the calls before it.
  void Run(absl::AnyInvocable<void()> work) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    work_.push_back(std::move(work));
  }

  // Sends it to the session opened last.
  void Say(SessionWord word) ABSL_LOCKS_EXCLUDED(mu_) {
    Run([this, word = std::move(word)] {
      std::shared_ptr<OnSessionWord> on_word;
      {
        absl::MutexLock lock(&mu_);
        on_word = on_word_;
      }
      (*on_word)(word);
    });
  }

  SessionId NewSession() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const SessionId session(++last_session_);
    open_.insert(session);
    return session;
  }

  void WaitUntilClosed(SessionId session) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto closed = [this, session]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return std::find(closed_.begin(), closed_.end(), session) !=
             closed_.end();
    };
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&closed));
  }
  // Waits until `count` sessions in all have been closed.
  void WaitUntilClosed(size_t count) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto closed = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return closed_.size() >= count;
    };
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&closed));
  }

  // In the order of CloseSession's calls.
  std::vector<SessionId> closed() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return closed_;
  }
  size_t open_sessions() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return open_.size();
  }

  // Gives an event to all subscribers, on the fake's thread.
  void Emit(NodeEvent event) {
    Run([this, event = std::move(event)] {
      std::vector<Subscriber*> all;
      {
        absl::MutexLock lock(&mu_);
        for (auto& entry : subscribers_) all.push_back(&entry.second);
      }
      for (Subscriber* subscriber : all) (*subscriber)(event);
    });
  }
  size_t subscribers() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return subscribers_.size();
  }

  void OpenSession(OpenSessionArgs args, OnSessionWord on_word,
                   Done<SessionId> done) override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      on_word_ = std::make_shared<OnSessionWord>(std::move(on_word));
    }
    Hand(SessionId(), Call<OpenSessionArgs>{std::move(args), std::move(done)});
  }
  void Resume(SessionId session, ResumeArgs has, OnSessionWord,
              Done<Resumed> done) override {
    Hand(session, Call<ResumeArgs>{std::move(has), std::move(done)});
  }
  void CloseSession(SessionId session) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    open_.erase(session);
    closed_.push_back(session);
  }
  void Trace(Done<std::unique_ptr<TraceRecording>> done) override {
    Run([this, done = std::move(done)]() mutable { done(recorder.Start()); });
  }

  NodeFacts facts() const override { return facts_; }
  NodeNotes notes() const override { return {{"a note"}, 2}; }
  absl::Time Now() const override { return absl::UnixEpoch(); }

 private:
  using Subscriber = absl::AnyInvocable<void(const NodeEvent&)>;
  struct Scripts : VerbScripts<SessionRequest>,
                   VerbScripts<AdminRequest>,
                   VerbScript<OpenSessionArgs>,
                   VerbScript<ResumeArgs> {};

  void Accept(SessionId session, SessionCall call) override {
    std::visit([&](auto& one) { Hand(session, std::move(one)); }, call);
  }
  void Accept(AdminCall call) override {
    std::visit([&](auto& one) { Hand(SessionId(), std::move(one)); }, call);
  }
  template <typename Args>
  void Hand(SessionId session, Call<Args> call) {
    Run([this, session, call = std::move(call)]() mutable {
      verb<Args>().Handle(
          {session, std::move(call.args), std::move(call.done)});
    });
  }

  uint64_t AddSubscriber(Subscriber subscriber) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    subscribers_.emplace(++last_subscription_, std::move(subscriber));
    return last_subscription_;
  }
  absl::Status RemoveSubscriber(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return subscribers_.erase(id) > 0
               ? absl::OkStatus()
               : absl::NotFoundError("no such subscription");
  }

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !work_.empty();
  }
  void RunThread() ABSL_LOCKS_EXCLUDED(mu_) {
    while (true) {
      absl::AnyInvocable<void()> next;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &FakeEngine::HasWork));
        if (work_.empty()) return;
        next = std::move(work_.front());
        work_.pop_front();
      }
      next();
    }
  }

  const NodeFacts facts_;
  Scripts scripts_;
  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<absl::AnyInvocable<void()>> work_ ABSL_GUARDED_BY(mu_);
  uint64_t last_session_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<OnSessionWord> on_word_ ABSL_GUARDED_BY(mu_);
  uint64_t last_subscription_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Subscriber> subscribers_ ABSL_GUARDED_BY(mu_);
  std::set<SessionId> open_ ABSL_GUARDED_BY(mu_);
  std::vector<SessionId> closed_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_FAKE_ENGINE_H_
