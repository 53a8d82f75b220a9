// A Node whose transfers a test completes by hand. Memory is only labels: each
// page knows its owner, so wrong bytes, moves under a lease, and writes under a
// read are detected at once.
#ifndef HOIST_TESTS_SUPPORT_NODE_RIG_H_
#define HOIST_TESTS_SUPPORT_NODE_RIG_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/node.h"
#include "tests/support/fake_device.h"

namespace hoistd::testing {

inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kSpillPages = 1000;  // Where it can spill.

struct NodeRigOptions {
  uint64_t host_pages = 16;
  uint64_t host_ready_pages = UINT64_MAX;  // The rest comes with GrowHost.
  std::vector<uint64_t> device_pages = {8};
  uint64_t in_place_pages = 0;  // Not 0: of one device more, read in place.
  uint64_t slab_pages = 4;      // Also the granularity is a page.
  uint64_t pageable_pages = 0;
  bool can_spill = false;
  bool saves_at_once = false;
  Readers readers = Readers::kOwner;
  bool users_share_devices = true;
  Backing backing = Backing::kMemfd;
  bool ipc = false;
  uint64_t device_memory_pages = UINT64_MAX / kPage;
  // How sessions answer requests to close slabs: at once, at the test's
  // command, or never, since they do not know the message.
  enum class Closing { kAtOnce, kByHand, kNever };
  Closing closing = Closing::kAtOnce;
  QuotaOptions quota;
  uint64_t apart_descriptors = UINT64_MAX;
  bool arenas_evict = false;
  double host_bytes_per_second = NodeOptions().host_bytes_per_second;
};

// Checks the books after each call (gtest expectations):
// - each tier's used bytes are the sum of its holders',
// - leased bytes lie in slabs, have not moved, and are right,
// - a transfer reads right bytes, and writes to memory of its own,
// - each request is answered once,
// - the ring of a plan that is not freed overlaps nothing else,
// - a plan's holds on the host have not moved, and are right,
// - each user's holdings equal a recount, and are within the quota,
// - no model makes room that an open session published, leased or planned, and
//   has not declared itself done with,
// - an arena is granted empty, and keeps its own bytes until it is closed,
// - a session's leases lie in slabs that it was sent and has not closed, it is
//   not asked for those, and no slab goes while a session has it open,
// - the device has the slabs that the node believes, except for those still to
//   be made and destroyed.
//
// Threads: one at a time.
class NodeRig {
 public:
  explicit NodeRig(NodeRigOptions options = {});

