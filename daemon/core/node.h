// The brain of hoistd: which copy is where, who holds it, what moves next.
//
// It moves no data and waits for nothing. Each call is one event: it changes
// the books and puts into `Effects` what is to be done about it: transfers to
// start, answers to give. Given the same calls it does the same things, so it
// can be tested, and simulated, without threads, clocks or I/O.
//
// Each book keeps one thing right by itself, and says which in its header
// (README.md lists them). What is left to Node is what concerns several: in
// which order an event changes them, who is tried again, and what is said.
//
// How a group comes up: a Need waits for its copy. First the copy gets space on
// its tier (evicting what is worth least), then, on a device, the host copy is
// brought up the same way, then a transfer fills it. Space on the device comes
// before space on the host, so that a need that cannot be met holds nothing
// that others could use. NeedBook knows which needs a change concerns; those
// are tried again.
#ifndef HOIST_DAEMON_CORE_NODE_H_
#define HOIST_DAEMON_CORE_NODE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/arena_book.h"
#include "daemon/core/copy_table.h"
#include "daemon/core/device_names.h"
#include "daemon/core/device_space.h"
#include "daemon/core/effects.h"
#include "daemon/core/extent_map.h"
#include "daemon/core/group_check.h"
#include "daemon/core/heat_book.h"
#include "daemon/core/incoming_book.h"
#include "daemon/core/keep_value.h"
#include "daemon/core/kept.h"
#include "daemon/core/model_book.h"
#include "daemon/core/need_book.h"
#include "daemon/core/node_options.h"
#include "daemon/core/order_book.h"
#include "daemon/core/part_book.h"
#include "daemon/core/plan_book.h"
#include "daemon/core/quota.h"
#include "daemon/core/requests.h"
#include "daemon/core/restored_extent.h"
#include "daemon/core/session_book.h"
#include "daemon/core/slab_book.h"
#include "daemon/core/snapshot.h"
#include "daemon/core/transfer.h"
#include "daemon/model/model_name.h"
#include "daemon/terms/device.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// Threads:  one at a time.
// Owns:     the books.
// Bounds:   what one user holds is bounded by `quota`; sessions in all, and
//           requests, by those who call.
// Restart:  not persistent; files are registered again, published groups are
//           restored from what the store and the keeper have.
class Node {
 public:
  Node(const NodeOptions& options, std::vector<DeviceInfo> devices);

  // --- Sessions -----------------------------------------------------------

  // Unavailable: draining. ResourceExhausted: the user has too many.
  absl::StatusOr<SessionId> OpenSession(const OpenSessionArgs& args,
                                        absl::Time now, Effects& effects);
  void CloseSession(SessionId session, absl::Time now, Effects& effects);
  // nullptr: there is none.
  const Peer* PeerOf(SessionId session) const;
  // As `asker` may see it. NotFound: it is none of theirs.
  absl::StatusOr<SessionSnapshot> Look(SessionId session, const Peer& asker,
                                       absl::Time now) const;
  // A restored session's client says what it has: what it does not name goes
  // back, since it never heard of it.
  Resumed Resume(SessionId session, const ResumeArgs& has, absl::Time now,
                 Effects& effects);

  // --- Models -------------------------------------------------------------

  // A model read from files. The user's own of that name and the same weights
  // is attached to, and so is one of the same files that everyone may read,
  // whosever it is. AlreadyExists: the user has other weights of that name, or
  // the same for other readers. ResourceExhausted: they have too many.
  absl::StatusOr<ModelPtr> AddModel(SessionId session,
                                    std::shared_ptr<const ModelSpec> spec,
                                    std::optional<Readers> readers,
                                    Effects& effects);
  // Before anything else happens; a model's groups in their order.
  // InvalidArgument: it is nowhere, or where it cannot be.
  absl::Status Restore(const RestoredGroup& restored);
  // Likewise, what the last hoistd had read of a file and that still lies in
  // the pool, for whoever registers that file. AlreadyExists: as another does.
  absl::Status Restore(uint64_t host_offset, const KeptPart& part);
  // Receives a group's image, which is `expected`, else DataLoss; the model.
  void Publish(RequestId request, SessionId session, const std::string& model,
               std::shared_ptr<const Group> group,
               std::shared_ptr<hoist::UniqueFd> memfd,
               std::optional<Readers> readers, std::optional<Content> expected,
               absl::Time deadline, absl::Time now, Effects& effects);
  // The model that a name means (MeantBy) for who asks; a session uses it from
  // then on. NotFound: there is none, or they may not read it.
  absl::StatusOr<ModelPtr> Find(SessionId session, const std::string& name);
  absl::StatusOr<ModelPtr> Find(const Peer& asker,
                                const std::string& name) const;
  // A published model of this content that the session may read: its user's
  // own, else root's, else one that everyone may read. Its bytes are those, for
  // hoistd hashed them itself. The session uses it from then on. NotFound.
  absl::StatusOr<ModelPtr> FindContent(SessionId session,
                                       const Content& content);
  // By id; NotFound if `session` may not read it.
  absl::StatusOr<ModelPtr> Find(SessionId session, ModelId model) const;
  // Whoever's it is. NotFound.
  absl::StatusOr<std::shared_ptr<const ModelSpec>> SpecOf(ModelId model) const;
  // Of the group's image; 0 if there is no such group.
  uint64_t BytesOf(GroupKey key) const;

