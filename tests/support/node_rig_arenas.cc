// Arenas, whose pages sessions write to.
#include <utility>

#include "tests/support/node_rig.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing {

RequestId NodeRig::OpenArena(SessionId session, uint64_t pages,
                             absl::Duration deadline) {
  const RequestId request = NewRequest(session);
  Effects effects;
  node_->LeaseArena(request, session, {pages * kPage, deadline}, now, effects);
  Take(std::move(effects));
  CloseAtOnce();
  Check();
  return request;
}

const ArenaGrant& NodeRig::ArenaOf(RequestId request) const {
  const Answer* answer = AnswerTo(request);
  if (answer == nullptr || !answer->arena.has_value()) {
    ADD_FAILURE() << "no arena was granted: "
                  << (answer == nullptr ? "not answered"
                                        : answer->status.ToString());
    static const ArenaGrant none;
    return none;
  }
  return *answer->arena;
}

absl::Status NodeRig::CloseArena(SessionId session, ArenaId arena) {
  const auto found = arenas_.find(arena);
  if (found != arenas_.end() && found->second.session == session) {
    ArenaOver(arena);
  }
  Effects effects;
  absl::Status closed = node_->EndArena(session, arena, now, effects);
  Take(std::move(effects));
  CloseAtOnce();
  Check();
  return closed;
}

std::vector<std::pair<ArenaId, SessionId>> NodeRig::arenas() const {
  std::vector<std::pair<ArenaId, SessionId>> all;
  for (const auto& [id, arena] : arenas_) all.emplace_back(id, arena.session);
  return all;
}

void NodeRig::ArenaOver(ArenaId arena) {
  graves_.push_back(std::move(arenas_.at(arena).label));
  arenas_.erase(arena);
}

void NodeRig::ArenasOver(SessionId session) {
  for (const auto& [arena, of] : arenas()) {
    if (of == session) ArenaOver(arena);
  }
}

void NodeRig::Granted(SessionId session, const ArenaGrant& grant) {
  StandingArena& arena = arenas_[grant.id];
  arena = {session, grant, std::make_unique<int>()};
  Memory& memory = device_memory_[grant.device.number()];
  uint64_t bytes = 0;
  for (const SlabUse& use : grant.slabs) {
    EXPECT_TRUE(use.slab.writable && use.slab.apart);
    EXPECT_TRUE(devices_[grant.device.number()]->slabs().contains(use.slab.id));
    ExpectAll(memory, use.slab.offset, use.slab.bytes, nullptr,
              "an arena has somebody's bytes in it");
    Fill(memory, use.slab.offset, use.slab.bytes, arena.label.get());
    bytes += use.slab.bytes;
  }
  EXPECT_EQ(bytes, grant.bytes);
}

void NodeRig::ZeroNext(const SlabWork& work, absl::Status status) {
  const uint32_t d = work.device.number();
  // The slab maker leaves alone what is to go.
  for (const SlabWork& later : slab_work(d)) {
    if (later.kind == SlabWork::Kind::kDestroy &&
        later.slab.id == work.slab.id) {
      return;
    }
  }
  if (status.ok()) status = devices_[d]->ZeroSlab(work.slab.id);
  if (status.ok()) {
    Fill(device_memory_[d], work.slab.offset, work.slab.bytes, nullptr);
  } else {
    EXPECT_OK(devices_[d]->DestroySlab(work.slab.id));
  }
  Effects effects;
  node_->SlabZeroed(work.device, work.slab.id, status, now, effects);
  Take(std::move(effects));
  CloseAtOnce();
  Check();
}

void NodeRig::CheckArenas(DeviceIndex device,
                          std::map<uint64_t, uint64_t>& leased) {
  for (const auto& [id, arena] : arenas_) {
    if (arena.grant.device != device) continue;
    for (const SlabUse& use : arena.grant.slabs) {
      ExpectAll(device_memory_[device.number()], use.slab.offset,
                use.slab.bytes, arena.label.get(), "an arena was written to");
      EXPECT_TRUE(leased.emplace(use.slab.offset, use.slab.bytes).second)
          << "an arena where something else is";
    }
  }
}

}  // namespace hoistd::testing
