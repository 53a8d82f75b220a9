// What workers do with tensors that are read in place.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/system/mutant.h"
#include "tests/sim/system/world.h"

namespace hoistd::sim {
namespace {

constexpr size_t kMostTensors = 2;  // A worker's.
// As libhoist's.
constexpr absl::Duration kPatience = absl::Seconds(2);
// That one stands for: what is touched changes soon.
constexpr double kPasses = hoist::Heat::kHalfLife;

}  // namespace

std::pair<Worker*, uint64_t> World::PickPieces(uint32_t n) {
  std::vector<std::pair<Worker*, uint64_t>> all;
  for (const auto& [at, worker] : workers_) {
    for (const auto& [number, pieces] : worker->pieces) {
      if (pieces.open()) all.push_back({worker.get(), number});
    }
  }
  if (all.empty()) return {nullptr, 0};
  return all[n % all.size()];
}

void World::InPlace(Op op, const Numbers& n) {
  const auto [worker, number] = PickPieces(n[0]);
  if (worker == nullptr) return;
  if (op == Op::kCloseInPlace) return CloseInPlace(*worker, number);
  SimPieces& pieces = worker->pieces.at(number);
  if (op == Op::kPass) return Pass(*worker, pieces, n[1]);
  if (op == Op::kPlace && pieces.MayPlace()) {
    return Place(*worker, pieces, n[1]);
  }
  if (op != Op::kChooseHot) return;
  if (n[1] % 4 == 0) pieces.budget_bytes = n[2] % 12 * kPage;
  ChooseHot(*worker, number);
  if (n[1] % 5 == 0) TellHeat(*worker, number);
}

void World::OpenInPlace(Worker& worker, const Numbers& n) {
  const ModelPtr model = PickModel(worker, n[1]);
  if (model == nullptr || model->spec->groups.empty() ||
      options_.in_place_pages == 0 || worker.pieces.size() >= kMostTensors) {
    return;
  }
  const uint64_t number = ++last_pieces_;
  worker.pieces.emplace(number,
                        SimPieces(model, GpuAt(n[1]), (2 + n[2] % 8) * kPage));
  const size_t all = model->spec->groups.size();
  for (size_t piece = 0; piece < all; ++piece) {
    // One that was refused has closed it.
    if (!worker.pieces.contains(number)) return;
    StageArgs args;
    args.key = worker.pieces.at(number).KeyOf(piece);
    args.device = InPlaceIndex();
    args.deadline = absl::Seconds(1 + n[2] % 3) * 5;
    args.apart = true;
    Stage(worker, args,
          [this, number, piece](Worker& to, std::optional<LeaseGrant> lease) {
            ColdCame(to, number, piece, std::move(lease));
          });
  }
}

// All of them, or none.
void World::ColdCame(Worker& worker, uint64_t number, size_t piece,
                     std::optional<LeaseGrant> lease) {
  const auto found = worker.pieces.find(number);
  if (found == worker.pieces.end()) {
    if (lease.has_value()) Release(worker, lease->id);
  } else if (!lease.has_value()) {
    CloseInPlace(worker, number);
  } else {
    found->second.Lay(piece, *lease);
    // And learns what others told.
    if (found->second.open()) TellHeat(worker, number);
  }
}

void World::CloseInPlace(Worker& worker, uint64_t number) {
  std::vector<LeaseId> over = worker.pieces.at(number).Close();
  worker.pieces.erase(number);
  for (const LeaseId lease : over) Release(worker, lease);
}

// Begins, or ends: then it has touched some of the pieces.
void World::Pass(const Worker& worker, SimPieces& pieces, uint32_t touched) {
  CheckPieces(worker, pieces);
  if (engine_ == nullptr) Saw(Seen::kReadUnserved);
  pieces.reading = !pieces.reading;
  if (pieces.reading) return;
  std::vector<double> read(pieces.size(), 0);
  for (size_t i = 0; i < read.size(); ++i) {
    if ((touched >> (i % 10) & 1) == 0) continue;
    read[i] = kPage * kPasses;
    pieces.touched = true;
    Saw(pieces.book().IsHot(i) ? Seen::kHotPieces : Seen::kColdPieces);
  }
  pieces.book().heat().Add(read, kPasses);
}

void World::CheckPieces(const Worker& worker, const SimPieces& pieces) {
  for (const auto& [piece, shown] : pieces.shown()) {
    CheckBytes(shown.device, shown.offset, pieces.KeyOf(piece),
               absl::StrCat("worker ", worker.number, "'s tensor in place"));
  }
}

void World::ChooseHot(Worker& worker, uint64_t number) {
  SimPieces& pieces = worker.pieces.at(number);
  hoist::PieceBook& book = pieces.book();
  book.Choose(pieces.budget_bytes);
  for (const LeaseId lease : pieces.Leaving()) {
    if (TheMutation().Shows(Mutant::kEarlyLeave)) Release(worker, lease);
  }
  ReleaseLeft(worker, pieces);
  const std::vector<size_t> next = book.NextToBring(pieces.budget_bytes);
  // A budget that fell leaves more, until tensors show other memory.
  if (!next.empty()) CheckBudget(worker, pieces);
  for (const size_t piece : next) {
    StageArgs args;
    args.key = pieces.KeyOf(piece);
    args.device = pieces.device();
    args.deadline = kPatience;
    args.apart = true;
    args.background = true;
    Stage(worker, args,
          [this, number, piece](Worker& to, std::optional<LeaseGrant> lease) {
            HotCame(to, number, piece, std::move(lease));
          });
  }
}

void World::HotCame(Worker& worker, uint64_t number, size_t piece,
                    std::optional<LeaseGrant> lease) {
  const auto found = worker.pieces.find(number);
  if (found == worker.pieces.end()) {
    if (lease.has_value()) Release(worker, lease->id);
  } else if (lease.has_value()) {
    found->second.HotCame(piece, *lease);
  } else {
    found->second.book().DidNotCome(piece);
  }
}

void World::Place(Worker& worker, SimPieces& pieces, uint32_t which) {
  Saw(pieces.Place(which) ? Seen::kPlacedHot : Seen::kPlacedCold);
  if (engine_ == nullptr) Saw(Seen::kPlacedUnserved);
  ReleaseLeft(worker, pieces);
}

void World::ReleaseLeft(Worker& worker, SimPieces& pieces) {
  for (const uint64_t number : pieces.book().TakeLeft()) {
    const LeaseId lease(number);
    if (worker.leases.contains(lease)) {
      Release(worker, lease);
    } else if (TheMutation().mutant != Mutant::kEarlyLeave) {
      Violation(Check::kProtocol, "a piece's lease is left twice");
    }
  }
}

void World::TellHeat(Worker& worker, uint64_t number) {
  const SimPieces& pieces = worker.pieces.at(number);
  HeatArgs args;
  args.model = pieces.model()->id;
  args.device = pieces.device();
  for (size_t i = 0; i < pieces.size() && pieces.touched; ++i) {
    args.heat.push_back({pieces.KeyOf(i).group,
                         static_cast<float>(pieces.book().heat().OfAPass(i))});
  }
  Ask<absl::StatusOr<std::vector<GroupHeat>>>(
      "report heat", worker,
      [this, args](SessionId session, Done<std::vector<GroupHeat>> done) {
        engine_->Ask(session, args, std::move(done));
      },
      [this, number](Worker& to, absl::StatusOr<std::vector<GroupHeat>> known) {
        if (known.ok()) HeatCame(to, number, *known);
      });
}

// A tensor that no pass has touched yet begins with what others told.
void World::HeatCame(Worker& worker, uint64_t number,
                     const std::vector<GroupHeat>& known) {
  const auto found = worker.pieces.find(number);
  if (found == worker.pieces.end()) return;
  SimPieces& pieces = found->second;
  std::vector<double> read(pieces.size(), 0);
  for (const GroupHeat& of : known) {
    const size_t piece = of.group.number();
    if (piece >= read.size()) continue;  // Published since.
    if (read[piece] > 0 || !(of.heat > 0)) {
      Violation(Check::kProtocol, "a group's heat is told twice, or is none");
    }
    read[piece] = of.heat;
  }
  if (!pieces.touched && !known.empty()) pieces.book().heat().Seed(read);
}

void World::CheckBudget(const Worker& worker, const SimPieces& pieces) {
  const uint64_t bytes = pieces.book().device_bytes();
  if (bytes <= pieces.budget_bytes) return;
  Violation(Check::kBudget,
            absl::StrCat("worker ", worker.number, "'s tensor in place has ",
                         bytes, " bytes on its device, and a budget of ",
                         pieces.budget_bytes));
}

// What is given back may be another's at once.
void World::CheckNotShown(const Worker& worker, const LeaseGrant& lease) const {
  for (const auto& [number, pieces] : worker.pieces) {
    for (const auto& [piece, shown] : pieces.shown()) {
      if (shown.device != lease.device || shown.offset != lease.offset) {
        continue;
      }
      // The other of two leases on one copy goes on.
      const auto holds = [&lease, &shown = shown](const auto& held) {
        return held.first != lease.id && held.second.device == shown.device &&
               held.second.offset == shown.offset;
      };
      if (std::ranges::any_of(worker.leases, holds)) continue;
      Violation(Check::kSlabs,
                absl::StrCat("worker ", worker.number,
                             " gives back what a tensor of its shows"));
    }
  }
}

// Nothing else lies in its slab.
void World::CheckApart(const Worker& worker, const LeaseGrant& lease) {
  const uint64_t bytes = (lease.bytes + kPage - 1) / kPage * kPage;
  const bool own = std::ranges::any_of(worker.slabs, [&](const auto& open) {
    const SlabSpec& slab = open.second;
    return open.first.first == lease.device && slab.apart &&
           slab.offset == lease.offset && slab.bytes == bytes;
  });
  if (!own) {
    Violation(Check::kSlabs, absl::StrCat("worker ", worker.number,
                                          "'s piece has no slab of its own"));
  }
}

// With nothing else to do, what is chosen comes and changes places.
void World::InPlaceSettles() {
  constexpr int kRounds = 3;
  for (const auto& [at, worker] : workers_) {
    std::vector<uint64_t> numbers;
    for (const auto& [number, pieces] : worker->pieces) {
      if (pieces.open()) numbers.push_back(number);
    }
    for (const uint64_t number : numbers) {
      SimPieces& pieces = worker->pieces.at(number);
      if (pieces.reading) Pass(*worker, pieces, 0);
      for (int round = 0; round < kRounds; ++round) {
        ChooseHot(*worker, number);
        Rest();
        while (pieces.MayPlace()) Place(*worker, pieces, 0);
      }
      CheckPieces(*worker, pieces);
      CheckBudget(*worker, pieces);
    }
  }
}

}  // namespace hoistd::sim
