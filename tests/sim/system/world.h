// Hoistds, one after another, with their workers, in one thread under one
// clock.
#ifndef HOIST_TESTS_SIM_SYSTEM_WORLD_H_
#define HOIST_TESTS_SIM_SYSTEM_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "daemon/engine/engine.h"
#include "tests/sim/system/reaper.h"
#include "tests/sim/system/script.h"
#include "tests/sim/system/sim_device.h"
#include "tests/sim/system/sim_life.h"
#include "tests/sim/system/sim_models.h"
#include "tests/sim/system/sim_pieces.h"
#include "tests/sim/system/sim_plan.h"
#include "tests/sim/system/sim_threads.h"

namespace hoistd::sim {

// The sizes of a case, chosen by its first step.
struct WorldOptions {
  explicit WorldOptions(const Step& first);

  uint64_t host_pages = 0;
  std::vector<uint64_t> device_pages;
  uint64_t in_place_pages = 0;   // 0: there is none.
  bool few_descriptors = false;  // For slabs apart.
  uint64_t slab_pages = 0;
  DeviceKind kind = DeviceKind::kEmulated;
  Readers readers = Readers::kOwner;
  bool users_share = true;
  bool quotas = false;
  bool keeps = false;  // A store holds its state; it may die.
};

// A plan as its worker sees it.
struct WorkersPlan {
  std::unique_ptr<SimPlan> plan;
  std::map<uint32_t, LeaseId> residents;  // By group; those that came.
  std::map<uint32_t, int> running;        // Kernels by streamed group.
  size_t at = 0;                          // In the order.
  bool asking = false;  // It is being replaced, and nothing is staged.
  bool unfit = false;   // Its lane was left in another form.
};

// Memory that its worker writes to, all with one byte.
struct WorkersArena {
  ArenaGrant grant;
  std::byte filled{0};  // As it comes.
};

struct Worker {
  uint64_t number = 0;
  User uid;
  std::optional<SessionId> session;  // Once it is open.
  uint64_t opened_in = 0;            // The turn of hoistd in which it was.
  bool closes_slabs = false;
  bool served = true;    // This hoistd knows its holdings.
  bool resumed = false;  // Some hoistd has resumed it.
  std::map<LeaseId, LeaseGrant> leases;
  std::set<LeaseId> computing;
  std::map<std::pair<DeviceIndex, SlabId>, SlabSpec> slabs;  // Open.
  // Unanswered slab requests, with the slabs closed for them.
  std::vector<std::pair<SlabAsk, std::vector<SlabId>>> asks;
  std::set<PlanId> give_way;  // Plans that hoistd asked for.
  std::map<ModelId, ModelPtr> models;
  std::map<PlanId, WorkersPlan> plans;
  std::map<uint64_t, SimPieces> pieces;  // Tensors in place, by a number.
  std::map<ArenaId, WorkersArena> arenas;
  // Unanswered requests by number, to be repeated.
  std::map<uint64_t, std::function<void()>> asked;
};

// Any step is valid at any time; without work it does nothing. The books are
// checked after each step, bytes when a kernel begins and ends, and workers'
// memory at every write.
//
// Threads:  one.
// Owns:     all of it.
class World {
 public:
  World(const Step& first, const SimModels& models);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();

  // True: the step would do something.
  bool Useful(Op op);
  void Do(const Step& step);
  // Runs until all is at rest. All work must end, and once all is released
  // nothing is held.
  void Finish();
  // A hash of the answers and their times.
  uint64_t trace() const { return trace_; }
  const Sights& sights() const { return sights_; }

 private:
  using Numbers = std::array<uint32_t, 3>;

  void Saw(Seen what) { ++sights_[static_cast<size_t>(what)]; }

  void MakeDevices();
  LifeParts PartsOfLife();
  // Does some work that is due, fairly; false: there is none, ever.
  bool Pump();
  // Runs each due part once. True: one was due, other than links, which nap.
  bool Round();
  void RoundOfStreams(bool& any);
  [[noreturn]] void GoesOn();
  // Runs until no request is open and no work is in flight.
  void Rest();

  // world_daemon.cc
  bool Progress(Op op, const Numbers& n);
  void Admin(Op op, const Numbers& n);
  std::vector<size_t> DueLoops(bool engine);
  std::vector<size_t> Tasks() const;

  // world_death.cc
  void Kill(const Numbers& n);
  void Died(bool midway);
  // Runs work of hoistd, which may be killed meanwhile.
  void Run(absl::FunctionRef<void()> turn);
  void Begin(const Numbers& n);
  void Begun();
  void LookAtRefused(const Life& life);
  void Resume(const Numbers& n);
  void LeaveALaneInAnotherForm(uint64_t number);
  void Resumed(Worker& worker, const hoistd::Resumed& lost);
  void ForgetInstance();
  void ResumeAll();
  // Checks that sessions, leases, plans and models never share a number.
  void Given(uint64_t number);
  // What the next hoistd must know of models and devices.
  std::set<std::string> KeptOf(const Node& node) const;
  void DropRenumbered(std::set<std::string>& kept) const;
  void LookAtKept(std::set<std::string> left);

