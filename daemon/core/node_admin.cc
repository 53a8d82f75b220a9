// What admins see and do.
#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"

namespace hoistd {
namespace {

// Images lie in files of their own: all that is free is one piece.
uint64_t FreeOnDisk(const TierSnapshot& disk) {
  return disk.capacity_bytes - std::min(disk.capacity_bytes, disk.used_bytes);
}

// What of the sheets these spans hold more than once.
uint64_t DoubledBytes(std::vector<std::pair<SheetKey, SheetSpan>> spans) {
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second.from) < std::tie(b.first, b.second.from);
  });
  uint64_t doubled = 0;
  uint64_t end = 0;
  const SheetKey* sheet = nullptr;
  for (const auto& [key, span] : spans) {
    if (sheet == nullptr || *sheet != key) end = 0;
    sheet = &key;
    if (span.from < end) doubled += std::min(end, span.to) - span.from;
    end = std::max(end, span.to);
  }
  return doubled;
}

}  // namespace

absl::StatusOr<std::vector<CopyRef>> Node::Select(const CopySelector& which,
                                                  bool existing_only) const {
  HOIST_ASSIGN_OR_RETURN(ModelPtr model, Find(which.asker, which.model));
  std::vector<uint32_t> groups;
  if (which.group.empty()) {
    for (uint32_t g = 0; g < model->spec->groups.size(); ++g) {
      groups.push_back(g);
    }
  } else {
    const auto index = FindGroup(*model->spec, which.group);
    if (!index.has_value()) {
      return absl::NotFoundError(
          absl::StrCat("model ", which.model, " has no group ", which.group,
                       "; `hoistctl groups ", which.model, "` lists them"));
    }
    groups.push_back(index->number());
  }
  std::vector<CopyRef> refs;
  for (const uint32_t g : groups) {
    const GroupKey key = {model->id, GroupIndex(g)};
    if (!existing_only) {
      if (!which.at.has_value() || which.at->tier == Tier::kDisk) {
        return absl::InvalidArgumentError(
            "name the tier: the host or a device");
      }
      refs.push_back({key, {*which.at, false}});
      continue;
    }
    for (const auto& [place, copy] : copies_.FindGroup(key)->copies) {
      if (!which.at.has_value() || place.at == *which.at) {
        refs.push_back({key, place});
      }
    }
  }
  return refs;
}

CopyTotals Node::Unpin(const std::vector<CopyRef>& copies, absl::Time now,
                       Effects& effects) {
  CopyTotals totals;
  for (const CopyRef& ref : copies) {
    Copy* copy = copies_.Find(ref);
    if (copy == nullptr || !copy->pinned) continue;
    SetPinned(ref, *copy, false);
    ++space_epoch_;
    ++totals.groups;
    totals.bytes += copies_.FindGroup(ref.key)->group->image_bytes;
  }
  Tick(now, effects);
  return totals;
}

CopyTotals Node::Evict(const std::vector<CopyRef>& copies, absl::Time now,
                       Effects& effects, Leaving::Why why) {
  const bool by_admin = why == Leaving::Why::kByAdmin;
  CopyTotals totals;
  for (const CopyRef& ref : copies) {
    Copy* copy = copies_.Find(ref);
    if (copy == nullptr || copy->state == Residency::kAbsent) continue;
    const bool unsaved = !Clean(ref);
    const bool going = OnlySpilling(*copy);
    std::string keeps;
    if (copy->leases > 0) {
      keeps = "leased";
    } else if (copy->pinned) {
      keeps = "pinned";
    } else if (!going &&
               (copy->state != Residency::kPresent || copy->readers > 0)) {
      keeps = "being copied";
    } else if (unsaved && (ref.place != kHost || !MaySpill(now))) {
      keeps = CanSpill() ? "the only copy, and cannot be spilled now"
                         : "the only copy (no disk.spill_dir is set)";
    }
    if (!keeps.empty()) {
      ++totals.kept;
      totals.kept_reason = absl::StrCat(NameOf(ref.key), " is ", keeps, " ",
                                        names_.On(ref.place.at));
      continue;
    }
    ++totals.groups;
    totals.bytes += copies_.FindGroup(ref.key)->group->image_bytes;
    if (going) {
      copy->leaving = true;
      HurrySpill(ref.key, effects);
      continue;
    }
    if (unsaved) {
      copy->leaving = true;
      StartSpill(ref, *copy, /*urgent=*/true, effects);
      continue;
    }
    Note(effects, EventKind::kCopyDropped, ref,
         by_admin ? "by an admin" : "evicted");
    if (by_admin) {
      ++(ref.place.at.tier == Tier::kDevice
             ? counters_.device_evictions_by_admins
             : counters_.host_evictions_by_admins);
    } else {
      ++counters_.host_evictions;
    }
    Drop(ref, *copy, ResidencyEvent::kDrop, Leaving{why, now});
  }
  Tick(now, effects);
  return totals;
}