  // --- Staging ------------------------------------------------------------

  // Brings a copy up, and leases or pins it. Replies, now or later.
  void Bring(const BringArgs& args, absl::Time now, Effects& effects);
  // Brings a group up to the host, keeps it there while its image is copied to
  // a client's memfd of `memfd_bytes`, and replies when that is over.
  void ReadImage(RequestId request, SessionId session, GroupKey key,
                 std::shared_ptr<hoist::UniqueFd> memfd, uint64_t memfd_bytes,
                 absl::Time deadline, absl::Time now, Effects& effects);
  // In order, as space allows, without a reply. To the disk: NodeEnding::Park.
  absl::Status Prefetch(SessionId session, const PrefetchArgs& args,
                        absl::Time now, Effects& effects);
  // NotFound: one of them is no lease of this session; the others go.
  absl::Status Release(SessionId session, const std::vector<LeaseId>& leases,
                       absl::Time now, Effects& effects);
  // Empty: none any more; the session is done with the model until it asks.
  absl::Status SetOrder(SessionId session, ModelId model,
                        std::vector<GroupIndex> order, absl::Time now,
                        Effects& effects);
  // What a session's passes read in place; what is known of that model.
  // OutOfRange: the model has no such group.
  absl::StatusOr<std::vector<GroupHeat>> ReportHeat(SessionId session,
                                                    const HeatArgs& args);
  // A session's answer to the ask of this number: of its slabs it has closed
  // these, and keeps the rest.
  void SlabsClosed(SessionId session, const SlabsClosedArgs& closed,
                   absl::Time now, Effects& effects);

  // --- Plans --------------------------------------------------------------

  // What would refuse the plan whatever else happens: bad numbers, a budget
  // that is too small or that cannot be promised, a device that is none.
  absl::Status CheckPlan(SessionId session, const SetPlanArgs& args) const;
  // Plans, and waits for the ring's space. Replies, now or later. What it
  // replaces has been ended and freed.
  void SetPlan(RequestId request, SessionId session, const SetPlanArgs& args,
               absl::Time now, Effects& effects);
  // NotFound: no such plan of this session; or it has ended.
  absl::Status EndPlan(SessionId session, PlanId plan, absl::Time now,
                       Effects& effects);
  // Nothing copies into the ring of this ended plan any more.
  void FreePlan(PlanId plan, absl::Time now, Effects& effects);
  // nullptr: there is none, or it has ended.
  const PlanGrant* FindPlan(PlanId plan) const;
  std::string NameOf(GroupKey key) const;
  // The slabs of the ring that the session has not been given. They are given
  // now: what it is told next may lie in them, so that it must be told of them
  // before. The plan stands.
  std::vector<SlabUse> GiveSlabs(PlanId plan);
  // Brings groups up to the host and keeps them there until Unhold or the
  // plan's end; `effects.held` tells, each once. Those that are held or asked
  // for already are not asked for again.
  void Hold(PlanId plan, const std::vector<GroupIndex>& groups, bool urgent,
            absl::Time now, Effects& effects);
  void Unhold(PlanId plan, GroupIndex group, absl::Time now, Effects& effects);
  // The session has used the group: eviction knows its order.
  void PlanUsed(PlanId plan, GroupIndex group, absl::Time now);
  // Of the host, by all plans.
  uint64_t held_bytes() const;
  // Of the host, what the user's plans hold and what they published that is
  // nowhere else; what is both counts once.
  uint64_t HostBytesOf(User uid) const;
  // What this plan may hold of the host in all, now: beside what others hold,
  // and within what its user may. A need that is urgent is held beyond that,
  // since the plan could not go on.
  uint64_t HoldableBytes(PlanId plan) const;

