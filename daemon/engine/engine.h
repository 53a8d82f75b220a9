// The engine: one thread owns the node's state; requests and results pass
// through its queue.
#ifndef HOIST_DAEMON_ENGINE_ENGINE_H_
#define HOIST_DAEMON_ENGINE_ENGINE_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/clock.h"
#include "daemon/base/threads.h"
#include "daemon/base/timed_cond_var.h"
#include "daemon/core/node.h"
#include "daemon/engine/engine_api.h"
#include "daemon/engine/engine_log.h"
#include "daemon/engine/model_opener.h"
#include "daemon/engine/node_trace.h"
#include "daemon/engine/node_view.h"
#include "daemon/engine/note_ring.h"
#include "daemon/engine/permit_book.h"
#include "daemon/engine/read_ahead.h"
#include "daemon/engine/session_words.h"
#include "daemon/io/open_files.h"
#include "daemon/io/source_file.h"
#include "daemon/mover/mover.h"
#include "daemon/mover/slab_maker.h"
#include "daemon/store/spill_store.h"
#include "daemon/stream/streamer.h"
#include "daemon/successor/book.h"
#include "daemon/successor/successor.h"
#include "daemon/trace/recorder.h"

namespace hoistd {

struct EngineParts {
  NodeOptions node;
  std::vector<DeviceView> device_views;  // As Node's devices.
  std::string no_in_place;               // As NodeFacts says.
  MoverParts mover;
  const Clock* clock = nullptr;
  SourceFileOptions files;
  std::string version;
  // Plans that took all that was free give way once idle for so long.
  absl::Duration idle_after = absl::InfiniteDuration();
  std::vector<std::string> notes;  // For `status`.
  // Holds state for hoistd's successor; from now on only the engine uses it.
  // nullptr: nothing outlives hoistd.
  Keep* keep = nullptr;
  Left left;  // By the last hoistd.
  // Identifies this hoistd to clients unless it takes over from another.
  std::array<uint8_t, 16> new_instance = {};
  // For the engine, its openers, mover, streamers and slab makers; nullptr: the
  // system's.
  // The links must use the same.
  Threads* threads = nullptr;
};

// What a recording says of a request's wait.
struct TracedWait {
  std::optional<TraceKind> kind;  // nullopt: not recorded.
  GroupKey key;
  DeviceIndex device;
  absl::Time since = absl::InfinitePast();  // If it was recorded.
  bool told = false;
};

// Threads:  as EngineApi. Two workers open and parse files; I/O helpers do so
//           with files on file systems that may hang.
// Owns:     the node, the mover and the devices' slabs. Borrows the parts.
// Bounds:   events queue; each is a request (bounded by sessions) or the end of
//           a transfer (bounded by the pools).
// Restart:  Create restores the spill store's and the keeper's contents.
class Engine final : public EngineApi, private Loop {
 public:
  // A longer event delays all other requests, and is counted.
  static constexpr absl::Duration kSlowEvent = absl::Milliseconds(5);

  static absl::StatusOr<std::unique_ptr<Engine>> Create(EngineParts parts);
  // Answers open requests with Unavailable, waits for transfers and for files
  // being opened, then joins its threads. Callbacks may call the engine until
  // the end. An operation that hangs is awaited until its deadline, unless the
  // I/O helpers have been stopped.
  ~Engine() override;

  // As Node::Resize.
  void Resize(TierAt at, PoolSize size);
  // A new keeper has come. OK also without a keeper.
  void StoreAgain(Done<void> done);
  // As Node::SaveAll.
  void SaveAll(Done<uint64_t> left);
  // Takes effect now.
  void SetQuotas(QuotaOptions quota);
  // The operator's cap for loads on all devices, effective now; it overrides
  // earlier caps by admins.
  void SetLoadRate(uint64_t bytes_per_second);
  // The identity of this hoistd for clients, the identity of the hoistd that it
  // took over from, and the number of takeovers in a row. Fixed.
  const PersistedInstance& instance() const { return instance_; }
  // Sessions of the last hoistd, with their sockets. To be called once, by the
  // thread that made this object. Each session must then Resume or be closed;
  // clients of ended ones must be told.
  std::vector<ResumedSession> TakeResumed();
  // Answers after all earlier requests: a sign of life.
  void Ping(Done<void> done);
  // Adds a note for `status` and the log.
  void AddNote(std::string note);

  void OpenSession(OpenSessionArgs args, OnSessionWord on_word,
                   Done<SessionId> done) override;
  void Resume(SessionId session, ResumeArgs has, OnSessionWord on_word,
              Done<Resumed> done) override;
  void CloseSession(SessionId session) override;
  void Trace(Done<std::unique_ptr<TraceRecording>> done) override;
  NodeFacts facts() const override;
  NodeNotes notes() const override { return notes_.All(); }
  absl::Time Now() const override { return parts_.clock->Now(); }