  // world_worker.cc
  void Work(Op op, const Numbers& n);
  void Open(const Numbers& n);
  OnSessionWord WordsTo(const Worker& worker);
  void Prefetch(Worker& worker, const Model& model, const Numbers& n);
  void Die(uint64_t number);
  void Register(Worker& worker, const Numbers& n);
  void Publish(Worker& worker, const Numbers& n);
  // `then` gets nullopt if it is refused.
  using OnLease = std::function<void(Worker&, std::optional<LeaseGrant>)>;
  void Stage(Worker& worker, const StageArgs& args, const OnLease& then);
  void Compute(Worker& worker, uint32_t which);
  void Release(Worker& worker, LeaseId lease);
  void AnswerAsk(Worker& worker);
  bool AnswerSlabAsks();
  void AnswerSlabAsk(Worker& worker);
  void Asked(Worker& worker, const SlabAsk& ask);
  void Asked(Worker& worker, const GiveWay& ask);
  bool Uses(const Worker& worker, DeviceIndex device,
            const SlabSpec& slab) const;

  // world_plan.cc
  void SetPlan(Worker& worker, const Numbers& n, std::optional<PlanId> old);
  void PlanStands(Worker& worker, OpenedPlan opened, const ModelPtr& model,
                  std::vector<uint32_t> order, std::optional<PlanId> old);
  void AskResidents(Worker& worker, PlanId plan);
  void EndPlan(Worker& worker, PlanId plan, std::set<LeaseId> keep = {});
  void Use(Worker& worker, WorkersPlan& entry, const Numbers& n, Op op);
  void UseNext(Worker& worker, WorkersPlan& entry, const Numbers& n);
  void KernelBegins(uint64_t worker, PlanId plan, uint32_t group);
  void KernelEnds(uint64_t worker, PlanId plan, uint32_t group);
  void FinishPass(WorkersPlan& entry, bool must);
  void PlansGoOn();

  // world_arena.cc
  void OpenArena(Worker& worker, const Numbers& n);
  // Closes one, or writes to it.
  void UseArena(Op op, const Numbers& n);
  void CloseArena(Worker& worker, ArenaId arena);
  void CheckArena(const Worker& worker, const WorkersArena& arena);

  // world_in_place.cc
  void InPlace(Op op, const Numbers& n);
  void OpenInPlace(Worker& worker, const Numbers& n);
  void ColdCame(Worker& worker, uint64_t number, size_t piece,
                std::optional<LeaseGrant> lease);
  void CloseInPlace(Worker& worker, uint64_t number);
  void Pass(const Worker& worker, SimPieces& pieces, uint32_t touched);
  void ChooseHot(Worker& worker, uint64_t number);
  void HotCame(Worker& worker, uint64_t number, size_t piece,
               std::optional<LeaseGrant> lease);
  void Place(Worker& worker, SimPieces& pieces, uint32_t which);
  void ReleaseLeft(Worker& worker, SimPieces& pieces);
  void TellHeat(Worker& worker, uint64_t number);
  void HeatCame(Worker& worker, uint64_t number,
                const std::vector<GroupHeat>& known);
  void CheckPieces(const Worker& worker, const SimPieces& pieces);
  void CheckBudget(const Worker& worker, const SimPieces& pieces);
  void CheckNotShown(const Worker& worker, const LeaseGrant& lease) const;
  void CheckApart(const Worker& worker, const LeaseGrant& lease);
  void InPlaceSettles();

  // world_check.cc
  void CheckBooks();
  void CheckDeviceQuota(User user, DeviceIndex device, uint64_t bytes);
  void CheckBytes(DeviceIndex device, uint64_t offset, GroupKey key,
                  const std::string& who);
  void CheckOpen(const Worker& worker, DeviceIndex device, uint64_t offset,
                 uint64_t bytes);
  void Opened(Worker& worker, DeviceIndex device,
              const std::vector<SlabUse>& slabs);
  void Written(DeviceIndex device, uint64_t offset, uint64_t bytes);
  void Destroyed(DeviceIndex device, const SlabSpec& slab);
  void HostWritten(std::span<const std::byte> host);
  void Known(Worker* worker, const ModelPtr& model,
             std::optional<FileModel> of);
  void GiveAllBack();
  void CheckEmpty(const NodeView& view);
  // Asks the engine, and runs until it has answered.
  void Look(absl::AnyInvocable<void(const NodeView&)> look);
  std::string Picture();

  // An answer to this worker; dropped if the worker is gone by then.
  template <typename T>
  absl::AnyInvocable<void(T)> Reply(const char* what, const Worker* worker,
                                    std::function<void(Worker&, T)> then);

  // A worker's request to hoistd; repeated to the next one if unanswered.
  template <typename T>
  void Ask(const char* what, Worker& worker,
           std::function<void(SessionId, absl::AnyInvocable<void(T)>)> send,
           std::function<void(Worker&, T)> then);