  // --- Admin --------------------------------------------------------------

  // The copies that `which` names and that exist, or all possible ones.
  absl::StatusOr<std::vector<CopyRef>> Select(const CopySelector& which,
                                              bool existing_only) const;
  CopyTotals Unpin(const std::vector<CopyRef>& copies, absl::Time now,
                   Effects& effects);
  CopyTotals Evict(const std::vector<CopyRef>& copies, absl::Time now,
                   Effects& effects, Leaving::Why why = Leaving::Why::kByAdmin);
  // Reads a published group's bytes on the host, on the disk and on devices,
  // and compares. What is damaged is put aside, so that it is never served; who
  // has leased it on a device keeps it, and nobody else gets it. With `repair`,
  // what is damaged on the disk and right on the host is written again, and
  // what is damaged on a device is loaded again where it lies, since who leases
  // it has its address; then it is said whose leases those are. Replies what
  // was found. InvalidArgument: it is of files.
  void Check(RequestId request, GroupKey key, bool repair, absl::Time now,
             Effects& effects);
  // Published groups: of the model that this means to who asks, or, where it is
  // empty, all. NotFound. InvalidArgument: that one is of files.
  absl::StatusOr<std::vector<GroupKey>> SelectToCheck(
      const Peer& asker, const std::string& model) const;
  // From now on. What is held beyond them stays.
  void SetQuotas(QuotaOptions quota) { quota_.SetOptions(std::move(quota)); }
  // Begins to write to the disk what is published and on none, if it can be;
  // how many bytes those are. Until it is 0 it is to be called again.
  uint64_t SaveAll(absl::Time now, Effects& effects);
  // FailedPrecondition: it is in use, by whom. nullptr: an admin asks.
  absl::Status Forget(ModelId model, absl::Time now, Effects& effects,
                      const Peer* asker = nullptr);
  // The same by a session. PermissionDenied: it is neither its user's nor is
  // that an admin. NotFound: nor may it read it.
  absl::Status ForgetBy(SessionId session, ModelId model, absl::Time now,
                        Effects& effects);
  // What is to be kept that was not taken yet, in order; nothing unless
  // NodeOptions::keeps. A successor must know it before effects of the same
  // event are carried out: what lies there is about to be used, or overwritten.
  std::vector<Kept> TakeKept() { return std::exchange(kept_, {}); }
  void SetDraining(bool draining, Effects& effects);
  NodeSnapshot Snapshot(absl::Time now) const;
  const QuotaBook& quota() const { return quota_; }
  // What `quota` must say, counted anew from all that is there.
  std::map<User, Holdings> CountHoldings() const;
  // That the books agree with each other; what does not is our bug. For tests:
  // looks at everything.
  void CheckBooks() const;

  // --- What happens -------------------------------------------------------

  void TransferDone(TransferId id, const absl::Status& status,
                    const TransferResult& result, absl::Time now,
                    Effects& effects);
  // A slab of Effects::slabs was made, and can be opened by this; or it could
  // not be made. Of one device in the order in which they were asked for.
  void SlabMade(DeviceIndex device, SlabId slab,
                const absl::StatusOr<SlabShare>& made, absl::Time now,
                Effects& effects);
  // One was zeroed; not OK: it was destroyed instead.
  void SlabZeroed(DeviceIndex device, SlabId slab, const absl::Status& zeroed,
                  absl::Time now, Effects& effects);
  // More of the host pool can be used.
  void GrowHost(uint64_t ready_bytes, absl::Time now, Effects& effects);
  // Refuses what has waited too long.
  void Tick(absl::Time now, Effects& effects);
  // When Tick must be called at the latest.
  absl::Time NextDeadline() const;

 private:
  friend class NodeArenas;
  friend class NodeEnding;
  friend class NodeRestore;
  friend class NodeMeasurer;
  friend class NodeExplainer;

  struct Shares;  // What of a tier is taken, as one who asks may know it.