  // The books, for callers that run the engine's turns; between turns only.
  const Node& node() const { return node_; }

 private:
  using OnReply = absl::AnyInvocable<void(Answer)>;
  struct Pending {
    SessionId session;
    OnReply on_reply;
    absl::Time since;
    TracedWait waits;
  };

  explicit Engine(EngineParts parts);
  static NodeOptions NodeOptionsOf(const EngineParts& parts);
  static std::vector<DeviceInfo> DevicesOf(const EngineParts& parts);
  // engine_resume.cc
  void Restore();
  void WritePersisted();
  void ResumePlans(std::vector<std::pair<PlanRecord, LaneShare>> plans);
  void LaneResumed(const PlanRecord& record, const absl::Status& opened,
                   Effects& effects);

  // engine_words.cc
  void AdoptPins(const std::map<uint64_t, CopyRef>& pins);
  void PinCame(const CopyRef& copy, const absl::Status& status);
  void UnpinComing(const CopySelector& which, CopyTotals& totals);
  void AdoptLoadCaps(const std::map<DeviceIndex, LoadCap>& caps);
  void KeepShare(ShareOf of, const ShareOptions& share);

  // engine_sessions.cc
  void Accept(SessionId session, SessionCall call) override;
  void Serve(SessionId session, SessionCall& call, Effects& effects);
  // Requests that the node does not answer at once; so are plans and permits.
  void Start(SessionId session, Call<RegisterModelArgs> call, Effects& effects);
  void Start(SessionId session, Call<PublishArgs> call, Effects& effects);
  void Start(SessionId session, Call<StageArgs> call, Effects& effects);
  void Start(SessionId session, Call<ReadImageArgs> call, Effects& effects);
  void Start(SessionId session, Call<ArenaArgs> call, Effects& effects);
  void Start(SessionId session, Call<SetPlanArgs> call, Effects& effects);
  void Start(SessionId session, Call<ClearPlanArgs> call, Effects& effects);
  void Start(SessionId session, Call<SpareArgs> call, Effects& effects);
  void Start(SessionId session, Call<OpenPermitArgs> call, Effects& effects);
  void Start(SessionId session, Call<ClosePermitArgs> call, Effects& effects);
  CopyRef PlaceOf(const StageArgs& args) const;
  absl::StatusOr<std::vector<GroupHeat>> ReportHeat(SessionId session,
                                                    const HeatArgs& args);
  // Takes an opened model, from any thread.
  void AddOpened(SessionId session, std::optional<Readers> readers,
                 absl::StatusOr<OpenedModel> opened, Done<ModelPtr> done);
  void MakeStreamers();
  // All threads except the engine's own.
  absl::Status StartThreads();
  absl::Status MakeSlabMakers();

  // engine_plans.cc
  void StartPlan(SessionId session, SetPlanArgs args, Done<OpenedPlan> done,
                 Effects& effects);
  void OpenLane(SessionId session, const SetPlanArgs& args, PlanGrant grant,
                Done<OpenedPlan> done);
  void Opened(SessionId session, OpenedPlan plan, Done<OpenedPlan> done);
  static LaneSpec SpecOf(const PlanRecord& record);
  void LaneOpened(const PlanGrant& grant, const ShareOptions& share,
                  Effects& effects);
  void KeepPlan(const PlanRecord& record, const LaneShare& lane);
  void PlanEnded(const EndedPlan& ended);
  void GroupHeld(const HeldGroup& held);
  void PlanCrowded(const CrowdedPlan& crowded);
  absl::StatusOr<ShareChanged> SetPlanShare(PlanId plan,
                                            const ShareChange& change);
  absl::StatusOr<ShareChanged> SetLoadShare(DeviceIndex device,
                                            const ShareChange& change);
  void TakeBackStrays(PlanId plan, const ReadAhead& ahead);
  void HostUsed(PlanId plan, LaneGroup group, absl::Duration step,
                Effects& effects);
  void HostReturned(PlanId plan, LaneGroup group, Effects& effects);
  void HostWanted(PlanId plan, LaneGroup group, Effects& effects);
  Streamer& StreamerOf(DeviceIndex device) {
    return *streamers_[device.number()];
  }

  // engine_admin.cc
  void Accept(AdminCall call) override;
  void Serve(AdminCall& call, Effects& effects);
  // Starts a request that the node does not answer at once.
  void Start(Call<EndSessionArgs> call, Effects& effects);
  void Start(Call<LoadArgs> call, Effects& effects);
  void Start(Call<CheckArgs> call, Effects& effects);
  void Start(Call<PinArgs> call, Effects& effects);
  absl::StatusOr<CopyTotals> Unpin(const CopySelector& which, Effects& effects);
  absl::StatusOr<CopyTotals> Evict(const EvictArgs& args, Effects& effects);
  absl::StatusOr<ShareChanged> SetShare(const SetShareArgs& args);