  SessionId Open(const Peer& peer, std::string client_name = "");
  SessionId Open(uint32_t uid = 1, uint64_t budget_pages = 0);
  // The peer for evictions and unpins: an admin of that uid.
  static inline const Peer kAdmin = {.uid = User(1), .admin = true};
  absl::StatusOr<SessionId> TryOpen(uint32_t uid, uint64_t budget_pages = 0);
  void Close(SessionId session);
  // This hoistd dies, and another takes over: leases, plans and sessions stay,
  // except for those with legacy IPC memory; work in flight is lost. False: no
  // device could be taken over, and all sessions are gone. `ready_pages`: pages
  // of the host pool that are ready at once; nullopt: all.
  bool Die(std::optional<uint64_t> ready_pages = {});
  // A model of files, with groups "g0", "g1", ... of these sizes in pages.
  absl::StatusOr<ModelPtr> TryAddModel(SessionId session, std::string name,
                                       std::vector<uint64_t> pages,
                                       uint8_t content = 0,
                                       std::optional<Readers> readers = {},
                                       std::vector<FileIdentity> files = {});
  ModelId AddModel(SessionId session, std::string name,
                   std::vector<uint64_t> pages);
  // A model of one file, which other models may share: each group consists of
  // these runs of its sheet, in pages.
  struct PageRun {
    uint64_t from = 0;
    uint64_t pages = 0;
  };
  absl::StatusOr<ModelPtr> TryAddGrouping(
      SessionId session, std::string name, uint64_t inode,
      const std::vector<std::vector<PageRun>>& groups,
      std::optional<Readers> readers = {});
  ModelId AddGrouping(SessionId session, std::string name, uint64_t inode,
                      const std::vector<std::vector<PageRun>>& groups,
                      std::optional<Readers> readers = {});
  RequestId Publish(SessionId session, std::string model, std::string group,
                    uint64_t pages, uint8_t content = 0,
                    absl::Duration deadline = absl::Seconds(60),
                    std::optional<Content> expected = {});
  // Publishes and receives; the group's key.
  GroupKey Published(SessionId session, const std::string& model,
                     const std::string& group, uint64_t pages);
  RequestId Stage(SessionId session, GroupKey key,
                  absl::Duration deadline = absl::Seconds(10),
                  uint32_t device = 0, bool shared = false);
  // In a slab of its own.
  RequestId StageApart(SessionId session, GroupKey key, uint32_t device,
                       absl::Duration deadline = absl::Seconds(10),
                       bool background = false);
  // Stages so; completes slabs and transfers.
  LeaseId StageApartNow(SessionId session, GroupKey key, uint32_t device);
  // nullopt: a memfd of the image's size.
  RequestId ReadImage(SessionId session, GroupKey key,
                      absl::Duration deadline = absl::Seconds(10),
                      std::optional<uint64_t> memfd_bytes = {});
  RequestId Bring(GroupKey key, TierAt to, bool pin,
                  absl::Duration deadline = absl::Seconds(10),
                  std::optional<ModelId> spare = {});
  absl::Status Prefetch(SessionId session, ModelId model,
                        std::vector<uint32_t> groups,
                        TierAt to = FirstDevice());
  absl::Status Release(SessionId session, LeaseId lease);
  absl::Status SetOrder(SessionId session, ModelId model,
                        std::vector<uint32_t> order, bool forget = false);
  // A plan whose pass is `order`; budget 0: as much as can be promised.
  RequestId SetPlan(SessionId session, ModelId model,
                    std::vector<uint32_t> order, uint64_t budget_pages,
                    absl::Duration deadline = absl::Seconds(10),
                    std::optional<PlanId> replaces = {}, uint32_t device = 0);
  RequestId SetPlan(SessionId session, const SetPlanArgs& args);
  SetPlanArgs PlanArgs(ModelId model, const std::vector<uint32_t>& order,
                       uint64_t budget_pages, absl::Duration deadline,
                       std::optional<PlanId> replaces = {},
                       uint32_t device = 0) const;
  // Asks to give way since the last call.
  std::vector<GiveWay> TakeGiveWay() { return std::exchange(give_way_, {}); }
  absl::Status CheckPlan(SessionId session, ModelId model,
                         std::vector<uint32_t> order, uint64_t budget_pages,
                         std::optional<PlanId> replaces = {}) const;
  // SetPlan's grant, which must exist.
  PlanGrant PlanOf(RequestId request) const;
  absl::Status EndPlan(SessionId session, PlanId plan);
  // Frees a plan that has ended.
  void FreePlan(PlanId plan);
  void Hold(PlanId plan, std::vector<uint32_t> groups, bool urgent = false);
  void Unhold(PlanId plan, uint32_t group);
  // Opens an arena of so many pages.
  RequestId OpenArena(SessionId session, uint64_t pages,
                      absl::Duration deadline = absl::Seconds(10));
  const ArenaGrant& ArenaOf(RequestId request) const;
  absl::Status CloseArena(SessionId session, ArenaId arena);
  // The sessions' arenas.
  std::vector<std::pair<ArenaId, SessionId>> arenas() const;
  CopyTotals Evict(const std::string& model, std::optional<TierAt> at = {});
  CopyTotals Unpin(const std::string& model);
  absl::Status Forget(ModelId model);
  absl::Status Forget(SessionId session, ModelId model);
  void GrowHost(uint64_t pages) { Resize(OnHost(), pages); }
  void Resize(TierAt at, uint64_t pages, uint64_t headroom_pages = 0);
  RequestId Spare(SessionId session, uint64_t pages,
                  absl::Duration deadline = absl::Seconds(10));
  void Drain(bool draining);
  // Host state that the last hoistd left, as persisted.
  std::shared_ptr<const Group> Lay(uint64_t page, std::string name,
                                   uint64_t pages, uint8_t content);
  const std::map<uint64_t, const Group*>& kept() const { return kept_; }
  const std::map<uint64_t, PersistedPart>& persisted_parts() const {
    return persisted_parts_;
  }
  // Removes it from the persisted state.
  void LoseOnHost(GroupKey key) {
    std::erase_if(kept_, [&](const auto& at) {
      return at.second == (*node_->copies().SpecOf(key.model))
                              ->groups[key.group.number()]
                              .get();
    });
  }
  // Changes a published group's bytes on the host, or at its place on a device.
  // Copies of it change, too; loads over it get the right bytes.
  void ChangeOnHost(GroupKey key);
  void ChangeOnDevice(GroupKey key, uint32_t device = 0);
  RequestId CheckGroup(GroupKey key, bool repair = false);
  // Places bytes of a file there.
  void LayPart(uint64_t offset, const PersistedPart& part);
  // Advances the time, and ticks.
  void Advance(absl::Duration by);