  // node_plans.cc
  absl::StatusOr<PlanGrant> MakeGrant(SessionId session,
                                      const SetPlanArgs& args) const;
  uint64_t Promisable(SessionId session, const SetPlanArgs& args,
                      std::optional<ModelId> but) const;
  uint64_t BudgetThatDoes(SessionId session, const SetPlanArgs& args) const;
  absl::Status Fits(SessionId session, const SetPlanArgs& args,
                    const PlanGrant& grant) const;
  absl::Status CheckPromise(SessionId session, const SetPlanArgs& args,
                            const PlanGrant& grant) const;
  uint64_t BytesOf(const std::set<CopyRef>& copies,
                   std::optional<ModelId> but) const;
  void AdvancePlan(RequestId request, absl::Time now, Effects& effects);
  void AdvancePlans(absl::Time now, Effects& effects);
  void ExpirePlans(absl::Time now, Effects& effects);
  void PlanStands(RequestId request, const StandingPlan& plan,
                  Effects& effects);
  void StopPlan(PlanId id, Effects& effects);
  void HoldArrived(PlanId plan, const CopyRef& ref, Copy& copy,
                   Effects& effects);
  void DropHold(const StandingPlan& plan, GroupIndex group);
  void AskPlansForRoom(const Need& need, Effects& effects) const;
  void EndPlansOf(SessionId session, Effects& effects);
  absl::StatusOr<uint64_t> PlaceRing(const PendingPlan& pending, OwnerId owner,
                                     absl::Time now, Effects& effects);

  // node_slabs.cc
  void ApartMade(CopyRef ref, const absl::Status& made);
  std::vector<SlabUse> NewSlabs(SessionId session, DeviceIndex device,
                                uint64_t offset, uint64_t bytes);
  void LeaveSlabs(SessionId session, DeviceIndex device, uint64_t offset,
                  uint64_t bytes);
  void AskToClose(DeviceIndex device, const std::vector<SlabId>& slabs,
                  std::optional<User> uid, absl::Time now, Effects& effects);
  absl::Status AskForRoom(DeviceIndex device, const Want& want,
                          KeepValueFn worth, absl::Time now, Effects& effects);
  void LookAtAsks(absl::Time now, Effects& effects);
  void TakeSlabWork(Effects& effects);
  absl::Status CheckOpen(SessionId session, DeviceIndex device,
                         const std::vector<SlabSpec>& used, absl::Time now,
                         Effects& effects);
  std::map<Zone, uint64_t> ByZone(DeviceIndex device,
                                  const std::set<CopyRef>& copies) const;
  std::map<Zone, uint64_t> HeldByZone(DeviceIndex device,
                                      const std::set<CopyRef>& firm,
                                      bool idle_is_held) const;
  uint64_t LostTo(const SetPlanArgs& args, SessionId session) const;
  absl::Status MakeRoom(const PendingPlan& pending, absl::Time now,
                        Effects& effects);

  // node_promises.cc
  absl::Status CheckBesidePlans(const CopyRef& ref) const;
  static bool Busy(const Copy& copy);
  // Must follow each change of what keeps a device copy in its place.
  void Weigh(const CopyRef& ref, const Copy& copy);

  // node_quota.cc
  absl::Status FitsQuota(SessionId session, const SetPlanArgs& args,
                         const PlanGrant& grant) const;
  uint64_t QuotaRoom(SessionId session, const SetPlanArgs& args,
                     std::optional<ModelId> but) const;
  uint64_t HostRoom(User uid) const;

  // node_models.cc
  // It is not in use.
  void RemoveModel(ModelId model, const std::string& why, absl::Time now,
                   Effects& effects);

  // node_publish.cc
  void ExpireIncoming(absl::Time now, Effects& effects);
  uint64_t UncheckedBytesOf(User uid) const;
  bool ForgetDeserted(const Incoming& incoming, uint64_t bytes, absl::Time now,
                      Effects& effects);
  absl::Status MakeRoomToPublish(const Incoming& incoming, absl::Time now,
                                 Effects& effects);
  void AdvanceIncoming(RequestId request, absl::Time now, Effects& effects);
  void ReceiveDone(Incoming incoming, const absl::Status& status,
                   const Content& content, absl::Time now, Effects& effects);
  absl::StatusOr<ModelPtr> Adopt(const Incoming& incoming,
                                 const Content& content, absl::Time now,
                                 Effects& effects);
  static void Mend(ModelEntry& model, GroupIndex index, Effects& effects);
  void PlaceReceived(GroupKey key, const Incoming& incoming, absl::Time now,
                     Effects& effects);
  void DropIncoming(const Incoming& incoming);

