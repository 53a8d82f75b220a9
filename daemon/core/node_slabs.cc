// Slabs: giving them to sessions, and asking idle workers to close some.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/core/node.h"
#include "daemon/core/node_arenas.h"

namespace hoistd {
namespace {

absl::Status WaitsForIdle() {
  return absl::UnavailableError(
      "waiting for idle workers to close device memory");
}

}  // namespace

// Those of a range that the session does not have open; it uses all of them.
std::vector<SlabUse> Node::NewSlabs(SessionId id, DeviceIndex device,
                                    uint64_t offset, uint64_t bytes) {
  std::vector<SlabUse> slabs;
  const DeviceSpace& space = *spaces_[device.number()];
  for (const SlabSpec& slab : space.SlabsOf(offset, bytes)) {
    if (!slabs_.Use(id, device, slab)) continue;
    slabs.push_back({slab, space.ShareOf(slab.id)});
  }
  return slabs;
}

void Node::SlabMade(DeviceIndex device, SlabId slab,
                    const absl::StatusOr<SlabShare>& made, absl::Time now,
                    Effects& effects) {
  DeviceSpace& space = *spaces_[device.number()];
  const ZonedSlab zoned = space.SlabMade(slab, made);
  if (made.ok() && made->keep_fd >= 0) {
    Keep(KeptSlab{device, zoned.slab, models_.ReaderOf(zoned.zone.readers),
                  made->keep_fd});
  }
  if (!zoned.owner.has_value()) {
    ++space_epoch_;  // Who waits for it goes on, or evicts instead.
  } else if (const CopyRef* ref = copies_.RefOf(*zoned.owner)) {
    ApartMade(*ref, made.status());
  } else {
    NodeArenas(*this).PieceMade(*zoned.owner, made.status(), effects);
  }
  // Those who waited for what was coming look again.
  if (space.coming() == 0 && !arenas_.waiting().empty()) ++space_epoch_;
  Tick(now, effects);
}

void Node::SlabZeroed(DeviceIndex device, SlabId slab,
                      const absl::Status& zeroed, absl::Time now,
                      Effects& effects) {
  const std::optional<ZonedSlab> zoned =
      spaces_[device.number()]->SlabZeroed(slab, zeroed);
  if (!zoned.has_value()) return;
  if (!zeroed.ok()) Keep(KeptSlab{device, zoned->slab, std::nullopt, -1});
  if (zoned->owner.has_value()) {
    NodeArenas(*this).PieceMade(*zoned->owner, zeroed, effects);
  } else {
    ++space_epoch_;
  }
  Tick(now, effects);
}

// The slab of a copy apart is there; or the copy has no space any more.
void Node::ApartMade(CopyRef ref, const absl::Status& made) {
  Copy& copy = copies_.At(ref);
  HOIST_CHECK(copy.awaiting_slab);
  copy.awaiting_slab = false;
  if (made.ok()) return needs_.Wake(ref);
  copies_.DropOwner(copy.owner);
  copy.awaiting_host = false;
  copies_.Apply(copy, ResidencyEvent::kFillFailed);
  plans_.SetIdle(ref);
  ++space_epoch_;
  if (Need* need = needs_.Find(ref)) {
    need->blocked = {absl::ResourceExhaustedError(made.message()), ref.place.at,
                     copies_.SpaceOf(ref.key)};
    needs_.Block(*need);
  }
}

// A lease or a ring there is over.
void Node::LeaveSlabs(SessionId id, DeviceIndex device, uint64_t offset,
                      uint64_t bytes) {
  for (const SlabSpec& slab :
       spaces_[device.number()]->SlabsOf(offset, bytes)) {
    if (slabs_.Leave(id, device, slab.id)) ++space_epoch_;
  }
}

// All who have them open, or those of `uid`.
void Node::AskToClose(DeviceIndex device, const std::vector<SlabId>& slabs,
                      std::optional<User> uid, absl::Time now,
                      Effects& effects) {
  if (slabs_.Ask(device, slabs, uid, now, effects.asks)) ++space_epoch_;
}

// Unavailable: who has slabs open that would do was asked to close them. OK:
// nobody has.
absl::Status Node::AskForRoom(DeviceIndex device, const Want& want,
                              KeepValueFn worth, absl::Time now,
                              Effects& effects) {
  const Room room = spaces_[device.number()]->RoomElsewhere(
      want, /*own=*/true, /*idle=*/true, worth,
      [&](SlabId slab) { return slabs_.OpenedBy(device, slab); });
  if (!room.enough) return absl::OkStatus();
  AskToClose(device, room.idle, std::nullopt, now, effects);
  return WaitsForIdle();
}

// Of whatever device: slabs apart give back the descriptors that another needs.
absl::Status Node::FreeDescriptors(Backing backing, const Need& need,
                                   absl::Time now, Effects& effects) {
  const auto may = [&] { return spaces_[0]->MayAddApart(backing); };
  const auto worth = [&](OwnerId other) { return ValueOf(other, need, now); };
  for (size_t i = 0; i < spaces_.size() && !may().ok(); ++i) {
    const DeviceIndex device(static_cast<uint32_t>(i));
    const auto opened = [&](SlabId slab) {
      return slabs_.OpenedBy(device, slab);
    };
    DeviceSpace& space = *spaces_[i];
    space.ReleaseApart(backing, opened);
    for (const OwnerId owner : space.MovableApart(worth, opened)) {
      if (may().ok()) break;
      EvictAll({owner}, now, effects);
      space.ReleaseApart(backing, opened);
    }
    if (may().ok() || (!need.urgent && need.waiters.empty())) continue;
    const std::vector<SlabId> idle = space.IdleApart(worth, opened);
    if (idle.empty()) continue;
    AskToClose(device, idle, std::nullopt, now, effects);
    return WaitsForIdle();
  }
  return may();
}

void Node::SlabsClosed(SessionId id, const SlabsClosedArgs& closed,
                       absl::Time now, Effects& effects) {
  if (!slabs_.Closed(id, closed, now)) return;
  ++space_epoch_;
  Tick(now, effects);
}

void Node::LookAtAsks(absl::Time now, Effects& effects) {
  const SlabBook::Looked looked = slabs_.LookAt(now);
  if (looked.changed) ++space_epoch_;
  for (const SlabBook::Silent& silent : looked.silent) {
    NodeEvent event;
    event.kind = EventKind::kSlabsHeldOpen;
    event.session = silent.session;
    event.at = OnDevice(silent.device);
    event.bytes = silent.bytes;
    event.detail = absl::StrCat("by an idle worker of uid ",
                                silent.uid.number(), " that does not answer");
    effects.events.push_back(std::move(event));
  }
}

// Whether the session may have these slabs open; none: some that are not known
// yet. Idle slabs count with what their user holds, so that workers which keep
// them open and do not answer take no more from others than one user may hold:
// where it would be more, some are to be closed first.
absl::Status Node::CheckOpen(SessionId id, DeviceIndex device,
                             const std::vector<SlabSpec>& used, absl::Time now,
                             Effects& effects) {
  const User uid = sessions_.At(id).uid();
  const uint64_t limit = quota_.DeviceLimitOf(uid, device);
  const bool has_all =
      !used.empty() &&
      std::all_of(used.begin(), used.end(), [&](const SlabSpec& slab) {
        return slabs_.HasOpen(id, device, slab.id);
      });
  if (limit == QuotaLimits::kNone || has_all) return absl::OkStatus();
  const std::vector<SlabBook::Idle> idle = slabs_.IdleOf(uid, device, used);
  uint64_t holds = quota_.Of(uid).On(device);
  uint64_t kept = 0;
  for (const SlabBook::Idle& slab : idle) {
    holds += slab.bytes;
    if (slab.kept) kept += slab.bytes;
  }
  if (holds <= limit) return absl::OkStatus();
  const uint64_t over = holds - limit;
  uint64_t asked = 0;
  std::vector<SlabId> unneeded;
  for (const SlabBook::Idle& slab : idle) {
    if (slab.kept || asked >= over) continue;
    unneeded.push_back(slab.slab);
    asked += slab.bytes;
  }
  AskToClose(device, unneeded, uid, now, effects);
  if (asked >= over) return WaitsForIdle();
  return absl::ResourceExhaustedError(absl::StrCat(
      "idle workers of the same user hold ", HumanBytes(kept),
      " of device memory open and do not answer; it counts against "
      "quota.device_bytes in hoistd.toml: end them, or let them run"));
}

// What the copies take, and the rings that are there.
std::map<Zone, uint64_t> Node::ByZone(DeviceIndex device,
                                      const std::set<CopyRef>& copies) const {
  std::map<Zone, uint64_t> bytes;
  for (const CopyRef& ref : copies) {
    bytes[ZoneOf(ref)] += copies_.SpaceOf(ref.key);
  }
  for (const auto& [zone, ring] : plans_.promises(device).rings()) {
    bytes[zone] += ring;
  }
  return bytes;
}

// What each zone keeps from others: what `firm` takes, or slabs that cannot be
// given back, whichever is more.
std::map<Zone, uint64_t> Node::HeldByZone(DeviceIndex device,
                                          const std::set<CopyRef>& firm,
                                          bool idle_is_held) const {
  const auto movable = [&](OwnerId owner) -> std::optional<double> {
    const CopyRef* ref = copies_.RefOf(owner);
    if (ref == nullptr || firm.contains(*ref)) return std::nullopt;
    return 0;
  };
  std::map<Zone, uint64_t> held = spaces_[device.number()]->StuckBytes(
      !idle_is_held, movable,
      [&](SlabId slab) { return slabs_.OpenedBy(device, slab); });
  for (const auto& [zone, bytes] : ByZone(device, firm)) {
    held[zone] = std::max(held[zone], bytes);
  }
  return held;
}

// What a plan cannot have beside all that was promised: the rest of others'
// slabs, and what is held open.
uint64_t Node::LostTo(const SetPlanArgs& args, SessionId session) const {
  const std::set<CopyRef> promised =
      plans_.PromisedCopies(args.device, session, args.replaces);
  const Zone own =
      ZoneOf({{args.model, GroupIndex(0)}, {OnDevice(args.device), false}});
  std::map<Zone, uint64_t> firm = ByZone(args.device, promised);
  uint64_t lost = 0;
  for (const auto& [zone, bytes] :
       HeldByZone(args.device, promised, /*idle_is_held=*/false)) {
    if (zone != own) lost += bytes - firm[zone];
  }
  return lost;
}

// Whether all of the plan can be staged beside what others were promised and
// cannot be made to give back.
absl::Status Node::MakeRoom(const PendingPlan& pending, absl::Time now,
                            Effects& effects) {
  const PlanGrant& grant = pending.grant;
  const DeviceIndex device = grant.device;
  const Zone own = ZoneOf(RingRef(grant));
  std::set<CopyRef> firm =
      plans_.PromisedCopies(device, pending.session, std::nullopt);
  for (const PlannedGroup& group : grant.groups) {
    if (!group.resident) continue;
    firm.insert({{grant.model, group.group}, {OnDevice(device), false}});
  }
  const auto fits = [&](bool idle_is_held) {
    uint64_t bytes = ByZone(device, firm)[own] + grant.ring_bytes;
    for (const auto& [zone, held] : HeldByZone(device, firm, idle_is_held)) {
      if (zone != own) bytes += held;
    }
    return bytes <= spaces_[device.number()]->capacity();
  };
  if (!fits(/*idle_is_held=*/false)) return absl::ResourceExhaustedError("");
  if (absl::Status s = CheckOpen(pending.session, device, {}, now, effects);
      !s.ok()) {
    return s;
  }
  if (fits(/*idle_is_held=*/true)) return absl::OkStatus();
  const Want all = {own, spaces_[device.number()]->capacity()};
  const auto movable = [&](OwnerId owner) -> std::optional<double> {
    const CopyRef* ref = copies_.RefOf(owner);
    if (ref == nullptr || firm.contains(*ref)) return std::nullopt;
    return 0;
  };
  const Room room = spaces_[device.number()]->RoomElsewhere(
      all, /*own=*/false, /*idle=*/true, movable,
      [&](SlabId slab) { return slabs_.OpenedBy(device, slab); });
  AskToClose(device, room.idle, std::nullopt, now, effects);
  return WaitsForIdle();
}

}  // namespace hoistd
