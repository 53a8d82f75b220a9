// What workers do with memory in place that they write to.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/system/world.h"

namespace hoistd::sim {

void World::OpenArena(Worker& worker, const Numbers& n) {
  const ArenaArgs args = {(1 + n[1] % 6) * kPage, absl::Seconds(n[2] % 4) * 5};
  using Opened = absl::StatusOr<ArenaGrant>;
  Ask<Opened>(
      "open arena", worker,
      [this, args](SessionId session, Done<ArenaGrant> done) {
        engine_->Ask(session, args, std::move(done));
      },
      [this](Worker& to, Opened grant) {
        if (!grant.ok()) return;
        Given(grant->id.number());
        Saw(Seen::kArenas);
        CheckArena(to, to.arenas[grant->id] = {*grant});
      });
}

void World::UseArena(Op op, const Numbers& n) {
  std::vector<std::pair<Worker*, ArenaId>> all;
  for (const auto& [number, worker] : workers_) {
    for (const auto& [id, arena] : worker->arenas) {
      all.push_back({worker.get(), id});
    }
  }
  if (all.empty()) return;
  const auto [worker, id] = all[n[0] % all.size()];
  if (op == Op::kCloseArena) return CloseArena(*worker, id);
  WorkersArena& arena = worker->arenas.at(id);
  CheckArena(*worker, arena);
  arena.filled = static_cast<std::byte>(1 + n[1] % 255);
  SimDevice& device = *devices_[arena.grant.device.number()];
  for (const SlabUse& use : arena.grant.slabs) {
    std::ranges::fill(device.span().subspan(use.slab.offset, use.slab.bytes),
                      arena.filled);
  }
}

void World::CloseArena(Worker& worker, ArenaId arena) {
  CheckArena(worker, worker.arenas.at(arena));
  worker.arenas.erase(arena);
  Ask<absl::Status>(
      "close arena", worker,
      [this, arena](SessionId session, Done<void> done) {
        engine_->Ask(session, CloseArenaArgs{arena}, std::move(done));
      },
      [](Worker& to, absl::Status status) {
        // As a release.
        if (status.ok() || (to.resumed && absl::IsNotFound(status))) return;
        Violation(Check::kProtocol,
                  absl::StrCat("close arena: ", std::string(status.message())));
      });
}

// It has its worker's bytes, and at first nobody's.
void World::CheckArena(const Worker& worker, const WorkersArena& arena) {
  uint64_t bytes = 0;
  for (const SlabUse& use : arena.grant.slabs) {
    bytes += use.slab.bytes;
    const auto there = devices_[arena.grant.device.number()]->span().subspan(
        use.slab.offset, use.slab.bytes);
    const bool right = std::ranges::all_of(
        there, [&](std::byte one) { return one == arena.filled; });
    if (right && use.slab.writable) continue;
    Violation(Check::kBytes, absl::StrCat("an arena of worker ", worker.number,
                                          " has another's bytes"));
  }
  if (bytes != arena.grant.bytes) {
    Violation(Check::kProtocol, "an arena's slabs are not all of it");
  }
}

}  // namespace hoistd::sim
