// The engine: one thread that owns the brain, with the roads in and out of it.
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
#include "daemon/copier/copier_desk.h"
#include "daemon/core/node.h"
#include "daemon/core/node_measure.h"
#include "daemon/engine/engine_api.h"
#include "daemon/engine/engine_log.h"
#include "daemon/engine/kept_host.h"
#include "daemon/engine/kept_node.h"
#include "daemon/engine/model_opener.h"
#include "daemon/engine/note_ring.h"
#include "daemon/engine/open_files.h"
#include "daemon/engine/read_ahead.h"
#include "daemon/engine/slab_maker.h"
#include "daemon/io/source_file.h"
#include "daemon/mover/mover.h"
#include "daemon/store/spill_store.h"
#include "daemon/stream/streamer.h"
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
  std::vector<std::string> notes;  // For `status`.
  // What outlives hoistd, for its successor; the engine's alone from now on.
  // nullptr: nothing does.
  Keep* keep = nullptr;
  FoundOnHost kept;  // The last one's; in the host pool.
  FoundNode found;   // And on devices.
  // By which clients know this one, if it takes over from none.
  std::array<uint8_t, 16> new_instance = {};
  // All that the last one wrote.
  std::map<KeptKey, std::string> kept_records;
  // For the engine, its openers, mover, streamers and what makes slabs;
  // nullptr: the system's.
  // Those of the links are to be the same.
  Threads* threads = nullptr;
};

// What who asked waits for, for recordings.
struct TracedWait {
  std::optional<TraceKind> kind;  // nullopt: nothing that is recorded.
  GroupKey key;
  DeviceIndex device;
  absl::Time since = absl::InfinitePast();  // If that was recorded.
  bool told = false;
};

// Threads:  as EngineApi says. Two workers open and parse files, but those
// whose
//           file system may hang: errands' threads do that.
// Owns:     the node, the mover and the devices' slabs. Borrows the parts.
// Bounds:   events queue; each is a request (bounded by sessions) or the end of
//           a transfer (bounded by the pools).
// Restart:  Create restores what the spill store holds, and what was kept.
class Engine final : public EngineApi, private Loop {
 public:
  // An event that takes longer holds up whoever else asks, and is counted.
  static constexpr absl::Duration kSlowEvent = absl::Milliseconds(5);

  static absl::StatusOr<std::unique_ptr<Engine>> Create(EngineParts parts);
  // Answers what is open with Unavailable, waits for transfers and for files
  // that are being opened, joins. Callbacks may call the engine to the last.
  // What hangs is waited for until its deadline, unless the errands have been
  // stopped.
  ~Engine() override;

  // More of the host pool may be used.
  void GrowHost(uint64_t ready_bytes);
  // A new keeper is there. OK too where nothing is kept.
  void StoreAgain(DoneStatus done);
  // As Node::SaveAll.
  void SaveAll(Done<uint64_t> left);
  // From now on.
  void SetQuotas(QuotaOptions quota);
  // The operator caps loads so, on all devices, from now on: what an admin had
  // set before counts no more.
  void SetLoadRate(uint64_t bytes_per_second);
  // What clients know this hoistd by, and the last one if this took over what
  // that had; and how many there were before, in a row. Fixed.
  const KeptInstance& instance() const { return instance_; }
  // Which sessions the last one had, with their sockets: once, by the thread
  // that made this. Each is to say what it has, with Resume, or to be closed;
  // but for those that have ended, who are to be told so.
  std::vector<ResumedSession> TakeResumed();
  // Answers once all that was asked before is done: it lives.
  void Ping(DoneStatus done);
  // For metrics, in steps between which others are served; of models, the so
  // many that use most by name. Unavailable: it is stopping.
  void Measure(size_t models, Done<NodeMeasure> done);
  // Something that `status` should show, and the log.
  void AddNote(std::string note);