  // node_stage.cc
  absl::Status CheckBring(const BringArgs& args);
  absl::Status CheckRead(SessionId session, GroupKey key,
                         uint64_t memfd_bytes) const;
  absl::Status CheckBudget(SessionId session, const CopyRef& copy) const;
  void StartRead(const Waiter& waiter, const CopyRef& ref, Copy& copy,
                 absl::Time now, Effects& effects);
  void Satisfy(const Waiter& waiter, const CopyRef& ref, Copy& copy,
               absl::Time now, Effects& effects);
  absl::Status MayOpen(const Waiter& waiter, const CopyRef& ref,
                       const Copy& copy, absl::Time now, Effects& effects);
  LeaseGrant Grant(const Waiter& waiter, const CopyRef& ref, Copy& copy,
                   absl::Time now);
  void Refuse(const Waiter& waiter, const CopyRef& ref, absl::Status why,
              Effects& effects);
  void ReleaseLease(LeaseId id, absl::Time now);

  // node_needs.cc
  Need& NeedFor(const CopyRef& copy, bool urgent, Effects& effects);
  void AddWaiter(Need& need, const Waiter& waiter);
  void Pump(absl::Time now, Effects& effects);
  void PumpNeeds(bool urgent, absl::Time now, Effects& effects);
  bool Advance(Need& need, absl::Time now, Effects& effects);
  void AdvanceDeviceFill(Need& need, Copy& copy, absl::Time now,
                         Effects& effects);
  bool FillInPlace(const Need& need, Copy& copy, absl::Time now,
                   Effects& effects);
  void StartHostFill(const CopyRef& ref, Copy& copy, bool urgent,
                     Effects& effects);
  void FailNeeds(GroupKey key, const absl::Status& status, Effects& effects);
  void FailNeed(const CopyRef& ref, const absl::Status& why, Effects& effects);
  bool Expire(Need& need, absl::Time now, Effects& effects);
  void AbandonSpace(const Need& need);
  absl::Status WaitingFor(const Need& need) const;
  bool Making(const Blocked& blocked) const;

  // node_host.cc
  bool InParts(GroupKey key) const;
  std::vector<SheetKey> SheetsOf(ModelId model) const;
  bool BringToHost(const CopyRef& ref, Copy& copy, Need& need, absl::Time now,
                   Effects& effects);
  bool BringParts(const CopyRef& ref, Copy& copy, Need& need, absl::Time now,
                  Effects& effects);
  struct PlacedSpan {
    SheetSpan span;
    uint64_t host_offset = 0;
    OwnerId owner;
  };
  absl::StatusOr<std::vector<PlacedSpan>> PlaceSpans(
      const std::vector<SheetKey>& sheets,
      const std::vector<SheetSpan>& missing, const Need& need, absl::Time now,
      Effects& effects);
  bool PlaceWhole(const SheetKey& sheet, const SheetSpan& span,
                  std::vector<PlacedSpan>& placed);
  void PlaceInPieces(const SheetKey& sheet, SheetSpan span,
                     std::vector<PlacedSpan>& placed);
  static uint64_t BytesOf(const std::vector<SheetSpan>& spans);
  void PartsMayBeThere(const CopyRef& ref, Copy& copy, absl::Time now,
                       Effects& effects);
  void HostPresent(const CopyRef& ref, Copy& copy, absl::Time now,
                   Effects& effects);
  void HostAbsent(const CopyRef& ref, Copy& copy, const absl::Status& status,
                  Effects& effects);
  void PartsFilled(TransferId filler, const absl::Status& status,
                   absl::Time now, Effects& effects);
  void LeaveParts(GroupKey key);
  void FreeExtents(const std::vector<FreedExtent>& freed);
  ImageRanges RangesOf(const CopyRef& ref, const Copy& copy) const;