  Worker* Pick(uint32_t n, bool open = true);
  std::pair<Worker*, WorkersPlan*> PickPlan(uint32_t n);
  // The worker, and the number of its tensors; nullptr: none.
  std::pair<Worker*, uint64_t> PickPieces(uint32_t n);
  ModelPtr PickModel(const Worker& worker, uint32_t n) const;
  static CopySelector Selector(const Model& model, std::optional<TierAt> at);
  DeviceIndex DeviceAt(uint32_t n) const {
    return DeviceIndex(static_cast<uint32_t>(n % devices_.size()));
  }
  // A device that workers compute on.
  DeviceIndex GpuAt(uint32_t n) const {
    return DeviceIndex(static_cast<uint32_t>(n % options_.device_pages.size()));
  }
  // After those, if it exists.
  DeviceIndex InPlaceIndex() const {
    return DeviceIndex(static_cast<uint32_t>(options_.device_pages.size()));
  }

  const WorldOptions options_;
  const SimModels& models_;
  SimClock clock_;
  std::vector<std::byte> host_memory_;
  std::span<std::byte> host_;  // In it, aligned.
  testing::HoldingStore store_;
  std::vector<std::unique_ptr<SimDevice>> devices_;
  uint64_t last_worker_ = 0;
  uint64_t last_request_ = 0;
  uint64_t last_pieces_ = 0;
  std::map<uint64_t, std::unique_ptr<Worker>> workers_;
  std::map<GroupKey, std::string> images_;  // Each group's bytes.
  std::map<ModelId, FileModel> file_models_;
  std::map<ModelId, ModelPtr> all_models_;  // As last seen.
  std::multiset<std::string> open_;         // Requests without an answer.
  uint64_t pumped_ = 0;
  std::array<uint64_t, 5> turns_ =
      {};                // Engine, tasks, devices, reads, streams.
  uint64_t naps_ = 0;    // Since anything but links had a turn.
  bool turned_ = false;  // A loop, in the last round.
  uint64_t trace_ = 0;
  Sights sights_ = {};
  uint64_t ran_ = 0;            // Turns of hoistds that they lived through.
  uint64_t doom_ = 0;           // Seed for the work in flight at a death.
  uint64_t lives_ = 1;          // Hoistds that have begun.
  bool gave_up_ = false;        // A start, or a failed one, took nothing.
  uint32_t failed_begins_ = 0;  // In a row.
  std::vector<ResumedSession> resuming_;  // Still to report their holdings.
  std::set<uint64_t> given_;              // Numbers.
  // Users' device holdings at the start of this hoistd that exceed their quota.
  std::map<std::pair<User, DeviceIndex>, uint64_t> taken_over_;
  // Of the last hoistd, if it died between two steps.
  std::optional<std::set<std::string>> left_;
  std::unique_ptr<Life> life_;  // nullptr: it is dead.
  Engine* engine_ = nullptr;    // Its own.
};

inline const absl::Status& ErrorOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& ErrorOf(const absl::StatusOr<T>& value) {
  return value.status();
}

// Inline, since each caller has its own T.
template <typename T>
void World::Ask(
    const char* what, Worker& worker,
    std::function<void(SessionId, absl::AnyInvocable<void(T)>)> send,
    std::function<void(Worker&, T)> then) {
  const uint64_t request = ++last_request_;
  auto ask = [this, what, number = worker.number, request,
              send = std::move(send), then = std::move(then)] {
    Worker& asker = *workers_.at(number);
    send(*asker.session,
         Reply<T>(what, &asker, [request, then](Worker& to, T value) {
           to.asked.erase(request);
           if (then != nullptr) then(to, std::move(value));
         }));
  };
  const auto& asked = worker.asked[request] = std::move(ask);
  // Else the request is made once some hoistd serves the worker.
  if (engine_ != nullptr && worker.served) asked();
}

template <typename T>
absl::AnyInvocable<void(T)> World::Reply(const char* what, const Worker* worker,
                                         std::function<void(Worker&, T)> then) {
  // Its destructor runs whether or not it was called.
  struct Ticket {
    explicit Ticket(const char* of) : what(of) {}
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    const std::string what;
    bool answered = false;
    ~Ticket() {
      if (!answered) Violation(Check::kAnswer, what + ": dropped unanswered");
    }
  };
  auto ticket = std::make_unique<Ticket>(what);
  open_.insert(what);
  const uint64_t number = worker == nullptr ? 0 : worker->number;
  return [this, ticket = std::move(ticket), number,
          then = std::move(then)](T value) mutable {
    TheReaper().Point();  // Done, but the answer is lost.
    if (std::exchange(ticket->answered, true)) {
      Violation(Check::kAnswer, ticket->what + ": answered twice");
    }
    open_.erase(open_.find(ticket->what));
    trace_ = (trace_ + ticket->what.size()) * 0x9e3779b97f4a7c15 +
             static_cast<uint64_t>(absl::ToUnixMicros(clock_.Now())) +
             (ErrorOf(value).ok() ? 1 : 0);
    const auto found = workers_.find(number);
    if (found != workers_.end() && then != nullptr) {
      then(*found->second, std::move(value));
    }
  };
}

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_WORLD_H_
