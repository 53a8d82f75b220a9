// An engine that does what a test says, verb by verb.
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

// One call of a verb, with the callback that answers it.
template <typename Args, typename Callback>
struct Asked {
  SessionId session;
  Args args;
  Callback done;
};

struct OrderAsked {
  ModelId model;
  std::vector<GroupIndex> order;
};
struct ShareAsked {
  ShareOf of;
  ShareChange change;
};
struct LoadAsked {
  ModelId model;
  TierAt to;
};
struct CheckAsked {
  CheckWish wish;
  absl::AnyInvocable<void(const CheckProgress&)> progress;
};
struct PinAsked {
  CopySelector which;
  absl::Duration deadline;
};
struct EvictAsked {
  CopySelector which;
  bool forget = false;
};

// The calls of one verb. They wait to be taken and answered by the test, or,
// once it has said how, are answered by the fake's thread.
template <typename Args, typename Callback>
class VerbScript {
 public:
  using Call = Asked<Args, Callback>;

  // Answers all calls from now on, those that wait included. nullptr: they
  // wait again.
  void Answer(std::function<void(Call)> answer) ABSL_LOCKS_EXCLUDED(mu_) {
    std::deque<Call> waiting;
    {
      absl::MutexLock lock(&mu_);
      answer_ = answer;
      if (answer) waiting.swap(waiting_);
    }
    for (Call& call : waiting) answer(std::move(call));
  }

  // The oldest call that nobody answered; waits for one. It must come: a test
  // that waits in vain is ended by its timeout.
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

  // How often the verb was called.
  size_t calls() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return calls_;
  }

  // For the fake, on its thread.
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

// Threads:  thread-safe. As the engine's, calls return at once; a thread of its
//           own takes them in order and runs the scripted answers.
// OpenSession is answered with 1, 2, 3 ... unless scripted otherwise.
class FakeEngine final : public EngineApi {
 public:
  VerbScript<OpenSessionArgs, Done<SessionId>> open_session;
  VerbScript<ResumeArgs, Done<Resumed>> resume;
  VerbScript<RegisterModelArgs, Done<ModelPtr>> register_model;
  VerbScript<PublishArgs, Done<ModelPtr>> publish;
  VerbScript<std::string, Done<ModelPtr>> describe_model;
  VerbScript<Content, Done<ModelPtr>> find_content;
  VerbScript<ModelId, DoneStatus> forget_model;
  VerbScript<StageArgs, Done<LeaseGrant>> stage;
  VerbScript<StageArgs, Done<LeaseGrant>> stage_shared;
  VerbScript<ReadImageArgs, DoneStatus> read_image;
  VerbScript<PrefetchArgs, DoneStatus> prefetch;
  VerbScript<std::vector<LeaseId>, DoneStatus> release;
  VerbScript<HeatArgs, Done<std::vector<GroupHeat>>> report_heat;
  VerbScript<OrderAsked, DoneStatus> set_order;
  VerbScript<SlabsClosedArgs, DoneStatus> slabs_closed;
  VerbScript<SetPlanArgs, Done<OpenedPlan>> set_plan;
  VerbScript<OpenCopierArgs, Done<OpenedCopier>> open_copier;
  VerbScript<CopierId, DoneStatus> close_copier;
  VerbScript<PlanId, DoneStatus> clear_plan;
  VerbScript<ArenaArgs, Done<ArenaGrant>> open_arena;
  VerbScript<ArenaId, DoneStatus> close_arena;
  VerbScript<ShareAsked, Done<ShareChanged>> set_share;
  VerbScript<Peer, Done<SessionSnapshot>> end_session;
  VerbScript<std::monostate, Done<NodeSnapshot>> snapshot;
  VerbScript<std::pair<std::string, std::string>, Done<ModelExplanation>>
      explain;
  VerbScript<LoadAsked, Done<LoadProgress>> load;
  VerbScript<std::shared_ptr<CheckAsked>, Done<CheckProgress>> check;
  VerbScript<PinAsked, Done<CopyTotals>> pin;
  VerbScript<CopySelector, Done<CopyTotals>> unpin;
  VerbScript<EvictAsked, Done<CopyTotals>> evict;
  VerbScript<bool, DoneStatus> set_draining;
  MonotonicClock clock;
  TraceRecorder recorder{clock};

