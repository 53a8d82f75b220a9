// A Node whose transfers a test completes by hand, over memory that is only
// labels: each page knows whose bytes it has, so that bytes served wrong, moved
// under a lease or overwritten while they are read are noticed at once.
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
  bool can_spill = false;
  bool saves_at_once = false;
  Readers readers = Readers::kOwner;
  bool users_share_devices = true;
  Backing backing = Backing::kMemfd;
  bool ipc = false;
  uint64_t device_memory_pages = UINT64_MAX / kPage;
  // Whether sessions close the slabs that they are asked for: at once, when the
  // test says so, or never, since they know no such message.
  enum class Closing { kAtOnce, kByHand, kNever };
  Closing closing = Closing::kAtOnce;
  QuotaOptions quota;
  uint64_t apart_descriptors = UINT64_MAX;
  bool arenas_evict = false;
};

// After each call the books are checked (gtest expectations):
// - each tier's used bytes are the sum of its holders',
// - what is leased lies in slabs, is where it was, and has the right bytes,
// - what a transfer reads has the right bytes, what it writes is its alone,
// - each request is answered once,
// - what lies in the ring of a plan that is not freed is nobody else's,
// - what a plan holds on the host stays where it is, with the right bytes,
// - what each user holds is what counting it anew says, and what one may,
// - no model makes room that an open session published, leased or planned and
//   has not said that it is done with,
// - an arena is granted without anybody's bytes in it, and has its own until it
//   is closed,
// - what a session leases lies in slabs that it was sent and has not closed, it
//   is asked for none of those, and no slab goes that somebody has open,
// - the device has the slabs that the node takes it to have, but for what it is
//   still to make and destroy.
//
// Threads: one at a time.
class NodeRig {
 public:
  explicit NodeRig(NodeRigOptions options = {});