  // Slabs that sessions were asked to close, with answers in flight. They close
  // them on request, unless `keep_slabs` is set then.
  const std::vector<SlabAsk>& asks() const { return asks_; }
  // Delivers the answer to the oldest request.
  void AnswerAsk();
  bool keep_slabs = false;

  // Slabs are made and destroyed at once or, while this is set, at the test's
  // command.
  bool hold_slabs = false;
  // The device's pending slab work, in order.
  const std::deque<SlabWork>& slab_work(uint32_t device = 0) {
    return slab_work_[DeviceIndex(device)];
  }
  // Does the next slab work; or fails it so, if it makes a slab.
  void DoNextSlab(uint32_t device = 0, absl::Status status = absl::OkStatus());
  // Does all slab work, and work that follows from it.
  void DoSlabWork();

  // nullopt: not answered yet.
  const Answer* AnswerTo(RequestId request) const;
  bool waiting(RequestId request) const { return open_.contains(request); }
  // The lease of the stage, which must exist.
  LeaseId LeaseOf(RequestId request) const;
  // Stages, completes all transfers, and returns the lease.
  LeaseId StageNow(SessionId session, GroupKey key, uint32_t device = 0);

  // Transfers in flight, oldest first; those of one way.
  std::vector<TransferId> Moving() const;
  template <typename Way>
  std::vector<TransferId> Moving() const {
    std::vector<TransferId> ids = Moving();
    std::erase_if(ids, [this](TransferId id) {
      return TransferOf(id).by<Way>() == nullptr;
    });
    return ids;
  }
  const Transfer& TransferOf(TransferId id) const { return moving_.at(id); }
  void Finish(TransferId id, absl::Status status = absl::OkStatus());
  // The oldest transfer of this way, which must exist.
  template <typename Way>
  const Way& TheWay() const {
    return *TransferOf(Moving<Way>().at(0)).template by<Way>();
  }
  // Ends the oldest transfer of this way, which must exist.
  template <typename Way>
  void Finish(absl::Status status = absl::OkStatus()) {
    Finish(Moving<Way>().at(0), std::move(status));
  }
  void FinishAll();

  size_t open_requests() const { return open_.size(); }
  Node& node() { return *node_; }
  const Node& node() const { return *node_; }
  FakeDevice& device(uint32_t index = 0) { return *devices_[index]; }
  const Counters& counters() const { return node_->books().counters; }
  TierUse TierOf(TierAt at) const { return node_->picture().UseOf(at, now); }
  std::vector<TierUse> Tiers() const { return node_->picture().Tiers(now); }
  // kAbsent if there is none.
  Residency StateOf(GroupKey key, TierAt at) const;
  bool Has(GroupKey key, TierAt at) const {
    return Copy{.state = StateOf(key, at)}.usable();
  }
  // Contents of the spill store.
  const std::map<SpillId, const Group*>& spills() const { return spills_; }
  // Adds to the store before the node starts.
  void Store(SpillId id, std::shared_ptr<const Group> group);
  const std::vector<TransferId>& hurried() const { return hurried_; }
  const std::vector<ModelId>& forgotten() const { return forgotten_; }
  // Leases of sessions, as granted.
  const std::map<LeaseId, std::pair<SessionId, LeaseGrant>>& leases() const {
    return leases_;
  }
  const std::vector<NodeEvent>& events() const { return events_; }
  // A plan that is not freed.
  struct StandingPlan {
    SessionId session;
    PlanGrant grant;
    bool ended = false;
    std::set<GroupIndex> asked;               // For the host.
    std::map<GroupIndex, ImageRanges> holds;  // Where on the host.
  };
  const std::map<PlanId, StandingPlan>& plans() const { return plans_; }
  // Plans to be freed, oldest first.
  const std::vector<PlanId>& ended() const { return ended_; }
  // Records for a successor in the last event, in order.
  const std::vector<Persisted>& told() const { return told_; }
  // Failed holds and the reported errors.
  const std::vector<std::pair<GroupIndex, absl::Status>>& failed_holds() const {
    return failed_holds_;
  }
  // Plans asked to release holds, and how many bytes for others.
  const std::vector<std::pair<PlanId, uint64_t>>& crowded() const {
    return crowded_;
  }

