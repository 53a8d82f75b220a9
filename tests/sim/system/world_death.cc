// How hoistd ends, and how the next one goes on.
#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/keeper/persisted_book.h"
#include "tests/sim/system/mutant.h"
#include "tests/sim/system/world.h"
#include "tests/support/recount.h"

namespace hoistd::sim {
namespace {

// A turn that does much has about as many; Begin alone has few.
constexpr uint32_t kPointsOfATurn = 40;
constexpr uint32_t kPointsOfABegin = 8;
constexpr char kPinOf[] = "pin of ";
constexpr char kPlan[] = "plan ";

}  // namespace

void World::Run(absl::FunctionRef<void()> turn) {
  if (!TheReaper().Run(turn)) return Died(/*midway=*/true);
  ++ran_;
}

// At once, or in the midst of one of its next turns.
void World::Kill(const Numbers& n) {
  doom_ = (uint64_t{n[0]} << 40) + (uint64_t{n[1]} << 20) + n[2];
  if (n[0] % 3 == 0) return Died(/*midway=*/false);
  TheReaper().Arm(n[1] % kPointsOfATurn);
}

// What is under way on a device or a disk may be done or not; what it had put
// off is not, and nobody is answered. Who had no session yet ends.
void World::Died(bool midway) {
  TheReaper().Disarm();
  Saw(midway ? Seen::kKilledMidway : Seen::kKilled);
  left_.reset();
  if (!midway) left_ = KeptOf(engine_->node());
  std::mt19937_64 random(doom_);
  for (const auto& device : devices_) device->Reap(random);
  life_->io.Reap(random);
  engine_ = nullptr;
  (void)life_.release();
  open_.clear();
  resuming_.clear();
  std::vector<uint64_t> unheard;
  for (const auto& [number, worker] : workers_) {
    worker->served = false;
    if (!worker->session.has_value()) unheard.push_back(number);
    // It has heard of it before the book has; so nothing else is its own.
    if (midway && worker->opened_in == ran_) unheard.push_back(number);
  }
  for (const uint64_t number : unheard) workers_.erase(number);
  if (random() % 4 == 0) LeaveALaneInAnotherForm(random());
}

void World::LeaveALaneInAnotherForm(uint64_t number) {
  std::vector<WorkersPlan*> streamed;
  for (const auto& [at, worker] : workers_) {
    for (auto& [id, entry] : worker->plans) {
      if (entry.plan->streams_any()) streamed.push_back(&entry);
    }
  }
  if (streamed.empty()) return;
  WorkersPlan& entry = *streamed[number % streamed.size()];
  entry.plan->LeaveInAnotherForm();
  entry.unfit = true;
}

void World::Begin(const Numbers& n) {
  doom_ = (uint64_t{n[0]} << 40) + (uint64_t{n[1]} << 20) + n[2];
  if (n[0] % 3 == 0) TheReaper().Arm(n[1] % kPointsOfABegin);
  auto life = std::make_unique<Life>(PartsOfLife());
  if (TheReaper().Run([&] { life->Begin(); })) {
    life_ = std::move(life);
    engine_ = life_->engine.get();
    TheMutation().lives = static_cast<int>(++lives_);
    return Begun();
  }
  Saw(Seen::kKilledBeginning);
  LookAtRefused(*life);
  ++failed_begins_;
  std::mt19937_64 random(doom_);
  for (const auto& device : devices_) device->Reap(random);
  life->io.Reap(random);
  (void)life.release();
}

// Who comes after too many who died of it makes a book of its own.
void World::LookAtRefused(const Life& life) {
  if (life.refused.empty()) return;
  if (failed_begins_ < PersistedBook::kMaxAttempts) {
    Violation(Check::kBooks, absl::StrCat("what was left is refused: ",
                                          absl::StrJoin(life.refused, ", ")));
  }
  failed_begins_ = 0;
  gave_up_ = true;
}

// It has taken over all that was left, or after too many who died of that none
// of it.
void World::Begun() {
  LookAtRefused(*life_);
  failed_begins_ = 0;
  const bool gives_up = std::exchange(gave_up_, false);
  resuming_ = engine_->TakeResumed();
  taken_over_.clear();
  for (const auto& [user, holdings] :
       testing::CountHoldings(engine_->node().books())) {
    for (const auto& [device, bytes] : holdings.device_bytes) {
      taken_over_[{user, device}] = bytes;
    }
  }
  if (gives_up) ForgetInstance();
  for (const auto& [number, worker] : workers_) {
    const bool goes_on =
        std::ranges::any_of(resuming_, [&of = *worker](const auto& session) {
          return session.id == *of.session;
        });
    if (goes_on) continue;
    Violation(Check::kBooks,
              absl::StrCat("worker ", number, " does not go on: ",
                           absl::StrJoin(engine_->notes().notes, "; ")));
  }
  for (const auto& device : devices_) device->DropOthers();
  if (left_.has_value() && !gives_up) LookAtKept(*std::move(left_));
  left_.reset();
}

// A model that lost a group in this life has another id: what is kept of it is
// not of the model that its workers knew.
void World::DropRenumbered(std::set<std::string>& kept) const {
  const std::vector<std::string> notes = engine_->notes().notes;
  for (const auto& [id, entry] : engine_->node().copies().models()) {
    const std::string& model = entry->model->spec->name;
    const std::string owner = ToString(entry->model->owner);
    const std::string note =
        absl::StrCat("model ", model, " of ", owner, " is back without ");
    if (!std::ranges::any_of(notes, [&](const std::string& said) {
          return absl::StrContains(said, note);
        })) {
      continue;
    }
    const std::string name = absl::StrCat(" ", owner, " ", model, " of ");
    std::erase_if(kept, [&](const std::string& what) {
      return absl::StrContains(what, name);
    });
  }
}

void World::LookAtKept(std::set<std::string> left) {
  std::set<std::string> there = KeptOf(engine_->node());
  DropRenumbered(there);
  DropRenumbered(left);
  // The last one may have had no room yet for what the one before had pinned.
  std::erase_if(there, [&](const std::string& what) {
    return lives_ > 2 && absl::StartsWith(what, kPinOf) && !left.contains(what);
  });
  // A plan that ended is back until its worker says so, if its lane was not
  // closed yet; a pin may have to wait for that.
  const bool waits = std::ranges::any_of(there, [&](const std::string& what) {
    return absl::StartsWith(what, kPlan) && !left.contains(what);
  });
  for (std::set<std::string>* const of : {&left, &there}) {
    std::erase_if(*of, [&](const std::string& what) {
      return absl::StartsWith(what, kPlan);
    });
  }
  std::erase_if(left, [&](const std::string& what) {
    return waits && absl::StartsWith(what, kPinOf) && !there.contains(what);
  });
  if (there == left) return;
  Violation(Check::kBooks,
            absl::StrCat("left was: ", absl::StrJoin(left, ", "),
                         "\nthere is: ", absl::StrJoin(there, ", ")));
}

// Numbers of the last one mean nothing any more, and its workers have ended.
void World::ForgetInstance() {
  Saw(Seen::kGivenUp);
  workers_.clear();
  images_.clear();
  file_models_.clear();
  all_models_.clear();
  given_.clear();
  for (const auto& device : devices_) device->ForgetNumbers();
}

std::set<std::string> World::KeptOf(const Node& node) const {
  std::set<std::string> kept;
  for (const auto& [id, entry] : node.copies().models()) {
    const hoistd::Model& model = *entry->model;
    const std::string name = absl::StrCat(
        id.number(), " ", ToString(model.owner), " ", model.spec->name, " of ",
        entry->groups.size() - entry->missing());
    kept.insert(name);
    for (const GroupEntry& group : entry->groups) {
      for (const auto& [place, copy] : group.copies) {
        if (place == kHost || !copy.present()) continue;
        const std::string where = absl::StrCat(name, ", ", group.group->name,
                                               " ", hoistd::ToString(place.at));
        kept.insert(absl::StrCat(where, " leased ", copy.leases));
        if (copy.pinned) kept.insert(absl::StrCat(kPinOf, where));
      }
      if (group.spilled.has_value()) {
        kept.insert(absl::StrCat(name, ", ", group.group->name, " ",
                                 hoistd::ToString(OnDisk()), " leased 0"));
      }
    }
  }
  for (const auto& [id, plan] : node.tenure().plans().standing()) {
    if (!plan.ended) kept.insert(absl::StrCat(kPlan, id.number()));
  }
  for (const auto& [id, session] : node.tenure().sessions().all()) {
    kept.insert(absl::StrCat("session ", id.number(), " ",
                             session.args.client_name, " leases ",
                             session.leases.size()));
  }
  return kept;
}

// A session whose worker is there says what it has, and asks again; one whose
// worker is gone is closed.
void World::Resume(const Numbers& n) {
  const auto next =
      resuming_.begin() + static_cast<std::ptrdiff_t>(n[0] % resuming_.size());
  const SessionId session = next->id;
  resuming_.erase(next);
  const auto found = std::ranges::find_if(workers_, [&](const auto& worker) {
    return worker.second->session == session;
  });
  if (found == workers_.end()) return engine_->CloseSession(session);
  Worker& worker = *found->second;
  ResumeArgs has;
  for (const auto& [id, lease] : worker.leases) has.leases.push_back(id);
  for (const auto& [id, entry] : worker.plans) {
    has.plans.push_back(id);
    if (entry.plan->streams_any()) Saw(Seen::kLanesResumed);
  }
  for (const auto& [id, arena] : worker.arenas) {
    has.arenas.push_back(id);
    CheckArena(worker, arena);
    Saw(Seen::kArenasResumed);
  }
  for (const auto& [place, slab] : worker.slabs) {
    has.slabs.push_back({place.first, place.second});
  }
  if (!has.leases.empty() || !has.plans.empty()) Saw(Seen::kResumed);
  for (const auto& [number, pieces] : worker.pieces) {
    if (pieces.AnyHot()) Saw(Seen::kInPlaceResumed);
  }
  worker.asks.clear();
  worker.give_way.clear();
  worker.served = true;
  worker.resumed = true;
  engine_->Resume(session, has, WordsTo(worker),
                  Reply<absl::StatusOr<hoistd::Resumed>>(
                      "resume", &worker,
                      [this](Worker& to, absl::StatusOr<hoistd::Resumed> lost) {
                        if (!lost.ok()) {
                          Violation(Check::kProtocol,
                                    "who goes on has no session");
                        }
                        Resumed(to, *lost);
                      }));
  // Each may be answered and forgotten only later.
  for (const auto& [request, again] : worker.asked) {
    Saw(Seen::kAskedAgain);
    again();
  }
}

// Only a plan that is being replaced may have ended, and one that cannot be
// gone on with has.
void World::Resumed(Worker& worker, const hoistd::Resumed& lost) {
  if (!lost.lost_leases.empty()) {
    Violation(Check::kBooks,
              absl::StrCat("worker ", worker.number,
                           "'s lease is lost: ", lost.lost_leases[0].number()));
  }
  if (!lost.lost_arenas.empty()) {
    Violation(Check::kBooks,
              absl::StrCat("worker ", worker.number,
                           "'s arena is lost: ", lost.lost_arenas[0].number()));
  }
  for (const PlanId plan : lost.lost_plans) {
    const auto entry = worker.plans.find(plan);
    if (entry == worker.plans.end() || entry->second.asking) continue;
    if (!entry->second.unfit) {
      Violation(Check::kBooks,
                absl::StrCat("worker ", worker.number, "'s plan ",
                             plan.number(), " is lost"));
    }
    Saw(Seen::kUnfit);
    EndPlan(worker, plan);
  }
  for (const auto& [plan, entry] : worker.plans) {
    if (entry.asking || !entry.unfit) continue;
    Violation(Check::kProtocol, absl::StrCat("worker ", worker.number,
                                             " is not told that its plan ",
                                             plan.number(), " has ended"));
  }
}

void World::ResumeAll() {
  TheReaper().Disarm();
  // 1: it lives.
  if (life_ == nullptr) Begin({1, 0, 0});
  while (!resuming_.empty()) Resume({0, 0, 0});
}

void World::Given(uint64_t number) {
  if (given_.insert(number).second) return;
  Violation(Check::kProtocol,
            absl::StrCat("number ", number, " is given a second time"));
}

}  // namespace hoistd::sim
