// Who has which slab open, and how memory that idle workers keep comes back.
//
// A slab's memory comes free when nobody maps it any more. Workers keep what
// they once mapped, since they will most likely need it again; where another
// needs the memory they are asked to close what they have no use for. Who does
// not answer pays for it: see CheckOpen.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/core/node.h"

namespace hoistd {
namespace {

// For an answer to come. A worker that runs needs milliseconds.
constexpr absl::Duration kAnswerPatience = absl::Seconds(2);
// Until who has said no is asked again.
constexpr absl::Duration kAskAgain = absl::Seconds(10);

absl::Status WaitsForIdle() {
  return absl::UnavailableError(
      "waiting for idle workers to close device memory");
}

}  // namespace

// Those of a range that the session does not have open; it uses all of them.
std::vector<SlabUse> Node::NewSlabs(SessionId id, DeviceIndex device,
                                    uint64_t offset, uint64_t bytes) {
  SessionEntry& session = sessions_.at(id);
  std::vector<SlabUse> slabs;
  for (const SlabSpec& slab :
       spaces_[device.number()]->SlabsOf(offset, bytes)) {
    const auto [it, is_new] = session.slabs.try_emplace({device, slab.id});
    GivenSlab& given = it->second;
    // What it was asked to close it may have closed already.
    const bool send = is_new || given.asked != 0;
    given = {.bytes = slab.bytes, .uses = given.uses + 1};
    openers_[{device, slab.id}].insert(id);
    if (!send) continue;
    absl::StatusOr<SlabShare> share = devices_[device.number()]->Share(slab.id);
    HOIST_CHECK(share.ok());  // The slab is ours and exists.
    slabs.push_back({slab, *share});
  }
  return slabs;
}

// A lease or a ring there is over.
void Node::LeaveSlabs(SessionEntry& session, DeviceIndex device,
                      uint64_t offset, uint64_t bytes) {
  for (const SlabSpec& slab :
       spaces_[device.number()]->SlabsOf(offset, bytes)) {
    GivenSlab& given = session.slabs.at({device, slab.id});
    HOIST_CHECK(given.uses > 0);
    if (--given.uses == 0) ++space_epoch_;
  }
}

void Node::NotOpen(SessionId session, DeviceIndex device, SlabId slab) {
  const auto found = openers_.find({device, slab});
  found->second.erase(session);
  if (found->second.empty()) openers_.erase(found);
}

Opened Node::OpenedBy(DeviceIndex device, SlabId slab) const {
  const auto found = openers_.find({device, slab});
  if (found == openers_.end()) return Opened::kNobody;
  for (const SessionId id : found->second) {
    const GivenSlab& given = sessions_.at(id).slabs.at({device, slab});
    if (given.uses > 0 || given.kept) return Opened::kKept;
  }
  return Opened::kIdle;
}

// Asks the session to close an idle slab, if it has not been asked.
void Node::Ask(SessionId id, DeviceIndex device, SlabId slab, absl::Time now,
               Effects& effects) {
  SessionEntry& session = sessions_.at(id);
  GivenSlab& given = session.slabs.at({device, slab});
  HOIST_CHECK(given.uses == 0);
  if (given.asked != 0 || given.kept) return;
  if (!session.args.closes_slabs) {
    given.kept = true;
    ++space_epoch_;
    return;
  }
  auto ask = std::find_if(
      effects.asks.begin(), effects.asks.end(), [&](const SlabAsk& other) {
        return other.session == id && other.device == device;
      });
  if (ask == effects.asks.end()) {
    ask = effects.asks.insert(ask, {id, device, ++last_id_, {}});
  }
  ask->slabs.push_back(slab);
  given.asked = ask->number;
  given.look_at = now + kAnswerPatience;
  asks_due_ = std::min(asks_due_, given.look_at);
}

void Node::AskAll(DeviceIndex device, const std::vector<SlabId>& slabs,
                  absl::Time now, Effects& effects) {
  for (const SlabId slab : slabs) {
    for (const SessionId id : openers_.at({device, slab})) {
      Ask(id, device, slab, now, effects);
    }
  }
}

// Unavailable: who has slabs open that would do was asked to close them. OK:
// nobody has.
absl::Status Node::AskForRoom(DeviceIndex device, const Want& want,
                              KeepValueFn worth, absl::Time now,
                              Effects& effects) {
  const Room room = spaces_[device.number()]->RoomElsewhere(
      want, /*own=*/true, /*idle=*/true, worth,
      [&](SlabId slab) { return OpenedBy(device, slab); });
  if (!room.enough) return absl::OkStatus();
  AskAll(device, room.idle, now, effects);
  return WaitsForIdle();
}

void Node::SlabsClosed(SessionId id, const SlabsClosedArgs& closed,
                       absl::Time now, Effects& effects) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end() || closed.number == 0) return;
  const DeviceIndex device = closed.device;
  const std::set<SlabId> gone(closed.slabs.begin(), closed.slabs.end());
  auto& slabs = session->second.slabs;
  for (auto it = slabs.begin(); it != slabs.end();) {
    GivenSlab& given = it->second;
    // Given again since, it is another matter.
    if (it->first.first != device || given.asked != closed.number) {
      ++it;
    } else if (gone.contains(it->first.second)) {
      NotOpen(id, device, it->first.second);
      it = slabs.erase(it);
    } else {
      given.asked = 0;
      given.kept = true;
      given.look_at = now + kAskAgain;
      asks_due_ = std::min(asks_due_, given.look_at);
      ++it;
    }
  }
  ++space_epoch_;
  Tick(now, effects);
}