  void OpenSession(OpenSessionArgs args, OnSessionWord on_word,
                   Done<SessionId> done) override;
  void Resume(SessionId session, ResumeArgs has, OnSessionWord on_word,
              Done<Resumed> done) override;
  void CloseSession(SessionId session) override;
  void RegisterModel(SessionId session, RegisterModelArgs args,
                     Done<ModelPtr> done) override;
  void Publish(SessionId session, PublishArgs args,
               Done<ModelPtr> done) override;
  void DescribeModel(SessionId session, std::string name,
                     Done<ModelPtr> done) override;
  void FindContent(SessionId session, Content content,
                   Done<ModelPtr> done) override;
  void ForgetModel(SessionId session, ModelId model, DoneStatus done) override;
  void Stage(SessionId session, StageArgs args, Done<LeaseGrant> done) override;
  void StageShared(SessionId session, StageArgs args,
                   Done<LeaseGrant> done) override;
  void ReadImage(SessionId session, ReadImageArgs args,
                 DoneStatus done) override;
  void Prefetch(SessionId session, PrefetchArgs args, DoneStatus done) override;
  void Release(SessionId session, std::vector<LeaseId> leases,
               DoneStatus done) override;
  void ReportHeat(SessionId session, HeatArgs args,
                  Done<std::vector<GroupHeat>> done) override;
  void SetOrder(SessionId session, ModelId model, std::vector<GroupIndex> order,
                DoneStatus done) override;
  void SlabsClosed(SessionId session, SlabsClosedArgs closed,
                   DoneStatus done) override;
  void SetPlan(SessionId session, SetPlanArgs args,
               Done<OpenedPlan> done) override;
  void ClearPlan(SessionId session, PlanId plan, DoneStatus done) override;
  void OpenArena(SessionId session, ArenaArgs args,
                 Done<ArenaGrant> done) override;
  void CloseArena(SessionId session, ArenaId arena, DoneStatus done) override;
  void OpenCopier(SessionId session, OpenCopierArgs args,
                  Done<OpenedCopier> done) override;
  void CloseCopier(SessionId session, CopierId copier,
                   DoneStatus done) override;
  void SetShare(ShareOf of, ShareChange change,
                Done<ShareChanged> done) override;
  void EndSession(Peer asker, SessionId session,
                  Done<SessionSnapshot> done) override;
  void Snapshot(Done<NodeSnapshot> done) override;
  void Explain(Peer asker, std::string model, std::string group,
               Done<ModelExplanation> done) override;
  void Load(ModelId model, TierAt to,
            absl::AnyInvocable<void(const LoadProgress&)> progress,
            Done<LoadProgress> done) override;
  void Check(CheckWish wish,
             absl::AnyInvocable<void(const CheckProgress&)> progress,
             Done<CheckProgress> done) override;
  void Pin(CopySelector which, absl::Duration deadline,
           Done<CopyTotals> done) override;
  void Unpin(CopySelector which, Done<CopyTotals> done) override;
  void Evict(CopySelector which, bool forget, Done<CopyTotals> done) override;
  void SetDraining(bool draining, DoneStatus done) override;
  void Subscribe(absl::AnyInvocable<void(const NodeEvent&)> on_event,
                 Done<uint64_t> done) override;
  void Unsubscribe(uint64_t subscription, DoneStatus done) override;
  void Trace(Done<std::unique_ptr<TraceRecording>> done) override;
  NodeFacts facts() const override;
  NodeNotes notes() const override { return notes_.All(); }
  absl::Time Now() const override { return parts_.clock->Now(); }

  // The books, for those who run the engine's turns themselves, between turns.
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
  void Restore();
  std::vector<RestoredGroup> Published();
  void NoteMissing(const ModelRoll::Models& there);
  void RestorePublished(const std::vector<RestoredGroup>& published);
  void RestoreParts();
  void WriteKept();
  absl::Status Write(const Kept& kept);
  void Abandon();
  bool Keeps() const { return parts_.keep != nullptr && !abandoned_; }

