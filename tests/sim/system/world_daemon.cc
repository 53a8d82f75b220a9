// What goes on without workers: threads, devices, files, admins.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/system/world.h"

namespace hoistd::sim {
namespace {

template <typename T>
const T& Of(const std::vector<T>& from, uint32_t n) {
  return from[n % from.size()];
}

}  // namespace

std::vector<size_t> World::DueLoops(bool engine) {
  std::vector<size_t> due;
  if (life_ == nullptr) return due;
  for (size_t i = 0; i < life_->threads.loops(); ++i) {
    if ((i >= life_->links.size()) == engine && life_->threads.Due(i)) {
      due.push_back(i);
    }
  }
  return due;
}

std::vector<size_t> World::Tasks() const {
  std::vector<size_t> tasks;
  if (life_ == nullptr) return tasks;
  for (size_t i = 0; i < life_->threads.executors(); ++i) {
    if (life_->threads.HasTask(i)) tasks.push_back(i);
  }
  return tasks;
}

bool World::Useful(Op op) {
  const auto any_plan = [this](auto&& good) {
    return std::ranges::any_of(workers_, [&](const auto& of) {
      return std::ranges::any_of(of.second->plans, [&](const auto& plan) {
        return good(plan.second);
      });
    });
  };
  const auto any_worker = [this](auto&& good) {
    return std::ranges::any_of(
        workers_, [&](const auto& of) { return good(*of.second); });
  };
  const auto any_pieces = [&](auto&& good) {
    return any_worker([&](const Worker& worker) {
      return std::ranges::any_of(
          worker.pieces, [&](const auto& of) { return good(of.second); });
    });
  };
  switch (op) {
    case Op::kWorld:
      return false;
    case Op::kEngine:
    case Op::kLink:
      return !DueLoops(op == Op::kEngine).empty();
    case Op::kDevice:
      return std::ranges::any_of(devices_,
                                 [](const auto& d) { return d->busy(); });
    case Op::kRead:
    case Op::kReadFails:
      return life_ != nullptr && life_->io.under_way() > 0;
    case Op::kTask:
      return !Tasks().empty();
    case Op::kStream:
      return any_plan([](const WorkersPlan& entry) {
        return entry.plan->CanStep(0) || entry.plan->CanStep(1) ||
               entry.plan->CanStep(2);
      });
    case Op::kKill:
      return options_.keeps && life_ != nullptr;
    case Op::kBegin:
      return life_ == nullptr;
    case Op::kResume:
      return life_ != nullptr && !resuming_.empty();
    case Op::kOpen:
      return life_ != nullptr && workers_.size() < 4;
    case Op::kCompute:
    case Op::kRelease:
      return any_worker([](const Worker& w) { return !w.leases.empty(); });
    case Op::kAnswerAsk:
      return any_worker([](const Worker& w) {
        return !w.asks.empty() || !w.give_way.empty();
      });
    case Op::kDone:
      return any_plan(
          [](const WorkersPlan& entry) { return entry.plan->MayDone(); });
    case Op::kReplacePlan:
    case Op::kClearPlan:
    case Op::kUse:
      return any_plan([](const WorkersPlan&) { return true; });
    case Op::kCapture:
      return any_plan(
          [](const WorkersPlan& entry) { return entry.plan->MayCapture(); });
    case Op::kReplay:
      return any_plan([](const WorkersPlan& entry) {
        return entry.plan->captured() && entry.plan->idle();
      });
    case Op::kOpenArena:
      return options_.in_place_pages > 0 && !workers_.empty();
    case Op::kCloseArena:
    case Op::kWriteArena:
      return any_worker([](const Worker& w) { return !w.arenas.empty(); });
    case Op::kOpenInPlace:
      return options_.in_place_pages > 0 &&
             any_worker([](const Worker& w) { return !w.models.empty(); });
    case Op::kCloseInPlace:
    case Op::kPass:
    case Op::kChooseHot:
      return any_pieces([](const SimPieces& pieces) { return pieces.open(); });
    case Op::kPlace:
      return any_pieces(
          [](const SimPieces& pieces) { return pieces.MayPlace(); });
    default:
      return true;
  }
}

bool World::Progress(Op op, const Numbers& n) {
  if (op == Op::kWait) {
    const absl::Time next =
        life_ == nullptr ? absl::InfiniteFuture() : life_->threads.NextDue();
    if (n[0] % 4 == 0) {
      clock_.Advance(absl::Microseconds(n[1] % 3000));
    } else if (next < absl::InfiniteFuture()) {
      clock_.AdvanceTo(std::min(next, clock_.Now() + absl::Milliseconds(5)));
    }
    return true;
  }
  if (op == Op::kLongWait) {
    clock_.Advance(absl::Milliseconds(n[0] % 7000));
    return true;
  }
  if (!Useful(op)) return false;
  switch (op) {
    case Op::kEngine:
    case Op::kLink: {
      const size_t loop = Of(DueLoops(op == Op::kEngine), n[0]);
      Run([&] { life_->threads.Turn(loop); });
      return true;
    }
    case Op::kDevice: {
      std::vector<SimDevice*> busy;
      for (const auto& device : devices_) {
        if (device->busy()) busy.push_back(device.get());
      }
      Run([&] { Of(busy, n[0])->Step(); });
      return true;
    }
    case Op::kRead:
    case Op::kReadFails: {
      const absl::Status status = op == Op::kRead ? absl::OkStatus()
                                  : n[1] % 3 == 0
                                      ? absl::DataLossError("the disk failed")
                                      : absl::UnavailableError("not now");
      Run([&] { life_->io.End(n[0] % life_->io.under_way(), status); });
      return true;
    }
    case Op::kTask: {
      const size_t task = Of(Tasks(), n[0]);
      Run([&] { life_->threads.RunTask(task); });
      return true;
    }
    case Op::kStream: {
      std::vector<std::pair<SimPlan*, uint64_t>> ready;
      for (const auto& [number, worker] : workers_) {
        for (const auto& [id, entry] : worker->plans) {
          for (uint64_t s = 0; s < SimStreams::kStreams; ++s) {
            if (entry.plan->CanStep(s)) ready.push_back({entry.plan.get(), s});
          }
        }
      }
      const auto& [plan, stream] = Of(ready, n[0]);
      plan->Step(stream);
      return true;
    }
    default:
      return false;
  }
}

CopySelector World::Selector(const Model& model, std::optional<TierAt> at) {
  CopySelector which;
  which.model = ToString(OwnedName{model.owner, model.spec->name});
  which.at = at;
  which.asker = {.uid = User(0), .admin = true};
  return which;
}

void World::Admin(Op op, const Numbers& n) {
  if (op == Op::kShare) {
    const auto [worker, entry] = PickPlan(n[0]);
    if (entry == nullptr) return;
    ShareChange change;
    change.weight = 1 + n[1] % 5;
    engine_->Ask(
        SetShareArgs{entry->plan->grant().id, change},
        Reply<absl::StatusOr<ShareChanged>>("set a share", nullptr, nullptr));
    return;
  }
  if (all_models_.empty()) return;
  const Model& model =
      *std::next(all_models_.begin(),
                 static_cast<std::ptrdiff_t>(n[0] % all_models_.size()))
           ->second;
  const TierAt to = n[1] % 3 == 0 ? OnHost() : OnDevice(DeviceAt(n[2]));
  const std::optional<TierAt> at =
      n[2] % 3 == 0 ? std::nullopt : std::optional(to);
  using Totals = absl::StatusOr<CopyTotals>;
  if (op == Op::kLoad) {
    engine_->Ask(LoadArgs{model.id, to, [](const LoadProgress&) {}},
                 Reply<absl::StatusOr<LoadProgress>>("load", nullptr, nullptr));
  } else if (op == Op::kEvict) {
    engine_->Ask(EvictArgs{Selector(model, at), /*forget=*/false},
                 Reply<Totals>("evict", nullptr, nullptr));
  } else if (op == Op::kForgetAny) {
    // Nobody needs to be told: who still has the id is refused.
    engine_->Ask(EvictArgs{Selector(model, std::nullopt), /*forget=*/true},
                 Reply<Totals>("evict --forget", nullptr, nullptr));
  } else if (op == Op::kPin) {
    engine_->Ask(PinArgs{Selector(model, to), absl::Seconds(n[2] % 4)},
                 Reply<Totals>("pin", nullptr, nullptr));
  } else if (op == Op::kUnpin) {
    engine_->Ask(UnpinArgs{Selector(model, std::nullopt)},
                 Reply<Totals>("unpin", nullptr, nullptr));
  }
}

}  // namespace hoistd::sim