  SessionId Open(const Peer& peer);
  SessionId Open(uint32_t uid = 1, uint64_t budget_pages = 0);
  // Who evicts and unpins here: an admin of that uid.
  static inline const Peer kAdmin = {.uid = User(1), .admin = true};
  absl::StatusOr<SessionId> TryOpen(uint32_t uid, uint64_t budget_pages = 0);
  void Close(SessionId session);
  // This hoistd dies, and another goes on with what it left: leases, plans and
  // sessions are as they were, but for those of who had legacy IPC memory; what
  // was under way is not. False: it could take over nothing of devices, and all
  // sessions are gone.
  // `ready_pages`: of the host pool, which are there again at once; all if
  // nullopt.
  bool Die(std::optional<uint64_t> ready_pages = {});
  // A model from files, its groups "g0", "g1", ... of so many pages.
  absl::StatusOr<ModelPtr> TryAddModel(SessionId session, std::string name,
                                       std::vector<uint64_t> pages,
                                       uint8_t content = 0,
                                       std::optional<Readers> readers = {},
                                       std::vector<FileIdentity> files = {});
  ModelId AddModel(SessionId session, std::string name,
                   std::vector<uint64_t> pages);
  // A model of one file that others may be made of too: each group is made of
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
  // Publish and receive; the group's key.
  GroupKey Published(SessionId session, const std::string& model,
                     const std::string& group, uint64_t pages);
  RequestId Stage(SessionId session, GroupKey key,
                  absl::Duration deadline = absl::Seconds(10),
                  uint32_t device = 0, bool shared = false);
  // In a slab of its own.
  RequestId StageApart(SessionId session, GroupKey key, uint32_t device,
                       absl::Duration deadline = absl::Seconds(10),
                       bool background = false);
  // Stages so, lets all slabs be made and transfers finish.
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
                        std::vector<uint32_t> order);
  // A plan whose pass is `order`; budget 0: as much as can be promised.
  RequestId SetPlan(SessionId session, ModelId model,
                    std::vector<uint32_t> order, uint64_t budget_pages,
                    absl::Duration deadline = absl::Seconds(10),
                    std::optional<PlanId> replaces = {}, uint32_t device = 0);
  absl::Status CheckPlan(SessionId session, ModelId model,
                         std::vector<uint32_t> order, uint64_t budget_pages,
                         std::optional<PlanId> replaces = {}) const;
  // What SetPlan granted; it must have.
  PlanGrant PlanOf(RequestId request) const;
  absl::Status EndPlan(SessionId session, PlanId plan);
  // The plan has ended.
  void FreePlan(PlanId plan);
  void Hold(PlanId plan, std::vector<uint32_t> groups, bool urgent = false);
  void Unhold(PlanId plan, uint32_t group);
  // An arena of so many pages, and what it granted; it must have.
  RequestId OpenArena(SessionId session, uint64_t pages,
                      absl::Duration deadline = absl::Seconds(10));
  const ArenaGrant& ArenaOf(RequestId request) const;
  absl::Status CloseArena(SessionId session, ArenaId arena);
  // Those that sessions have.
  std::vector<std::pair<ArenaId, SessionId>> arenas() const;
  CopyTotals Evict(const std::string& model, std::optional<TierAt> at = {});
  CopyTotals Unpin(const std::string& model);
  absl::Status Forget(ModelId model);
  absl::Status Forget(SessionId session, ModelId model);
  void GrowHost(uint64_t pages);
  void Drain(bool draining);
  // What the last hoistd left on the host, and kept.
  std::shared_ptr<const Group> Lay(uint64_t page, std::string name,
                                   uint64_t pages, uint8_t content);
  const std::map<uint64_t, const Group*>& kept() const { return kept_; }
  const std::map<uint64_t, PersistedPart>& persisted_parts() const {
    return persisted_parts_;
  }
  // It was not written down.
  void LoseOnHost(GroupKey key) {
    std::erase_if(kept_, [&](const auto& at) {
      return at.second == (*node_->copies().SpecOf(key.model))
                              ->groups[key.group.number()]
                              .get();
    });
  }
  // What is published has other bytes on the host by now, or where it lies on a
  // device. What is made of it has, too; what is loaded over it has its own.
  void ChangeOnHost(GroupKey key);
  void ChangeOnDevice(GroupKey key, uint32_t device = 0);
  RequestId CheckGroup(GroupKey key, bool repair = false);
  // Bytes of a file lie there.
  void LayPart(uint64_t offset, const PersistedPart& part);
  // Time passes, and a tick comes.
  void Advance(absl::Duration by);

  // What sessions were asked to close, and whose answer is on its way: they
  // close it when they are asked, unless `keep_slabs` says otherwise then.
  const std::vector<SlabAsk>& asks() const { return asks_; }
  // The answer to the oldest arrives.
  void AnswerAsk();
  bool keep_slabs = false;

  // Slabs are made and destroyed at once; or, while this is set, when the test
  // says so.
  bool hold_slabs = false;
  // What is asked of the device and not done yet, in order.
  const std::deque<SlabWork>& slab_work(uint32_t device = 0) {
    return slab_work_[DeviceIndex(device)];
  }
  // The next of it is done; or fails so, if it makes one.
  void DoNextSlab(uint32_t device = 0, absl::Status status = absl::OkStatus());
  // All of it, and what comes of that.
  void DoSlabWork();

  // nullopt: not answered yet.
  const Answer* AnswerTo(RequestId request) const;
  bool waiting(RequestId request) const { return open_.contains(request); }
  // The lease that the stage brought; it must have.
  LeaseId LeaseOf(RequestId request) const;
  // Stages, lets all transfers finish, and returns the lease.
  LeaseId StageNow(SessionId session, GroupKey key, uint32_t device = 0);

  // Transfers under way, oldest first; those that go one way.
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
  // Of the oldest that goes this way; there must be one.
  template <typename Way>
  const Way& TheWay() const {
    return *TransferOf(Moving<Way>().at(0)).template by<Way>();
  }
  // The oldest that goes this way; there must be one.
  template <typename Way>
  void Finish(absl::Status status = absl::OkStatus()) {
    Finish(Moving<Way>().at(0), std::move(status));
  }
  void FinishAll();

  size_t open_requests() const { return open_.size(); }
  Node& node() { return *node_; }
  const Node& node() const { return *node_; }
  FakeDevice& device(uint32_t index = 0) { return *devices_[index]; }
  NodeSnapshot Snapshot() const { return node_->picture().Snapshot(now); }
  TierSnapshot TierOf(TierAt at) const;
  // kAbsent where there is none.
  Residency StateOf(GroupKey key, TierAt at) const;
  bool Has(GroupKey key, TierAt at) const {
    const Residency state = StateOf(key, at);
    return state == Residency::kPresent || state == Residency::kSpilling;
  }
  // What the spill store has.
  const std::map<SpillId, const Group*>& spills() const { return spills_; }
  // The store had this before the node came up.
  void Store(SpillId id, std::shared_ptr<const Group> group);
  const std::vector<TransferId>& hurried() const { return hurried_; }
  const std::vector<ModelId>& forgotten() const { return forgotten_; }
  // Leases that sessions hold, as the answers said.
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
  // What a successor was told in the last event, in order.
  const std::vector<Persisted>& told() const { return told_; }
  // Why a hold failed, as it was told.
  const std::vector<std::pair<GroupIndex, absl::Status>>& failed_holds() const {
    return failed_holds_;
  }
  // Who was asked to give back what it holds, and how much of it for others.
  const std::vector<std::pair<PlanId, uint64_t>>& crowded() const {
    return crowded_;
  }

  void Check();

  // The device that is read in place.
  uint32_t in_place() const {
    return static_cast<uint32_t>(options_.device_pages.size());
  }
  TierAt InPlace() const { return OnDevice(DeviceIndex(in_place())); }
  static TierAt FirstDevice() { return OnDevice(DeviceIndex(0)); }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);

 private:
  // What a successor is told, by node_rig_death.cc.
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
  static std::set<CopyRef> Pinned(const NodeSnapshot& snapshot);
  void PutPinsBack(const std::set<CopyRef>& before);
  void BringPins();
  void PinAnswered(const Answer& answer);
  void CheckPins(const NodeSnapshot& snapshot) const;
  std::set<SessionId> EndedByDeath();
  void ResumeAll(const std::set<PlanId>& over);

  // Whose bytes a page has: a group's, or a transfer's that is writing it.
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
  // It is over; what was written there is until it is zeroed.
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
  void CheckPersisted(const NodeSnapshot& snapshot) const;
  void CheckSlabs() const;
  void CheckDescriptors();
  void CheckSlabWork(const TierSnapshot& tier);
  void CheckPlans() const;
  void CheckQuotas() const;
  SetPlanArgs PlanArgs(ModelId model, const std::vector<uint32_t>& order,
                       uint64_t budget_pages, absl::Duration deadline,
                       std::optional<PlanId> replaces, uint32_t device) const;
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
  // As it is by now; of what has none in the test, its own.
  Content ContentOf(const Transfer& transfer) const;
  // It is leased, and right bytes are on their way to where it lies.
  bool UnderRepair(const LeaseGrant& grant) const;
  void ExpectImage(const Memory& memory, uint64_t offset, const Group& group,
                   const char* what) const;
  // The same of what lies on the host in these ranges.
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
  std::map<uint64_t, std::vector<SlabId>> closed_;  // By their numbers.
  std::map<SessionId, std::set<ModelId>> uses_;
  // What each session has open.
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