  // engine_adopt.cc
  absl::Status Adopt(const std::vector<RestoredGroup>& published,
                     std::map<ModelId, OpenedModel>& opened);
  absl::Status CheckDevices(const KeptInstance& instance) const;
  absl::StatusOr<OpenedModel> OpenKept(const ModelRecord& record);
  absl::Status AdoptSlabs();
  void ForgetPublishedWithout(Node& restored);
  absl::Status PutBack(const std::map<ModelId, OpenedModel>& opened,
                       Node& node) const;
  void DropFound(const absl::Status& why);
  void BeginInstance(bool adopted);
  void ResumePlans();
  void DropUnclaimed();
  void LaneResumed(const PlanRecord& record, const absl::Status& opened,
                   Effects& effects);

  // engine_words.cc
  void Noted(const absl::Status& written);
  void KeepPin(const KeptPin& pin);
  void ForgetPins(ModelId model);
  void AdoptPins();
  void PinCame(const CopyRef& copy, const absl::Status& status);
  void UnpinComing(const CopySelector& which, CopyTotals& totals);
  void AdoptLoadCaps();
  void KeepShare(ShareOf of, const ShareOptions& share);

  void KeepModel(const Model& model, const SourceFiles& files);
  absl::Status WriteModelOfFiles(const Model& model, const SourceFiles& files);
  // What RegisterModel opened, from any thread.
  void AddOpened(SessionId session, std::optional<Readers> readers,
                 absl::StatusOr<OpenedModel> opened, Done<ModelPtr> done);
  void MakeStreamers();
  void MakeSlabMakers();

  // engine_plans.cc
  void StartPlan(SessionId session, SetPlanArgs args, Done<OpenedPlan> done,
                 Effects& effects);
  void OpenLane(SessionId session, const SetPlanArgs& args, PlanGrant grant,
                Done<OpenedPlan> done);
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

  // engine_copiers.cc
  struct OpenCopierOf {
    SessionId session;
    User user;
    DeviceIndex device;
    ShareOptions share;
  };
  absl::Status CheckCopier(SessionId session, DeviceIndex device) const;
  void CloseCopiersOf(SessionId session);
  absl::StatusOr<ShareChanged> SetCopierShare(CopierId copier,
                                              const ShareChange& change);
  void AddCopiers(DeviceIndex device, LinkSnapshot& link) const;

  using Event = absl::AnyInvocable<void(Effects&)>;
  // A session whose plans' lanes are still to be gone on with.
  struct Resuming {
    uint64_t lanes = 0;
    std::vector<std::pair<Resumed, Done<Resumed>>> answers;  // For then.
  };
  static void AnswerResumed(Resuming resuming);
  // Runs `event` on the engine's thread, then does what came of it.
  void Post(Event event) ABSL_LOCKS_EXCLUDED(mu_);
  void Begin() override {}
  // An event and what came of it, or what is due.
  absl::Duration Turn() override ABSL_LOCKS_EXCLUDED(mu_);
  bool Wait(absl::Duration limit) override ABSL_LOCKS_EXCLUDED(mu_);
  bool over() const override { return over_; }
  absl::Duration TurnOfTheEnd();
  bool Stopping() const ABSL_LOCKS_EXCLUDED(mu_);
  void RefusePending();
  void Handle(Event& event);
  void MeasureNext(std::shared_ptr<MeasureWalk> walk, Done<NodeMeasure> done);
  void Refused(const absl::Status& status);
  LinkSnapshot SnapshotLink(DeviceIndex device) const;
  void Carry(Effects effects);
  void TellOfSaving(const NodeEvent& event);
  void LogAnswer(const Answer& answer, const Pending& asked);
  RequestId Await(SessionId session, OnReply on_reply, TracedWait waits = {});