TierSnapshot Node::SnapshotTier(TierAt at) const {
  TierSnapshot tier;
  tier.at = at;
  tier.capacity_bytes = CapacityOf(at);
  if (at.tier == Tier::kDevice) {
    const DeviceSpace& space = *spaces_[at.device.number()];
    tier.used_bytes = space.used();
    tier.largest_free_bytes = space.largest_free();
    tier.allocated_bytes = space.allocated();
    tier.kept_arena_bytes = space.free_writable();
  } else if (at.tier == Tier::kHost) {
    tier.used_bytes = host_.used();
    tier.largest_free_bytes = host_.largest_free();
    tier.allocated_bytes = host_.bytes();
  }
  SnapshotCopies(tier);
  for (const auto& [id, plan] : plans_.standing()) {
    if (at != OnDevice(plan.grant.device) || plan.grant.ring_bytes == 0) {
      continue;
    }
    tier.leased_bytes += plan.grant.ring_bytes;
    tier.holders.push_back(
        {absl::StrCat("ring of plan ", id.number()), plan.grant.ring_bytes});
  }
  for (const auto& [id, arena] : arenas_.all()) {
    if (at != OnDevice(arena.device) || !arena.placed) continue;
    if (!arena.request.has_value()) {  // Else it is coming.
      tier.leased_bytes += arena.bytes;
      tier.arena_bytes += arena.bytes;
    }
    tier.holders.push_back({absl::StrCat("arena ", id.number(), " of session ",
                                         arena.session.number()),
                            arena.bytes});
  }
  if (at.tier == Tier::kHost) {
    for (const auto& [request, incoming] : incoming_.all()) {
      if (!incoming.offset.has_value()) continue;
      tier.holders.push_back({absl::StrCat("receiving ", incoming.model, "/",
                                           incoming.group->name),
                              SpaceOf(*incoming.group)});
    }
    for (const auto& [id, offset] : orphans_) {
      tier.holders.push_back({"being written for nobody any more",
                              SpaceOf(*transfers_.at(id).group)});
    }
    if (const uint64_t unused = parts_.UnusedSpace(); unused > 0) {
      tier.holders.push_back({"being read for nobody any more", unused});
    }
    if (const uint64_t idle = parts_.RestoredSpace(); idle > 0) {
      tier.holders.push_back({"of files, as the last hoistd left it", idle});
    }
  }
  return tier;
}

// Each byte once: what several groups share is its first user's.
void Node::SnapshotCopies(TierSnapshot& tier) const {
  std::set<OwnerId> leased;
  std::set<OwnerId> pinned;
  std::vector<std::pair<SheetKey, SheetSpan>> on_device;
  for (const auto& [id, model] : copies_.models()) {
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      const GroupEntry& group = model->groups[g];
      const GroupKey key = {id, GroupIndex(g)};
      for (const auto& [place, copy] : group.copies) {
        if (place.at != tier.at || copy.state == Residency::kAbsent) continue;
        if (place == kHost && AwaitsPool(key, copy)) continue;
        uint64_t space = SpaceOf(*group.group);
        if (place == kHost && group.unsaved()) {
          tier.unsaved_bytes += group.group->image_bytes;
        }
        const bool in_parts = place == kHost && parts_.Has(key);
        if (in_parts) {
          space = parts_.OwnSpace(key);
          for (const OwnerId part : parts_.PartsOf(key)) {
            if (copy.leases > 0) leased.insert(part);
            if (copy.pinned) pinned.insert(part);
          }
          const uint64_t needs = BytesOf(PartBook::SpansOf(*group.group));
          tier.shared_bytes += needs - std::min(needs, space);
        } else {
          if (copy.leases > 0) tier.leased_bytes += space;
          if (copy.pinned) tier.pinned_bytes += space;
        }
        if (place.at.tier == Tier::kDevice && group.in_files) {
          const std::vector<SheetKey> sheets = SheetsOf(id);
          for (const SheetSpan& span : PartBook::SpansOf(*group.group)) {
            on_device.emplace_back(sheets[span.file], span);
          }
        }
        if (space == 0) continue;  // Others have brought all of it.
        tier.holders.push_back(
            {absl::StrCat(model->model->spec->name, "/", group.group->name),
             space});
      }
    }
  }
  for (const OwnerId part : leased) tier.leased_bytes += parts_.SpaceOf(part);
  for (const OwnerId part : pinned) tier.pinned_bytes += parts_.SpaceOf(part);
  tier.doubled_bytes = DoubledBytes(std::move(on_device));
}