  // node_space.cc
  bool Reserve(const CopyRef& ref, Copy& copy, Need& need, absl::Time now,
               Effects& effects);
  absl::StatusOr<uint64_t> AllocateHost(OwnerId owner, uint64_t bytes,
                                        const Need& need, absl::Time now,
                                        Effects& effects);
  absl::StatusOr<uint64_t> AllocateDevice(const CopyRef& ref, OwnerId owner,
                                          uint64_t bytes, const Need& need,
                                          absl::Time now, Effects& effects);
  absl::StatusOr<uint64_t> PlaceOnDevice(const CopyRef& ref, OwnerId owner,
                                         uint64_t bytes, const Need& need,
                                         absl::Time now, Effects& effects);
  absl::Status FreeDescriptors(Backing backing, const Need& need,
                               absl::Time now, Effects& effects);
  std::vector<CopyRef> CopiesOf(const std::vector<OwnerId>& owners) const;
  bool EvictAll(const std::vector<OwnerId>& victims, absl::Time now,
                Effects& effects);
  using Victims = std::optional<std::vector<OwnerId>>;
  using ChooseVictimsFn = absl::FunctionRef<Victims(KeepValueFn)>;
  Victims HostVictims(const Need& need, absl::Time now,
                      ChooseVictimsFn choose) const;
  Victims HostHole(uint64_t bytes, const Need& need, absl::Time now) const;
  bool CannotSpill(absl::Time now) const;
  bool CanSpill() const { return options_.spill_capacity_bytes > 0; }
  bool MaySpill(absl::Time now) const;      // And none has failed just now.
  bool Deserted(const Model& model) const;  // Published, and none uses it.
  std::vector<ModelId> Expendable() const;
  Victims DesertedVictims(const std::vector<ModelId>& models, const Need& need,
                          absl::Time now, ChooseVictimsFn choose) const;
  KeepFacts FactsOf(const CopyRef& ref, absl::Time now) const;
  void Drop(const CopyRef& ref, Copy& copy, ResidencyEvent event,
            std::optional<Leaving> how = std::nullopt);
  void FreeSpace(const CopyRef& ref, Copy& copy);
  bool Clean(const CopyRef& ref) const;
  std::optional<double> ValueOf(OwnerId owner, const Need& need,
                                absl::Time now) const;
  std::optional<double> ValueOf(const CopyRef& ref, uint64_t bytes,
                                const Need& need, absl::Time now) const;
  uint64_t CapacityOf(TierAt at) const;
  Zone ZoneOf(const CopyRef& ref) const;
  static CopyRef RingRef(const PlanGrant& grant);  // For its zone.

  // node_save.cc
  void SaveSoon(GroupKey key);
  void SaveSome(absl::Time now, Effects& effects);
  void StartSpill(const CopyRef& ref, Copy& copy, bool urgent,
                  Effects& effects);
  void HurrySpill(GroupKey key, Effects& effects);
  void OrphanSpill(const CopyRef& ref, const Copy& copy);
  bool OrphanSpilled(const Transfer& transfer, const absl::Status& status,
                     const TransferResult& result, Effects& effects);
  void Spilled(const Transfer& transfer, const absl::Status& status,
               const TransferResult& result, absl::Time now, Effects& effects);

  // node_check.cc
  using FindingFn = absl::FunctionRef<void(TierAt, std::string)>;
  bool Checked(const Transfer& transfer, const absl::Status& read,
               const Content& content, absl::Time now, Effects& effects);
  void Conclude(GroupKey key, absl::Time now, Effects& effects);
  void CheckOver(GroupKey key, Effects& effects);
  void Find(const CopyRef& ref, std::string what, Effects& effects);
  void DiskIsBad(GroupKey key, const GroupCheck& check, FindingFn find,
                 Effects& effects);
  void HostIsBad(GroupKey key, GroupCheck& check, FindingFn find,
                 Effects& effects);

  // node_mend.cc
  TransferId ReadBack(const CopyRef& ref, const Copy& copy, Effects& effects);
  void DeviceRead(GroupKey key, DeviceCheck& device, absl::Time now,
                  Effects& effects);
  absl::Status MendSource(GroupKey key) const;
  void StartMend(const CopyRef& ref, Copy& host, absl::Time now,
                 Effects& effects);
  bool Mended(const Transfer& transfer, const absl::Status& status,
              Effects& effects);
  void MendOver(const CopyRef& ref, const absl::Status& status,
                Effects& effects);
  void FoundRight(const CopyRef& ref);
  void PutAside(const CopyRef& ref, const std::string& why, Effects& effects);
  bool DropDamaged(const CopyRef& ref, Copy& copy);
  std::string HoldersOf(const CopyRef& ref) const;