  void Check();

  // The in-place device.
  uint32_t in_place() const {
    return static_cast<uint32_t>(options_.device_pages.size());
  }
  TierAt InPlace() const { return OnDevice(DeviceIndex(in_place())); }
  static TierAt FirstDevice() { return OnDevice(DeviceIndex(0)); }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);

 private:
  // The records for a successor, by node_rig_death.cc.
  struct Book {
    std::set<ModelId> models;
    std::map<std::pair<DeviceIndex, SlabId>, PersistedSlab> slabs;
    std::map<std::pair<DeviceIndex, uint64_t>, PersistedCopy> copies;
    std::map<SessionId, OpenSessionArgs> sessions;
    std::map<LeaseId, PersistedLease> leases;
    std::map<PlanId, std::pair<SessionId, PlanGrant>> plans;
    std::map<ArenaId, PersistedArena> arenas;
    std::set<CopyRef> pins;
  };
  void Note(const Persisted& kept);
  std::vector<RestoredGroup> LeftPublished() const;
  absl::Status PutBack(const std::map<ModelId, hoistd::Model>& models,
                       Node& node) const;
  void Forget();
  void DropAll();
  std::set<CopyRef> Pinned() const;
  void PutPinsBack(const std::set<CopyRef>& before);
  void BringPins();
  void PinAnswered(const Answer& answer);
  void CheckPins() const;
  std::set<SessionId> EndedByDeath();
  void ResumeAll(const std::set<PlanId>& over);

  // The owner of a page's bytes: a group, or the transfer that writes it.
  using Label = const void*;
  using Memory = std::vector<Label>;

  template <typename F>
  auto Do(F call);
  void Take(Effects effects);
  void Begin(const Transfer& transfer);
  void End(const Transfer& transfer, const absl::Status& status);
  void TakePlans(const Effects& effects);
  void Stands(SessionId session, const PlanGrant& grant);
  void Granted(SessionId session, const ArenaGrant& grant);
  // The arena has ended; its bytes stay until they are zeroed.
  void ArenaOver(ArenaId arena);
  void ArenasOver(SessionId session);
  void ZeroNext(const SlabWork& work, absl::Status status);
  void CheckArenas(DeviceIndex device, std::map<uint64_t, uint64_t>& leased);
  void TakeAsks(const Effects& effects);
  void CloseAtOnce();
  void CheckForgotten(const Effects& effects) const;
  void Sent(SessionId session, DeviceIndex device,
            const std::vector<SlabUse>& slabs);
  bool Uses(SessionId session, DeviceIndex device, const SlabSpec& slab) const;
  void CheckPersisted() const;
  void CheckSlabs() const;
  void CheckDescriptors();
  void CheckSlabWork(const TierUse& tier);
  void CheckPlans() const;
  void CheckQuotas() const;
  RequestId NewRequest(SessionId session);
  void AddDevice(uint64_t pages, DeviceKind kind);
  RequestId BringLease(SessionId session, const CopyRef& copy,
                       absl::Duration deadline, bool urgent);
  std::shared_ptr<const Group> MakeGroup(std::string name, uint64_t pages);
  std::shared_ptr<const Group> MakeGroup(std::string name,
                                         const FileIdentity& file,
                                         const std::vector<PageRun>& runs);
  absl::StatusOr<ModelPtr> AddSpec(SessionId session,
                                   std::shared_ptr<ModelSpec> spec,
                                   std::optional<Readers> readers);
  Label LabelOf(const FileIdentity& file, uint64_t page);
  void FillImage(Memory& memory, uint64_t offset, const Group& group) const;
  // The current content; for groups without one in the test, their own.
  Content ContentOf(const Transfer& transfer) const;
  // It is leased, and right bytes are in flight to its place.
  bool UnderRepair(const LeaseGrant& grant) const;
  void ExpectImage(const Memory& memory, uint64_t offset, const Group& group,
                   const char* what) const;
  // The same for host memory in these ranges.
  void ExpectRanges(const ImageRanges& ranges, const Group& group,
                    const char* what) const;
  static void Fill(Memory& memory, uint64_t offset, uint64_t bytes, Label to);
  static void ExpectAll(const Memory& memory, uint64_t offset, uint64_t bytes,
                        Label label, const char* what);

