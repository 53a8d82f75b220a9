// hoistd's one door: every verb, once, whoever asks.
//
// The session socket and gRPC both end here. A verb runs on the engine's
// thread, which alone owns core's Node; work that waits (opening files, disk,
// copies) goes elsewhere and comes back. So the brain needs no lock, and the
// order of events is one order.
#ifndef HOIST_DAEMON_ENGINE_ENGINE_API_H_
#define HOIST_DAEMON_ENGINE_ENGINE_API_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/explanation.h"
#include "daemon/core/facts.h"
#include "daemon/core/requests.h"
#include "daemon/core/snapshot.h"
#include "daemon/terms/device.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/io_engine.h"
#include "daemon/terms/tier.h"
#include "daemon/trace/recorder.h"

namespace hoistd {

template <typename T>
using Done = absl::AnyInvocable<void(absl::StatusOr<T>)>;
using DoneStatus = absl::AnyInvocable<void(absl::Status)>;
// What hoistd says to a session of its own accord: to close slabs, which
// SlabsClosed answers; or why it is to end: it lets go of all that it has, and
// then closes.
using SessionWord = std::variant<SlabAsk, absl::Status>;
using OnSessionWord = absl::AnyInvocable<void(const SessionWord&)>;

// A session that the last hoistd had, and that goes on over its socket; or that
// does not, which its client is to be told.
struct ResumedSession {
  SessionId id;
  Peer peer;
  std::shared_ptr<hoist::UniqueFd> socket;
  uint32_t protocol = 0;  // As in OpenSessionArgs.
  // Not OK: why it ends. The engine does not know it then.
  absl::Status ended;
};

// Threads:  thread-safe; every call returns at once. Callbacks run on the
//           engine's thread, once each, and must not block; they may call the
//           engine. After Stop() they get Unavailable.
// Errors:   NotFound (no such session, model, group, lease), PermissionDenied,
//           ResourceExhausted (with what would be enough), Unavailable
//           (draining, stopping), DataLoss.
class EngineApi {
 public:
  virtual ~EngineApi() = default;

  // Sessions and their verbs. `on_word` runs as callbacks do, while the session
  // is open; nullptr: nobody listens.
  virtual void OpenSession(OpenSessionArgs args, OnSessionWord on_word,
                           Done<SessionId> done) = 0;
  // A session that the last hoistd had says what it has, once; see
  // Node::Resume. `on_word` as above.
  virtual void Resume(SessionId session, ResumeArgs has, OnSessionWord on_word,
                      Done<Resumed> done) = 0;
  // Gives back all that the session holds. Again, or unknown: nothing happens.
  virtual void CloseSession(SessionId session) = 0;
  virtual void RegisterModel(SessionId session, RegisterModelArgs args,
                             Done<ModelPtr> done) = 0;
  virtual void Publish(SessionId session, PublishArgs args,
                       Done<ModelPtr> done) = 0;
  virtual void DescribeModel(SessionId session, std::string name,
                             Done<ModelPtr> done) = 0;
  // By content, whatever it is called; see Node::FindContent.
  virtual void FindContent(SessionId session, Content content,
                           Done<ModelPtr> done) = 0;
  // PermissionDenied: it is another user's.
  virtual void ForgetModel(SessionId session, ModelId model,
                           DoneStatus done) = 0;
  virtual void Stage(SessionId session, StageArgs args,
                     Done<LeaseGrant> done) = 0;
  // As Stage, but the image lies in an IPC slab (gRPC workers on CUDA).
  virtual void StageShared(SessionId session, StageArgs args,
                           Done<LeaseGrant> done) = 0;
  // Copies a group's image into the client's memfd, bringing it up to the host
  // for that. InvalidArgument: the memfd is not what ReadImage needs.
  virtual void ReadImage(SessionId session, ReadImageArgs args,
                         DoneStatus done) = 0;
  // Returns when the groups are queued, not when they have arrived.
  virtual void Prefetch(SessionId session, PrefetchArgs args,
                        DoneStatus done) = 0;
  virtual void Release(SessionId session, std::vector<LeaseId> leases,
                       DoneStatus done) = 0;
  virtual void ReportHeat(SessionId session, HeatArgs args,
                          Done<std::vector<GroupHeat>> done) = 0;
  virtual void SetOrder(SessionId session, ModelId model,
                        std::vector<GroupIndex> order, DoneStatus done) = 0;
  // Of the slabs that `closed` answers for, those it names are not open any
  // more.
  virtual void SlabsClosed(SessionId session, SlabsClosedArgs closed,
                           DoneStatus done) = 0;