  // node_explain.cc
  std::string TextFor(const Peer* asker, const Blocked& blocked) const;
  std::string Explain(TierAt at, uint64_t bytes, const Peer* asker) const;
  std::string LeasesText(TierAt at, const Peer* asker) const;
  Shares SharesOf(TierAt at, const Peer* asker) const;
  uint64_t* ShareOf(const CopyRef& ref, const Copy& copy, const Peer* asker,
                    Shares& shares) const;
  std::string KeptText(DeviceIndex device, const Peer* asker) const;
  std::string DeviceTaken(DeviceIndex device, SessionId session,
                          std::optional<PlanId> except) const;
  absl::Status InUse(const ModelEntry& model, const Peer* asker) const;

  // node_transfers.cc
  TransferId Start(GroupKey key, TransferWay way, bool urgent,
                   Effects& effects);
  TransferId Start(Transfer transfer, Effects& effects);
  void Hurry(const Need& need, const Copy& copy, Effects& effects);
  void Hurry(TransferId id, Effects& effects);
  absl::Status CheckRestored(uint64_t offset, uint64_t bytes) const;
  bool AwaitsPool(GroupKey key, const Copy& copy) const;
  void PlaceRestored(absl::Time now, Effects& effects);
  void KeepParts(TransferId filler);
  void HostChecked(const Transfer& transfer, const absl::Status& read,
                   const Content& content, absl::Time now, Effects& effects);
  void HostFilled(const Transfer& transfer, const absl::Status& status,
                  absl::Time now, Effects& effects);
  void DeviceFilled(const Transfer& transfer, const Place& from,
                    const absl::Status& status, absl::Time now,
                    Effects& effects);
  void ImageRead(const Transfer& transfer, const HostToClient& way,
                 const absl::Status& status, Effects& effects);
  void Count(const Transfer& transfer);
  void MarkLostIfGone(GroupKey key, const absl::Status& why, Effects& effects);

  void Keep(Kept kept);  // For TakeKept.
  // Of a published image that has just come to the host.
  void KeepImage(const CopyRef& ref, const Copy& copy);
  void KeepCopy(const CopyRef& ref, const Copy& copy, bool there);
  void KeepLease(LeaseId id, SessionId session, const CopyRef& ref, bool there);
  void SetPinned(const CopyRef& ref, Copy& copy, bool pinned);
  void Note(Effects& effects, EventKind kind, const CopyRef& ref,
            std::string detail = "") const;
  TierSnapshot SnapshotTier(TierAt at) const;
  void SnapshotCopies(TierSnapshot& tier) const;
  SessionSnapshot SnapshotSession(SessionId id,
                                  const SessionBook::Session& session,
                                  absl::Time now) const;
  PlanSnapshot SnapshotPlan(PlanId id, const StandingPlan& plan) const;

  const NodeOptions options_;
  const std::vector<DeviceInfo> devices_;
  const DeviceNames names_;
  CopyTable copies_;
  ExtentMap host_;
  PartBook parts_;  // Of host_, what is of files.
  ApartDescriptors apart_descriptors_;
  std::vector<std::unique_ptr<DeviceSpace>> spaces_;  // One a device.
  OrderBook orders_;
  HeatBook heat_;
  QuotaBook quota_;
  ModelBook models_;
  SessionBook sessions_;
  SlabBook slabs_;
  ArenaBook arenas_;
  IncomingBook incoming_;
  PlanBook plans_;
  NeedBook needs_;
  absl::flat_hash_map<TransferId, Transfer> transfers_;  // Under way.

  std::map<uint64_t, RestoredExtent> restored_;  // By offset.
  std::set<GroupKey> unchecked_;  // Restored, on no disk, not looked at yet.
  std::vector<Kept> kept_;        // Not told yet.
  std::set<ModelId> ending_;      // With sessions that are over; still in use.
  std::map<GroupKey, GroupCheck> checking_;
  std::deque<GroupKey> to_save_;            // Perhaps forgotten, or saved.
  uint32_t spilling_ = 0;                   // Transfers to the spill store.
  std::map<TransferId, uint64_t> orphans_;  // Of them; the model was forgotten.

  Counters counters_;
  bool draining_ = false;
  uint64_t space_epoch_ = 1;   // Grows when space came free, or could.
  uint64_t pumped_epoch_ = 0;  // When all that wait for space were woken last.
  absl::Status spill_failed_;  // Why none is tried before spill_retry_at_.
  absl::Time spill_retry_at_ = absl::InfinitePast();
  uint64_t last_id_ = 0;  // Of models, sessions, leases, ...
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_NODE_H_