  explicit FakeEngine(NodeFacts facts = {}) : facts_(std::move(facts)) {
    open_session.Answer([this](auto call) { call.done(NewSession()); });
    thread_ = std::thread([this] { RunThread(); });
  }
  // Runs what was asked before; calls that wait are dropped unanswered.
  ~FakeEngine() override {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    thread_.join();
  }

  // Runs `work` on the fake's thread, after the calls before it.
  void Run(absl::AnyInvocable<void()> work) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    work_.push_back(std::move(work));
  }

  // Asks whoever opened a session last, on the fake's thread.
  void Ask(SlabAsk ask) ABSL_LOCKS_EXCLUDED(mu_) { Say(std::move(ask)); }
  // Says it to them.
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
  // Until `count` sessions in all were closed.
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
  // What a scripted Load tells of its progress; nullptr before any.
  void ReportLoad(const LoadProgress& progress) {
    if (load_progress_) load_progress_(progress);
  }

  void OpenSession(OpenSessionArgs args, OnSessionWord on_word,
                   Done<SessionId> done) override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      on_word_ = std::make_shared<OnSessionWord>(std::move(on_word));
    }
    Hand(open_session, SessionId(), std::move(args), std::move(done));
  }
  void Resume(SessionId session, ResumeArgs has, OnSessionWord,
              Done<Resumed> done) override {
    Hand(resume, session, std::move(has), std::move(done));
  }
  void EndSession(Peer asker, SessionId session,
                  Done<SessionSnapshot> done) override {
    Hand(end_session, session, std::move(asker), std::move(done));
  }
  void CloseSession(SessionId session) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    open_.erase(session);
    closed_.push_back(session);
  }
  void RegisterModel(SessionId session, RegisterModelArgs args,
                     Done<ModelPtr> done) override {
    Hand(register_model, session, std::move(args), std::move(done));
  }
  void Publish(SessionId session, PublishArgs args,
               Done<ModelPtr> done) override {
    Hand(publish, session, std::move(args), std::move(done));
  }
  void FindContent(SessionId session, Content content,
                   Done<ModelPtr> done) override {
    Hand(find_content, session, content, std::move(done));
  }
  void ForgetModel(SessionId session, ModelId model, DoneStatus done) override {
    Hand(forget_model, session, model, std::move(done));
  }
  void SlabsClosed(SessionId session, SlabsClosedArgs closed,
                   DoneStatus done) override {
    Hand(slabs_closed, session, std::move(closed), std::move(done));
  }
  void DescribeModel(SessionId session, std::string name,
                     Done<ModelPtr> done) override {
    Hand(describe_model, session, std::move(name), std::move(done));
  }
  void Stage(SessionId session, StageArgs args,
             Done<LeaseGrant> done) override {
    Hand(stage, session, args, std::move(done));
  }
  void StageShared(SessionId session, StageArgs args,
                   Done<LeaseGrant> done) override {
    Hand(stage_shared, session, args, std::move(done));
  }
  void ReadImage(SessionId session, ReadImageArgs args,
                 DoneStatus done) override {
    Hand(read_image, session, std::move(args), std::move(done));
  }
  void Prefetch(SessionId session, PrefetchArgs args,
                DoneStatus done) override {
    Hand(prefetch, session, std::move(args), std::move(done));
  }
  void Release(SessionId session, std::vector<LeaseId> leases,
               DoneStatus done) override {
    Hand(release, session, std::move(leases), std::move(done));
  }
  void ReportHeat(SessionId session, HeatArgs args,
                  Done<std::vector<GroupHeat>> done) override {
    Hand(report_heat, session, std::move(args), std::move(done));
  }
  void SetOrder(SessionId session, ModelId model, std::vector<GroupIndex> order,
                DoneStatus done) override {
    Hand(set_order, session, OrderAsked{model, std::move(order)},
         std::move(done));
  }

  void SetPlan(SessionId session, SetPlanArgs args,
               Done<OpenedPlan> done) override {
    Hand(set_plan, session, std::move(args), std::move(done));
  }
  void OpenArena(SessionId session, ArenaArgs args,
                 Done<ArenaGrant> done) override {
    Hand(open_arena, session, args, std::move(done));
  }
  void CloseArena(SessionId session, ArenaId arena, DoneStatus done) override {
    Hand(close_arena, session, arena, std::move(done));
  }
  void ClearPlan(SessionId session, PlanId plan, DoneStatus done) override {
    Hand(clear_plan, session, plan, std::move(done));
  }
  void OpenCopier(SessionId session, OpenCopierArgs args,
                  Done<OpenedCopier> done) override {
    Hand(open_copier, session, args, std::move(done));
  }
  void CloseCopier(SessionId session, CopierId copier,
                   DoneStatus done) override {
    Hand(close_copier, session, copier, std::move(done));
  }
  void SetShare(ShareOf of, ShareChange change,
                Done<ShareChanged> done) override {
    Hand(set_share, SessionId(), ShareAsked{of, change}, std::move(done));
  }
  void Snapshot(Done<NodeSnapshot> done) override {
    Hand(snapshot, SessionId(), std::monostate(), std::move(done));
  }
  void Explain(Peer, std::string model, std::string group,
               Done<ModelExplanation> done) override {
    Hand(explain, SessionId(), std::pair(std::move(model), std::move(group)),
         std::move(done));
  }
  void Load(ModelId model, TierAt to,
            absl::AnyInvocable<void(const LoadProgress&)> progress,
            Done<LoadProgress> done) override {
    Run([this, model, to, progress = std::move(progress),
         done = std::move(done)]() mutable {
      load_progress_ = std::move(progress);
      load.Handle({SessionId(), LoadAsked{model, to}, std::move(done)});
    });
  }
  void Check(CheckWish wish,
             absl::AnyInvocable<void(const CheckProgress&)> progress,
             Done<CheckProgress> done) override {
    auto asked = std::make_shared<CheckAsked>();
    asked->wish = std::move(wish);
    asked->progress = std::move(progress);
    Hand(check, SessionId(), std::move(asked), std::move(done));
  }
  void Pin(CopySelector which, absl::Duration deadline,
           Done<CopyTotals> done) override {
    Hand(pin, SessionId(), PinAsked{std::move(which), deadline},
         std::move(done));
  }
  void Unpin(CopySelector which, Done<CopyTotals> done) override {
    Hand(unpin, SessionId(), std::move(which), std::move(done));
  }
  void Evict(CopySelector which, bool forget, Done<CopyTotals> done) override {
    Hand(evict, SessionId(), EvictAsked{std::move(which), forget},
         std::move(done));
  }
  void SetDraining(bool draining, DoneStatus done) override {
    Hand(set_draining, SessionId(), draining, std::move(done));
  }
  void Subscribe(absl::AnyInvocable<void(const NodeEvent&)> on_event,
                 Done<uint64_t> done) override {
    Run([this, on_event = std::move(on_event),
         done = std::move(done)]() mutable {
      uint64_t id;
      {
        absl::MutexLock lock(&mu_);
        id = ++last_subscription_;
        subscribers_.emplace(id, std::move(on_event));
      }
      done(id);
    });
  }
  void Trace(Done<std::unique_ptr<TraceRecording>> done) override {
    Run([this, done = std::move(done)]() mutable { done(recorder.Start()); });
  }
  void Unsubscribe(uint64_t subscription, DoneStatus done) override {
    Run([this, subscription, done = std::move(done)]() mutable {
      bool found;
      {
        absl::MutexLock lock(&mu_);
        found = subscribers_.erase(subscription) > 0;
      }
      done(found ? absl::OkStatus()
                 : absl::NotFoundError("no such subscription"));
    });
  }

  NodeFacts facts() const override { return facts_; }
  NodeNotes notes() const override { return {{"a note"}, 2}; }
  absl::Time Now() const override { return absl::UnixEpoch(); }

 private:
  using Subscriber = absl::AnyInvocable<void(const NodeEvent&)>;

  template <typename Script, typename Args, typename Callback>
  void Hand(Script& script, SessionId session, Args args, Callback done) {
    Run([&script, session, args = std::move(args),
         done = std::move(done)]() mutable {
      script.Handle({session, std::move(args), std::move(done)});
    });
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
  // Touched by the fake's thread, where scripted answers run, alone.
  absl::AnyInvocable<void(const LoadProgress&)> load_progress_;
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