PlanSnapshot Node::SnapshotPlan(PlanId id, const StandingPlan& plan) const {
  const PlanGrant& grant = plan.grant;
  PlanSnapshot p;
  p.id = id;
  p.session = plan.session;
  if (const auto* session = sessions_.Find(plan.session)) {
    p.client_name = session->args.client_name;
  }
  if (const ModelEntry* model = copies_.FindModel(grant.model)) {
    p.model = model->model->spec->name;
  }
  p.device = grant.device;
  p.budget_bytes = grant.budget_bytes;
  p.resident_bytes = grant.resident_bytes;
  p.ring_bytes = grant.ring_bytes;
  p.streamed_bytes = grant.streamed_bytes;
  p.groups = static_cast<uint32_t>(grant.groups.size());
  p.lead = grant.lead;
  for (const PlannedGroup& group : grant.groups) {
    if (!group.resident) ++p.streamed_groups;
  }
  for (const GroupIndex group : plan.held) {
    p.held_bytes += copies_.SpaceOf({grant.model, group});
  }
  return p;
}

SessionSnapshot Node::SnapshotSession(SessionId id,
                                      const SessionBook::Session& session,
                                      absl::Time now) const {
  SessionSnapshot s;
  s.id = id;
  s.client_name = session.args.client_name;
  s.via = session.args.peer.via;
  s.uid = session.uid();
  s.pid = session.args.peer.pid;
  s.age = now - session.opened;
  s.leases = static_cast<uint32_t>(session.leases.size());
  for (const LeaseId lease : session.leases) {
    s.leased_bytes += copies_.FindGroup(sessions_.FindLease(lease)->copy.key)
                          ->group->image_bytes;
  }
  s.device_budget_bytes = session.args.device_budget_bytes;
  s.waiting = session.waiting;
  s.plans = static_cast<uint32_t>(plans_.LiveOf(id).size());
  for (const ArenaId arena : arenas_.Of(id)) {
    ++s.arenas;
    s.arena_bytes += arenas_.At(arena).bytes;
  }
  return s;
}

absl::StatusOr<SessionSnapshot> Node::Look(SessionId session, const Peer& asker,
                                           absl::Time now) const {
  const SessionBook::Session* found = sessions_.Find(session);
  if (found == nullptr || (!asker.admin && found->uid() != asker.uid)) {
    return absl::NotFoundError(absl::StrCat(
        "there is no session ", session.number(),
        asker.admin ? "" : " of yours", "; `hoistctl sessions` lists them"));
  }
  return SnapshotSession(session, *found, now);
}

NodeSnapshot Node::Snapshot(absl::Time now) const {
  NodeSnapshot snapshot;
  snapshot.draining = draining_;
  snapshot.counters = counters_;
  for (uint32_t d = 0; d < devices_.size(); ++d) {
    snapshot.tiers.push_back(SnapshotTier(OnDevice(DeviceIndex(d))));
  }
  snapshot.tiers.push_back(SnapshotTier(OnHost()));
  TierSnapshot disk = SnapshotTier(OnDisk());  // What it holds comes below.
  for (const auto& [id, entry] : copies_.models()) {
    const Model& model = *entry->model;
    ModelSnapshot m;
    m.id = model.id;
    m.name = model.spec->name;
    m.fingerprint = model.spec->fingerprint;
    m.readers = model.readers;
    m.owner = model.owner;
    m.image_bytes = model.spec->image_bytes;
    m.published = model.spec->published;
    m.files = model.spec->files;
    for (uint32_t g = 0; g < entry->groups.size(); ++g) {
      const GroupEntry& group = entry->groups[g];
      GroupSnapshot s;
      s.name = group.group->name;
      s.index = GroupIndex(g);
      s.image_bytes = group.group->image_bytes;
      s.tensors = static_cast<uint32_t>(group.group->tensors.size());
      for (const auto& [place, copy] : group.copies) {
        if (copy.state == Residency::kAbsent) continue;
        s.copies.push_back({place.at, copy.state, copy.leases, copy.pinned});
      }
      if (group.spilled.has_value()) {
        s.copies.push_back({OnDisk(), Residency::kPresent, 0, false});
        disk.used_bytes += group.group->image_bytes;
        disk.holders.push_back(
            {absl::StrCat(m.name, "/", s.name), group.group->image_bytes});
      }
      if (!group.lost.ok()) {
        s.copies.push_back({OnDisk(), Residency::kLost, 0, false});
      }
      m.groups.push_back(std::move(s));
    }
    snapshot.models.push_back(std::move(m));
  }
  disk.largest_free_bytes = FreeOnDisk(disk);
  snapshot.tiers.push_back(std::move(disk));
  for (const auto& [id, session] : sessions_.all()) {
    snapshot.sessions.push_back(SnapshotSession(id, session, now));
  }
  for (const auto& [id, plan] : plans_.standing()) {
    if (!plan.ended) snapshot.plans.push_back(SnapshotPlan(id, plan));
  }
  return snapshot;
}

void Node::SetDraining(bool draining, Effects& effects) {
  if (std::exchange(draining_, draining) == draining) return;
  NodeEvent event;
  event.kind = draining ? EventKind::kDraining : EventKind::kResumed;
  effects.events.push_back(std::move(event));
}

}  // namespace hoistd