  // Sets a plan and opens its lane. What it replaces ends first, unless the
  // request itself is refused: then it stands, and the code is
  // ResourceExhausted or InvalidArgument, which no later refusal has. Aborted:
  // it ended, and there was no space for the new one.
  virtual void SetPlan(SessionId session, SetPlanArgs args,
                       Done<OpenedPlan> done) = 0;
  virtual void ClearPlan(SessionId session, PlanId plan, DoneStatus done) = 0;

  // Leases memory that the session writes to; see NodeArenas::Open. Its slabs'
  // descriptors are borrowed, as those of a lease are. Unimplemented: the node
  // has none.
  virtual void OpenArena(SessionId session, ArenaArgs args,
                         Done<ArenaGrant> done) = 0;
  virtual void CloseArena(SessionId session, ArenaId arena,
                          DoneStatus done) = 0;
  // A copier ends with its session. ResourceExhausted: the session, or its
  // user, has too many.
  virtual void OpenCopier(SessionId session, OpenCopierArgs args,
                          Done<OpenedCopier> done) = 0;
  virtual void CloseCopier(SessionId session, CopierId copier,
                           DoneStatus done) = 0;

  // Has a session end: tells its client, which lets go of all that it has and
  // closes it; only then is its memory given to others. Calls back when it has,
  // with what it was before. NotFound: there is none that `asker` may know of.
  // FailedPrecondition: its client does not listen (gRPC's do not). Aborted:
  // somebody else has asked for its end since, and is told.
  virtual void EndSession(Peer asker, SessionId session,
                          Done<SessionSnapshot> done) = 0;

  // Admin's verbs; the caller has checked that the peer is an admin.
  virtual void Snapshot(Done<NodeSnapshot> done) = 0;
  // Of a model that this means to `asker`, an admin; of one group of it, or,
  // where `group` is empty, of all. NotFound.
  virtual void Explain(Peer asker, std::string model, std::string group,
                       Done<ModelExplanation> done) = 0;
  // Brings all groups of a model up to `to`, evicting other models' idle copies
  // but none of its own. `progress` runs after each group.
  virtual void Load(ModelId model, TierAt to,
                    absl::AnyInvocable<void(const LoadProgress&)> progress,
                    Done<LoadProgress> done) = 0;
  // As Node::Check, of each published group of a model, or of all of them if
  // `model` is empty. `progress` runs after each group.
  virtual void Check(CheckWish wish,
                     absl::AnyInvocable<void(const CheckProgress&)> progress,
                     Done<CheckProgress> done) = 0;
  virtual void Pin(CopySelector which, absl::Duration deadline,
                   Done<CopyTotals> done) = 0;
  virtual void Unpin(CopySelector which, Done<CopyTotals> done) = 0;
  virtual void Evict(CopySelector which, bool forget,
                     Done<CopyTotals> done) = 0;
  // How a plan, a copier, or a device's loads, share its link. NotFound: no
  // such plan, or it streams nothing; no such copier; or no such device.
  // InvalidArgument: loads have neither weight nor priority.
  virtual void SetShare(ShareOf of, ShareChange change,
                        Done<ShareChanged> done) = 0;
  // From now on sessions and stages are refused; false takes that back.
  virtual void SetDraining(bool draining, DoneStatus done) = 0;
  // `on_event` runs on the engine's thread until Unsubscribe has called back.
  virtual void Subscribe(absl::AnyInvocable<void(const NodeEvent&)> on_event,
                         Done<uint64_t> done) = 0;
  virtual void Unsubscribe(uint64_t subscription, DoneStatus done) = 0;
  // Records what moves and what waits, until what it gives is stopped.
  // ResourceExhausted: somebody records already. Unimplemented: it cannot.
  virtual void Trace(Done<std::unique_ptr<TraceRecording>> done) = 0;

  virtual NodeFacts facts() const = 0;
  virtual NodeNotes notes() const = 0;
  virtual absl::Time Now() const = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_ENGINE_ENGINE_API_H_