// Whose answers are overdue keeps its slabs; who has said no may be asked
// again.
void Node::LookAtAsks(absl::Time now, Effects& effects) {
  if (now < asks_due_) return;
  asks_due_ = absl::InfiniteFuture();
  for (auto& [id, session] : sessions_) {
    NodeEvent event;
    event.kind = "slabs-held-open";
    event.session = id;
    for (auto& [place, given] : session.slabs) {
      const bool waits = given.asked != 0 && !given.kept;
      const bool refused = given.asked == 0 && given.kept;
      if (!session.args.closes_slabs || (!waits && !refused)) continue;
      if (given.look_at > now) {
        asks_due_ = std::min(asks_due_, given.look_at);
        continue;
      }
      given.kept = waits;
      ++space_epoch_;
      if (!waits) continue;
      event.at = OnDevice(place.first);
      event.bytes += given.bytes;
    }
    if (event.bytes == 0) continue;
    event.detail =
        absl::StrCat("by an idle worker of uid ",
                     session.args.peer.uid.number(), " that does not answer");
    effects.events.push_back(std::move(event));
  }
}

// What was asked for and is kept open, by the user's sessions or by all.
uint64_t Node::KeptBytes(DeviceIndex device, std::optional<User> uid) const {
  uint64_t bytes = 0;
  for (const auto& [place, openers] : openers_) {
    if (place.first != device) continue;
    const auto keeps = [&, &at = place](SessionId id) {
      const SessionEntry& session = sessions_.at(id);
      const GivenSlab& given = session.slabs.at(at);
      return given.kept && (!uid.has_value() || session.args.peer.uid == *uid);
    };
    const auto keeper = std::find_if(openers.begin(), openers.end(), keeps);
    if (keeper == openers.end()) continue;
    bytes += sessions_.at(*keeper).slabs.at(place).bytes;
  }
  return bytes;
}

// Whether the session may have these slabs open; none: some that are not known
// yet. Idle slabs count with what their user holds, so that workers which keep
// them open and do not answer take no more from others than one user may hold:
// where it would be more, some are to be closed first.
absl::Status Node::CheckOpen(SessionId id, DeviceIndex device,
                             const std::vector<SlabSpec>& used, absl::Time now,
                             Effects& effects) {
  const SessionEntry& session = sessions_.at(id);
  const User uid = session.args.peer.uid;
  const uint64_t limit = quota_.DeviceLimitOf(uid, device);
  const bool has_all =
      !used.empty() &&
      std::all_of(used.begin(), used.end(), [&](const SlabSpec& slab) {
        return session.slabs.contains({device, slab.id});
      });
  if (limit == QuotaLimits::kNone || has_all) return absl::OkStatus();
  struct Open {
    uint64_t bytes = 0;
    bool used = false, kept = false;
    std::vector<SessionId> by;
  };
  std::map<SlabId, Open> open;
  for (const auto& [other, entry] : sessions_) {
    if (entry.args.peer.uid != uid) continue;
    for (const auto& [place, given] : entry.slabs) {
      if (place.first != device) continue;
      Open& slab = open[place.second];
      slab.bytes = given.bytes;
      slab.used |= given.uses > 0;
      slab.kept |= given.kept;
      slab.by.push_back(other);
    }
  }
  for (const SlabSpec& slab : used) open.erase(slab.id);
  uint64_t holds = quota_.Of(uid).On(device);
  uint64_t kept = 0;
  for (const auto& [slab, is] : open) {
    if (is.used) continue;
    holds += is.bytes;
    if (is.kept) kept += is.bytes;
  }
  if (holds <= limit) return absl::OkStatus();
  const uint64_t over = holds - limit;
  uint64_t asked = 0;
  for (const auto& [slab, is] : open) {
    if (is.used || is.kept || asked >= over) continue;
    for (const SessionId other : is.by) Ask(other, device, slab, now, effects);
    asked += is.bytes;
  }
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
    bytes[ZoneOf(ref)] += SpaceOf(*copies_.FindGroup(ref.key)->group);
  }
  AddRings(device, bytes);
  return bytes;
}

// The same of all that is firm.
std::map<Zone, uint64_t> Node::ByZone(DeviceIndex device) const {
  std::map<Zone, uint64_t> bytes = promises_[device.number()].ByZone();
  AddRings(device, bytes);
  return bytes;
}

void Node::AddRings(DeviceIndex device, std::map<Zone, uint64_t>& bytes) const {
  for (const auto& [id, plan] : plans_) {
    if (plan.grant.device != device) continue;
    bytes[ZoneOf(RingRef(plan.grant))] += plan.grant.ring_bytes;
  }
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
      [&](SlabId slab) { return OpenedBy(device, slab); });
  for (const auto& [zone, bytes] : ByZone(device, firm)) {
    held[zone] = std::max(held[zone], bytes);
  }
  return held;
}

// Of the memory that no slab has, what other zones' plans were promised.
uint64_t Node::PromisedBeside(DeviceIndex device, Zone zone) const {
  if (!promises_[device.number()].any()) return 0;
  std::map<Zone, uint64_t> has = spaces_[device.number()]->allocated_by_zone();
  uint64_t bytes = 0;
  for (const auto& [other, firm] : ByZone(device)) {
    if (other != zone) bytes += firm - std::min(firm, has[other]);
  }
  return bytes;
}

// What a plan cannot have beside all that was promised: the rest of others'
// slabs, and what is held open.
uint64_t Node::LostTo(const SetPlanArgs& args, SessionId session) const {
  const std::set<CopyRef> promised =
      PromisedCopies(args.device, session, args.replaces);
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
      PromisedCopies(device, pending.session, std::nullopt);
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
      [&](SlabId slab) { return OpenedBy(device, slab); });
  AskAll(device, room.idle, now, effects);
  return WaitsForIdle();
}

}  // namespace hoistd