  const NodeRigOptions options_;
  NodeOptions node_options_;
  std::vector<DeviceInfo> infos_;
  Book book_;
  std::vector<Persisted> told_;
  std::map<CopyRef, RequestId> coming_pins_;  // Of the last one, not there yet.
  uint32_t generation_ = 0;
  int slab_depth_ = 0;  // Of DoSlabWork, within itself.
  bool endless_ = false;
  bool resuming_ = false;
  std::vector<std::unique_ptr<int>> graves_;  // Labels of who is gone.
  std::vector<std::unique_ptr<FakeDevice>> devices_;
  std::unique_ptr<Node> node_;
  std::vector<std::shared_ptr<const Group>> groups_;   // Labels live for ever.
  std::map<const Group*, std::vector<Label>> images_;  // By page.
  std::map<std::pair<FileIdentity, uint64_t>, std::unique_ptr<int>> sheets_;
  Memory host_;
  Memory pageable_;
  std::vector<Memory> device_memory_;
  std::map<TransferId, Transfer> moving_;
  std::map<TransferId, std::unique_ptr<int>> writing_;  // Their labels.
  std::map<SpillId, const Group*> spills_;
  std::map<const Group*, uint8_t> contents_;
  std::set<const Group*> changed_on_host_;
  // By device and offset.
  std::set<std::pair<DeviceIndex, uint64_t>> changed_on_device_;
  std::map<uint64_t, const Group*> kept_;  // By offset, as it was told.
  std::map<uint64_t, PersistedPart> persisted_parts_;
  std::set<const Group*> laid_;  // Of these, not checked yet.
  std::map<RequestId, SessionId> open_;
  std::map<RequestId, Answer> answers_;
  std::set<RequestId> abandoned_;  // Their session was closed.
  std::map<LeaseId, std::pair<SessionId, LeaseGrant>> leases_;
  std::map<PlanId, StandingPlan> plans_;
  std::map<PlanId, std::unique_ptr<int>> rings_;  // Their labels.
  struct StandingArena {
    SessionId session;
    ArenaGrant grant;
    std::unique_ptr<int> label;
  };
  std::map<ArenaId, StandingArena> arenas_;
  std::vector<PlanId> ended_;
  std::map<DeviceIndex, std::deque<SlabWork>> slab_work_;
  std::vector<SlabAsk> asks_;
  std::vector<GiveWay> give_way_;
  std::map<uint64_t, std::vector<SlabId>> closed_;  // By their numbers.
  std::map<SessionId, std::set<ModelId>> uses_;
  // Open slabs by session.
  std::map<SessionId, std::map<std::pair<DeviceIndex, SlabId>, SlabSpec>>
      open_slabs_;
  std::vector<std::pair<GroupIndex, absl::Status>> failed_holds_;
  std::vector<std::pair<PlanId, uint64_t>> crowded_;
  std::vector<TransferId> hurried_;
  std::vector<ModelId> forgotten_;
  std::vector<NodeEvent> events_;
  uint64_t last_request_ = 0;
  uint64_t last_spill_ = 0;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_NODE_RIG_H_
