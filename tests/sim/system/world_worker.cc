// What workers do by message.
#include <sys/eventfd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/system/mutant.h"
#include "tests/sim/system/world.h"

namespace hoistd::sim {
namespace {

constexpr uint32_t kPublishedNames = 2;
constexpr uint32_t kPublishedGroups = 4;

std::string PublishedName(uint32_t n) {
  return absl::StrCat("p", n % kPublishedNames);
}

}  // namespace

Worker* World::Pick(uint32_t n, bool open) {
  std::vector<Worker*> all;
  for (const auto& [number, worker] : workers_) {
    if (!open || worker->session.has_value()) all.push_back(worker.get());
  }
  return all.empty() ? nullptr : all[n % all.size()];
}

std::pair<Worker*, WorkersPlan*> World::PickPlan(uint32_t n) {
  std::vector<std::pair<Worker*, WorkersPlan*>> all;
  for (const auto& [number, worker] : workers_) {
    for (auto& [id, entry] : worker->plans) {
      all.push_back({worker.get(), &entry});
    }
  }
  if (all.empty()) return {nullptr, nullptr};
  return all[n % all.size()];
}

ModelPtr World::PickModel(const Worker& worker, uint32_t n) const {
  if (worker.models.empty()) return nullptr;
  return std::next(worker.models.begin(),
                   static_cast<std::ptrdiff_t>(n % worker.models.size()))
      ->second;
}

void World::Work(Op op, const Numbers& n) {
  if (op == Op::kOpen) return Open(n);
  if (op == Op::kDie) {
    if (Worker* const any = Pick(n[0], /*open=*/false)) Die(any->number);
    return;
  }
  if (op >= Op::kReplacePlan && op <= Op::kReplay) {
    const auto [worker, entry] = PickPlan(n[0]);
    if (entry == nullptr) return;
    const PlanId plan = entry->plan->grant().id;
    if (op == Op::kReplacePlan) return SetPlan(*worker, n, plan);
    if (op != Op::kClearPlan) return Use(*worker, *entry, n, op);
    // What is under way on the GPU is waited for first.
    if (entry->plan->idle() && !entry->asking) EndPlan(*worker, plan);
    return;
  }
  if (op > Op::kOpenInPlace) return InPlace(op, n);
  if (op == Op::kCloseArena || op == Op::kWriteArena) return UseArena(op, n);
  Worker* const worker = Pick(n[0]);
  if (worker == nullptr) return;
  const ModelPtr model = PickModel(*worker, n[1]);
  switch (op) {
    case Op::kRegister:
      return Register(*worker, n);
    case Op::kDescribe: {
      const std::string name = n[1] % 2 == 0
                                   ? SimModels::NameOf(n[2] % SimModels::kNames)
                                   : PublishedName(n[2]);
      return Ask<absl::StatusOr<ModelPtr>>(
          "describe", *worker,
          [this, name](SessionId session, Done<ModelPtr> done) {
            engine_->Ask(session, DescribeModelArgs{name}, std::move(done));
          },
          [this](Worker& to, absl::StatusOr<ModelPtr> found) {
            if (found.ok()) Known(&to, *found, std::nullopt);
          });
    }
    case Op::kPublish:
      return Publish(*worker, n);
    case Op::kStage:
      if (model == nullptr || model->spec->groups.empty()) return;
      return Stage(*worker,
                   {{model->id, GroupIndex(static_cast<uint32_t>(
                                    n[2] % model->spec->groups.size()))},
                    DeviceAt(n[1]),
                    absl::Seconds(n[2] % 4) * 5},
                   nullptr);
    case Op::kCompute:
      return Compute(*worker, n[1]);
    case Op::kRelease: {
      if (worker->leases.empty()) return;
      const LeaseId lease =
          std::next(worker->leases.begin(),
                    static_cast<std::ptrdiff_t>(n[1] % worker->leases.size()))
              ->first;
      // A piece's is over when its tensor shows it no more.
      const bool shown = std::ranges::any_of(
          worker->pieces,
          [lease](const auto& pieces) { return pieces.second.Has(lease); });
      if (!shown) Release(*worker, lease);
      return;
    }
    case Op::kPrefetch:
      if (model == nullptr || model->spec->groups.empty()) return;
      return Prefetch(*worker, *model, n);
    case Op::kForget:
      if (model == nullptr) return;
      return Ask<absl::Status>(
          "forget", *worker,
          [this, id = model->id](SessionId session, Done<void> done) {
            engine_->Ask(session, ForgetModelArgs{id}, std::move(done));
          },
          nullptr);
    case Op::kAnswerAsk:
      return AnswerAsk(*worker);
    case Op::kSetPlan:
      return SetPlan(*worker, n, std::nullopt);
    case Op::kOpenArena:
      return OpenArena(*worker, n);
    case Op::kOpenInPlace:
      return OpenInPlace(*worker, n);
    default:
      return;
  }
}

void World::Prefetch(Worker& worker, const Model& model, const Numbers& n) {
  const auto groups = static_cast<uint32_t>(model.spec->groups.size());
  const PrefetchArgs args = {
      model.id,
      {GroupIndex(n[2] % groups), GroupIndex(0)},
      n[2] % 3 == 0 ? OnHost() : OnDevice(DeviceAt(n[1]))};
  Ask<absl::Status>(
      "prefetch", worker,
      [this, args](SessionId session, Done<void> done) {
        engine_->Ask(session, args, std::move(done));
      },
      nullptr);
}

OnSessionWord World::WordsTo(const Worker& worker) {
  return [this, number = worker.number](const SessionWord& word) {
    const auto found = workers_.find(number);
    if (found == workers_.end()) return;
    const auto* slabs = std::get_if<SlabAsk>(&word);
    if (slabs != nullptr) Asked(*found->second, *slabs);
    const auto* plan = std::get_if<GiveWay>(&word);
    if (plan != nullptr) Asked(*found->second, *plan);
  };
}

void World::Open(const Numbers& n) {
  if (workers_.size() >= 4 || engine_ == nullptr) return;
  auto made = std::make_unique<Worker>();
  Worker& worker = *made;
  worker.number = ++last_worker_;
  worker.uid = User(1 + n[0] % 3);
  workers_[worker.number] = std::move(made);
  OpenSessionArgs args;
  args.client_name = absl::StrCat("worker ", worker.number);
  args.peer.uid = worker.uid;
  args.device_budget_bytes = n[1] % 4 == 0 ? (4 + n[1] % 7) * kPage : 0;
  if (options_.keeps) {
    args.socket = std::make_shared<hoist::UniqueFd>(eventfd(0, EFD_CLOEXEC));
  }
  worker.closes_slabs = n[2] % 5 != 0;
  args.closes_slabs = worker.closes_slabs;
  auto opened = Reply<absl::StatusOr<SessionId>>(
      "open", &worker, [this](Worker& to, absl::StatusOr<SessionId> session) {
        if (!session.ok()) {
          workers_.erase(to.number);
          return;
        }
        Given(session->number());
        to.session = *session;
        to.opened_in = ran_;
      });
  // Who is gone by then is closed by the session server.
  engine_->OpenSession(
      std::move(args), WordsTo(worker),
      [this, number = worker.number,
       opened = std::move(opened)](absl::StatusOr<SessionId> session) mutable {
        if (session.ok() && !workers_.contains(number)) {
          engine_->CloseSession(*session);
        }
        opened(std::move(session));
      });
}

// The kernel closes its socket and ends its streams, wherever they are.
void World::Die(uint64_t number) {
  const auto found = workers_.find(number);
  const std::unique_ptr<Worker> worker = std::move(found->second);
  workers_.erase(found);
  if (!open_.empty()) Saw(Seen::kDeaths);
  for (const auto& [at, pieces] : worker->pieces) {
    if (pieces.AnyHot()) Saw(Seen::kInPlaceDeaths);
  }
  // A hoistd that does not know it yet sees that when it does.
  if (!worker->session.has_value() || !worker->served) return;
  if (engine_ != nullptr) engine_->CloseSession(*worker->session);
}

void World::Register(Worker& worker, const Numbers& n) {
  const FileModel which = {n[1] % SimModels::kNames, n[2] % 5 == 0 ? 1u : 0u};
  const bool everyone = n[2] % 7 == 0;
  Ask<absl::StatusOr<ModelPtr>>(
      "register", worker,
      [this, which, everyone](SessionId session, Done<ModelPtr> done) {
        RegisterModelArgs args = models_.Files(which);
        if (everyone) args.readers = Readers::kEveryone;
        engine_->Ask(session, std::move(args), std::move(done));
      },
      [this, which](Worker& to, absl::StatusOr<ModelPtr> model) {
        if (model.ok()) Known(&to, *model, which);
      });
}

void World::Publish(Worker& worker, const Numbers& n) {
  const uint32_t content = n[2] % SimModels::kContents;
  const std::string group =
      absl::StrCat("g", (n[1] / kPublishedNames) % kPublishedGroups);
  Ask<absl::StatusOr<ModelPtr>>(
      "publish", worker,
      [this, n, group, content](SessionId session, Done<ModelPtr> done) {
        PublishArgs args =
            models_.Publication(PublishedName(n[1]), group, content);
        args.deadline = absl::Seconds(n[2] % 4) * 5;
        engine_->Ask(session, std::move(args), std::move(done));
      },
      [this, group, content](Worker& to, absl::StatusOr<ModelPtr> model) {
        if (!model.ok()) return;
        const auto index = FindGroup(*(*model)->spec, group);
        if (!index.has_value()) {
          Violation(Check::kProtocol, "a published group is not there");
        }
        const auto [image, added] = images_.emplace(
            GroupKey{(*model)->id, *index}, models_.Published(content));
        if (added) Saw(Seen::kPublished);
        if (image->second != models_.Published(content)) {
          Violation(Check::kProtocol,
                    "what was published is taken for something else");
        }
        Known(&to, *model, std::nullopt);
      });
}

void World::Stage(Worker& worker, const StageArgs& args, const OnLease& then) {
  using Leased = absl::StatusOr<LeaseGrant>;
  Ask<Leased>(
      "stage", worker,
      [this, args](SessionId session, Done<LeaseGrant> done) {
        engine_->Ask(session, args, std::move(done));
      },
      [this, args, then](Worker& to, Leased lease) {
        if (!lease.ok()) {
          if (then != nullptr) then(to, std::nullopt);
          return;
        }
        if (lease->key != args.key || lease->device != args.device) {
          Violation(Check::kProtocol, "another group was staged");
        }
        Given(lease->id.number());
        Opened(to, args.device, lease->new_slabs);
        CheckOpen(to, args.device, lease->offset, lease->bytes);
        if (args.apart) CheckApart(to, *lease);
        to.leases[lease->id] = *lease;
        if (then != nullptr) then(to, *std::move(lease));
      });
}

void World::Compute(Worker& worker, uint32_t which) {
  if (worker.leases.empty()) return;
  const auto& [id, lease] =
      *std::next(worker.leases.begin(),
                 static_cast<std::ptrdiff_t>(which % worker.leases.size()));
  const std::string who = absl::StrCat("worker ", worker.number);
  CheckBytes(lease.device, lease.offset, lease.key, who);
  Saw(Seen::kLeases);
  if (!worker.computing.erase(id)) worker.computing.insert(id);
}

// What it computed with the lease ends first.
void World::Release(Worker& worker, LeaseId id) {
  const auto found = worker.leases.find(id);
  CheckNotShown(worker, found->second);
  if (worker.computing.erase(id) > 0) {
    CheckBytes(found->second.device, found->second.offset, found->second.key,
               absl::StrCat("worker ", worker.number));
  }
  worker.leases.erase(found);
  for (auto& [plan, entry] : worker.plans) {
    std::erase_if(entry.residents,
                  [id](const auto& of) { return of.second == id; });
  }
  if (TheMutation().Shows(Mutant::kPersistedLease)) return;  // It gets lost.
  Ask<absl::Status>(
      "release", worker,
      [this, id](SessionId session, Done<void> done) {
        engine_->Ask(session, ReleaseArgs{{id}}, std::move(done));
      },
      [](Worker& to, absl::Status status) {
        // As libhoist takes it: the hoistd before has done it.
        if (status.ok() || (to.resumed && absl::IsNotFound(status))) return;
        Violation(Check::kProtocol,
                  absl::StrCat("release: ", std::string(status.message())));
      });
}

bool World::Uses(const Worker& worker, DeviceIndex device,
                 const SlabSpec& slab) const {
  const auto meets = [&](DeviceIndex at, uint64_t offset, uint64_t bytes) {
    return at == device && offset < slab.offset + slab.bytes &&
           slab.offset < offset + bytes;
  };
  for (const auto& [id, lease] : worker.leases) {
    if (meets(lease.device, lease.offset, lease.bytes)) return true;
  }
  for (const auto& [id, entry] : worker.plans) {
    // As libhoist sees it, a ring is not used from when its plan is to be
    // replaced.
    if (entry.asking) continue;
    const PlanGrant& grant = entry.plan->grant();
    if (meets(grant.device, grant.ring_offset, grant.ring_bytes)) return true;
  }
  return false;
}

void World::Asked(Worker& worker, const SlabAsk& ask) {
  std::vector<SlabId> closed;
  for (const SlabId slab : ask.slabs) {
    const auto open = worker.slabs.find({ask.device, slab});
    if (open == worker.slabs.end()) {
      Violation(Check::kSlabs, "asked to close what the worker has not");
    }
    if (Uses(worker, ask.device, open->second)) {
      Violation(Check::kSlabs, "asked to close what the worker uses");
    }
    worker.slabs.erase(open);
    closed.push_back(slab);
  }
  Saw(Seen::kAsked);
  worker.asks.push_back({ask, std::move(closed)});
}

// A worker may be busy, and end the plan later, or never.
void World::Asked(Worker& worker, const GiveWay& ask) {
  if (!worker.plans.contains(ask.plan)) return;  // It is about to end.
  Saw(Seen::kAskedForPlan);
  worker.give_way.insert(ask.plan);
}

void World::AnswerAsk(Worker& worker) {
  for (const PlanId plan : std::exchange(worker.give_way, {})) {
    const auto entry = worker.plans.find(plan);
    if (entry == worker.plans.end() || entry->second.asking) continue;
    if (entry->second.plan->idle()) EndPlan(worker, plan);
  }
  if (!worker.asks.empty()) AnswerSlabAsk(worker);
}

// Each of them, as libhoist does by itself; false: there is none.
bool World::AnswerSlabAsks() {
  bool any = false;
  for (const auto& [number, worker] : workers_) {
    while (!worker->asks.empty()) {
      AnswerSlabAsk(*worker);
      any = true;
    }
  }
  return any;
}

void World::AnswerSlabAsk(Worker& worker) {
  const auto [ask, closed] = std::move(worker.asks.front());
  worker.asks.erase(worker.asks.begin());
  // Who asked is dead; the next one is told what is open.
  if (engine_ == nullptr || !worker.served) return;
  engine_->Ask(*worker.session, SlabsClosedArgs{ask.device, ask.number, closed},
               Reply<absl::Status>("slabs closed", &worker, nullptr));
}

}  // namespace hoistd::sim