  using Event = absl::AnyInvocable<void(Effects&)>;
  // A session some of whose plans' lanes are still to be resumed.
  struct Resuming {
    uint64_t lanes = 0;
    std::vector<std::pair<Resumed, Done<Resumed>>> answers;  // To be sent then.
  };
  static void AnswerResumed(Resuming resuming);
  // Runs `event` on the engine's thread, then carries out its effects.
  void Post(Event event) ABSL_LOCKS_EXCLUDED(mu_);
  void Begin() override {}
  // Runs one event and its effects, or what is due.
  absl::Duration Turn() override ABSL_LOCKS_EXCLUDED(mu_);
  bool Wait(absl::Duration limit) override ABSL_LOCKS_EXCLUDED(mu_);
  bool over() const override { return over_; }
  absl::Duration TurnOfTheEnd();
  bool Stopping() const ABSL_LOCKS_EXCLUDED(mu_);
  void RefusePending();
  void Handle(Event& event);

  // engine_view.cc
  NodeView View() const;
  Counters CountersNow() const;
  EngineStats StatsNow() const;
  void Refused(const absl::Status& status);

  void Carry(Effects effects);
  void ReportSpillFailure(const NodeEvent& event);
  void LogAnswer(const Answer& answer, const Pending& asked);
  RequestId Await(SessionId session, OnReply on_reply, TracedWait waits = {});

  // engine_trace.cc. trace() may be called always, the others only during a
  // recording.
  TraceRecorder* trace() const { return parts_.mover.trace; }
  TraceEvent EventOf(RequestId id, const Pending& pending) const;
  void TellWaits();
  void TellAnswered(RequestId id, const Pending& pending,
                    const absl::Status& status);
  void TellHandled(absl::Time begin, absl::Duration took);
  struct Checking;
  void CheckNext(std::shared_ptr<Checking> all, Effects& effects);
  struct Bringing;
  void Bring(std::shared_ptr<Bringing> all, Effects& effects);
  // Brings up each copy as `how` says, which lacks copy and request; calls
  // `each` per arrival or refusal.
  void BringAll(std::vector<CopyRef> copies, BringArgs how,
                absl::AnyInvocable<void(const CopyRef&, absl::Status)> each,
                Effects& effects);

  EngineParts parts_;  // Fixed once Create has returned.
  NoteRing notes_;
  const absl::Time started_;

  // Used by the engine's thread only.
  Node node_;
  Book book_;  // Of records for a successor.
  std::unique_ptr<Mover> mover_;
  EngineLog log_;
  std::map<PlanId, ReadAhead> lanes_;
  std::map<PlanId, ShareOptions> shares_;  // Of lanes, as last set.
  // To run once the plan has been freed.
  std::map<PlanId, Event> after_plan_;
  std::map<RequestId, Pending> pending_;
  std::vector<RequestId> new_waits_;  // Of this event, if recorded.
  NodeTrace node_trace_;
  std::map<SessionId, Resuming> resuming_;
  SessionWords words_{node_, *parts_.clock};
  // Sessions told to end, and the request that waits for it.
  std::map<SessionId, Done<void>> ending_;
  std::map<uint64_t, absl::AnyInvocable<void(const NodeEvent&)>> watchers_;
  uint64_t last_id_ = 0;
  uint64_t moving_ = 0;       // Transfers under way.
  uint64_t slow_events_ = 0;  // Longer than kSlowEvent.
  absl::Duration longest_event_;
  uint64_t handled_ = 0;  // Events.
  TimeHistogram slow_event_times_;
  std::array<uint64_t, 17> refused_ = {};  // By absl::StatusCode.
  uint64_t opening_ = 0;                   // Models with the openers.
  uint64_t next_opener_ = 0;
  bool saw_stopping_ = false;
  bool over_ = false;
  bool reported_unsaved_ = false;
  PersistedInstance instance_;
  // Pins of the last hoistd without a copy yet; false: unpinned meanwhile.
  std::map<CopyRef, bool> coming_pins_;
  uint64_t load_rate_ = 0;               // From hoistd.toml.
  std::vector<ResumedSession> resumed_;  // Until TakeResumed.

  OpenFiles open_files_;  // Thread-safe; also used by openers and mover.

  mutable absl::Mutex mu_;
  TimedCondVar changed_;  // Of the next two.
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Executor> openers_[2];  // They post: destroyed before mu_.
  // One per device. They post too.
  std::vector<std::unique_ptr<SlabMaker>> slab_makers_;
  // One per device. They copy into slabs and post: destroyed before both.
  std::vector<std::unique_ptr<Streamer>> streamers_;
  PermitBook permits_;  // Its desks post too.
  std::unique_ptr<Running> running_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_ENGINE_H_