  // engine_trace.cc; the first may be asked whenever, the others while
  // something is recorded.
  TraceRecorder* trace() const { return parts_.mover.trace; }
  void NameAll();
  void NameGroup(GroupKey key);
  void NamePlan(const PlanGrant& grant, SessionId session);
  TraceEvent EventOf(RequestId id, const Pending& pending) const;
  void TellWaits();
  void TellAnswered(RequestId id, const Pending& pending,
                    const absl::Status& status);
  void TellHandled(absl::Time begin, absl::Duration took);
  void TellUsed(absl::Time now);
  // On an opener's thread.
  void StageIn(bool shared, SessionId session, StageArgs args,
               Done<LeaseGrant> done);
  CopyRef PlaceOf(const StageArgs& args, bool shared) const;
  struct Checking;
  void CheckNext(std::shared_ptr<Checking> all, Effects& effects);
  struct Bringing;
  void Bring(std::shared_ptr<Bringing> all, Effects& effects);
  // `how` but for the copy and the request; `each` as each arrives or is
  // refused.
  void BringAll(std::vector<CopyRef> copies, BringArgs how,
                absl::AnyInvocable<void(const CopyRef&, absl::Status)> each,
                Effects& effects);

  EngineParts parts_;  // Fixed once Create has returned.
  NoteRing notes_;
  const absl::Time started_;

  // The engine thread's alone.
  Node node_;
  std::unique_ptr<Mover> mover_;
  EngineLog log_;
  std::map<PlanId, ReadAhead> lanes_;
  std::map<PlanId, ShareOptions> shares_;  // Of the lanes, as last told them.
  std::map<CopierId, OpenCopierOf> copiers_;
  uint64_t last_copier_ = 0;
  // What is to be done once a plan has been freed.
  std::map<PlanId, Event> after_plan_;
  std::map<RequestId, Pending> pending_;
  std::vector<RequestId> new_waits_;  // Of this event, if it is recorded.
  absl::Time told_used_ = absl::InfinitePast();
  std::vector<uint64_t> used_;  // As last told; the host's comes last.
  std::map<SessionId, Resuming> resuming_;
  std::map<SessionId, OnSessionWord> listeners_;
  // Sessions that were told to end, and who waits for it.
  struct Ending {
    SessionSnapshot was;
    Done<SessionSnapshot> done;
  };
  std::map<SessionId, Ending> ending_;
  std::map<uint64_t, absl::AnyInvocable<void(const NodeEvent&)>> watchers_;
  uint64_t last_id_ = 0;
  uint64_t moving_ = 0;       // Transfers under way.
  uint64_t slow_events_ = 0;  // That took more than kSlowEvent.
  absl::Duration longest_event_;
  uint64_t handled_ = 0;  // Events.
  TimeHistogram slow_event_times_;
  std::array<uint64_t, 17> refused_ = {};  // By absl::StatusCode.
  uint64_t opening_ = 0;                   // Models with the openers.
  uint64_t next_opener_ = 0;
  bool saw_stopping_ = false;
  bool over_ = false;
  bool told_unkept_ = false;
  bool told_unkept_word_ = false;
  bool told_unsaved_ = false;
  bool abandoned_ = false;  // What is kept.
  KeptInstance instance_;
  uint64_t last_file_ = 0;  // Of the descriptors that were kept of models.
  std::map<CopyRef, uint64_t> pins_;  // That are kept, by their numbers.
  uint64_t last_pin_ = 0;
  // The last hoistd's that are not there yet; false: unpinned meanwhile.
  std::map<CopyRef, bool> coming_pins_;
  uint64_t load_rate_ = 0;                      // As hoistd.toml has it.
  std::vector<SlabShare> adopted_shares_;       // As parts_.found.slabs.
  std::vector<ResumedSession> ended_sessions_;  // Until they are taken.

  OpenFiles open_files_;  // Thread-safe; the openers' and mover's.

  mutable absl::Mutex mu_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Executor> openers_[2];  // They post: gone before mu_.
  // One a device. They post too.
  std::vector<std::unique_ptr<SlabMaker>> slab_makers_;
  // One a device. They copy into slabs and post: gone before both.
  std::vector<std::unique_ptr<Streamer>> streamers_;
  std::vector<std::unique_ptr<CopierDesk>> desks_;  // One a device.
  std::unique_ptr<Running> running_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_ENGINE_H_
