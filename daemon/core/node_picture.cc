// What admins see.
#include "daemon/core/node_picture.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/model/published_group.h"

namespace hoistd {
namespace {

// Each image has a file of its own: free space is one piece.
uint64_t FreeOnDisk(const TierSnapshot& disk) {
  return disk.capacity_bytes - std::min(disk.capacity_bytes, disk.used_bytes);
}

// Bytes of sheets that these spans cover more than once.
uint64_t DoubledBytes(std::vector<std::pair<SheetKey, SheetRange>> spans) {
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second.offset) <
           std::tie(b.first, b.second.offset);
  });
  uint64_t doubled = 0;
  uint64_t end = 0;
  const SheetKey* sheet = nullptr;
  for (const auto& [key, span] : spans) {
    if (sheet == nullptr || *sheet != key) end = 0;
    sheet = &key;
    if (span.offset < end) doubled += std::min(end, span.end()) - span.offset;
    end = std::max(end, span.end());
  }
  return doubled;
}

}  // namespace

TierSnapshot NodePicture::SnapshotTier(TierAt at) const {
  TierSnapshot tier;
  tier.at = at;
  tier.capacity_bytes = node_.space.CapacityOf(at);
  if (at.tier != Tier::kDisk) {
    tier.used_bytes = node_.space.UsedOf(at);
    tier.largest_free_bytes = node_.space.LargestFreeOf(at);
    tier.allocated_bytes = node_.space.AllocatedOf(at);
  }
  if (at.tier == Tier::kDevice) {
    tier.kept_arena_bytes = node_.space.device(at.device).free_writable();
  }
  SnapshotCopies(tier);
  for (const auto& [id, plan] : node_.tenure.plans().standing()) {
    if (at != OnDevice(plan.grant.device) || plan.grant.ring_bytes == 0) {
      continue;
    }
    tier.leased_bytes += plan.grant.ring_bytes;
    tier.holders.push_back(
        {absl::StrCat("ring of plan ", id.number()), plan.grant.ring_bytes});
  }
  for (const auto& [id, arena] : node_.arenas.all()) {
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
    for (const auto& [request, incoming] : node_.incoming.all()) {
      if (!incoming.offset.has_value()) continue;
      tier.holders.push_back({absl::StrCat("receiving ", incoming.model, "/",
                                           incoming.group->name),
                              SpaceOf(*incoming.group)});
    }
    for (const auto& [id, offset] : node_.supply.saver().orphans()) {
      tier.holders.push_back({"being written for nobody any more",
                              SpaceOf(*node_.supply.transfers().At(id).group)});
    }
    if (const uint64_t unused = node_.space.parts().UnusedSpace(); unused > 0) {
      tier.holders.push_back({"being read for nobody any more", unused});
    }
    if (const uint64_t idle = node_.space.parts().RestoredSpace(); idle > 0) {
      tier.holders.push_back({"of files, as the last hoistd left it", idle});
    }
  }
  return tier;
}

// Counts shared bytes once, for their first user.
void NodePicture::SnapshotCopies(TierSnapshot& tier) const {
  std::set<OwnerId> leased;
  std::set<OwnerId> pinned;
  std::vector<std::pair<SheetKey, SheetRange>> on_device;
  for (const auto& [id, model] : node_.copies.models()) {
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      const GroupEntry& group = model->groups[g];
      const GroupKey key = {id, GroupIndex(g)};
      for (const auto& [place, copy] : group.copies) {
        if (place.at != tier.at || copy.state == Residency::kAbsent) continue;
        if (place == kHost && node_.supply.AwaitsPool(key, copy)) continue;
        uint64_t space = SpaceOf(*group.group);
        if (place == kHost && group.unsaved()) {
          tier.unsaved_bytes += group.group->image_bytes;
        }
        const bool in_parts = place == kHost && node_.space.parts().Has(key);
        if (in_parts) {
          space = node_.space.parts().OwnSpace(key);
          for (const OwnerId part : node_.space.parts().PartsOf(key)) {
            if (copy.leases > 0) leased.insert(part);
            if (copy.pinned) pinned.insert(part);
          }
          const uint64_t needs =
              PartBook::BytesOf(PartBook::SpansOf(*group.group));
          tier.shared_bytes += needs - std::min(needs, space);
        } else {
          if (copy.leases > 0) tier.leased_bytes += space;
          if (copy.pinned) tier.pinned_bytes += space;
        }
        if (place.at.tier == Tier::kDevice && group.in_files) {
          const std::vector<SheetKey> sheets = node_.space.SheetsOf(id);
          for (const SheetRange& span : PartBook::SpansOf(*group.group)) {
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
  for (const OwnerId part : leased)
    tier.leased_bytes += node_.space.parts().SpaceOf(part);
  for (const OwnerId part : pinned)
    tier.pinned_bytes += node_.space.parts().SpaceOf(part);
  tier.doubled_bytes = DoubledBytes(std::move(on_device));
}

PlanSnapshot NodePicture::SnapshotPlan(PlanId id,
                                       const StandingPlan& plan) const {
  const PlanGrant& grant = plan.grant;
  PlanSnapshot p;
  p.id = id;
  p.session = plan.session;
  if (const auto* session = node_.tenure.sessions().Find(plan.session)) {
    p.client_name = session->args.client_name;
  }
  if (const ModelEntry* model = node_.copies.FindModel(grant.model)) {
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
    p.held_bytes += node_.copies.SpaceOf({grant.model, group});
  }
  return p;
}

SessionSnapshot NodePicture::SnapshotSession(
    SessionId id, const SessionBook::Session& session, absl::Time now) const {
  SessionSnapshot s;
  s.id = id;
  s.client_name = session.args.client_name;
  s.via = session.args.peer.via;
  s.uid = session.uid();
  s.pid = session.args.peer.pid;
  s.age = now - session.opened;
  s.leases = static_cast<uint32_t>(session.leases.size());
  for (const LeaseId lease : session.leases) {
    s.leased_bytes +=
        node_.copies
            .FindGroup(node_.tenure.sessions().FindLease(lease)->copy.key)
            ->group->image_bytes;
  }
  s.device_budget_bytes = session.args.device_budget_bytes;
  s.waiting = session.waiting;
  s.plans = static_cast<uint32_t>(node_.tenure.plans().LiveOf(id).size());
  for (const ArenaId arena : node_.arenas.Of(id)) {
    ++s.arenas;
    s.arena_bytes += node_.arenas.At(arena).bytes;
  }
  return s;
}

absl::StatusOr<SessionSnapshot> NodePicture::Look(SessionId session,
                                                  const Peer& asker,
                                                  absl::Time now) const {
  const SessionBook::Session* found = node_.tenure.sessions().Find(session);
  if (found == nullptr || (!asker.admin && found->uid() != asker.uid)) {
    return absl::NotFoundError(absl::StrCat(
        "there is no session ", session.number(),
        asker.admin ? "" : " of yours", "; `hoistctl sessions` lists them"));
  }
  return SnapshotSession(session, *found, now);
}

NodeSnapshot NodePicture::Snapshot(absl::Time now) const {
  NodeSnapshot snapshot;
  snapshot.draining = node_.tenure.draining();
  snapshot.counters = node_.counters;
  for (uint32_t d = 0; d < node_.devices.size(); ++d) {
    snapshot.tiers.push_back(SnapshotTier(OnDevice(DeviceIndex(d))));
  }
  snapshot.tiers.push_back(SnapshotTier(OnHost()));
  TierSnapshot disk = SnapshotTier(OnDisk());  // Its contents follow below.
  for (const auto& [id, entry] : node_.copies.models()) {
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
    m.missing_groups = entry->missing();
    for (uint32_t g = 0; g < entry->groups.size(); ++g) {
      const GroupEntry& group = entry->groups[g];
      if (IsMissing(*group.group)) continue;
      GroupSnapshot s;
      s.name = group.group->name;
      s.index = GroupIndex(g);
      s.image_bytes = group.group->image_bytes;
      s.tensors = static_cast<uint32_t>(group.group->tensors.size());
      s.block_types = BlockTypesOf(*group.group);
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
  if (node_.spill.full() && snapshot.tiers.back().unsaved_bytes > 0) {
    disk.full_for =
        std::max(now - node_.spill.full_since(), absl::Milliseconds(1));
  }
  snapshot.tiers.push_back(std::move(disk));
  for (const auto& [id, session] : node_.tenure.sessions().all()) {
    snapshot.sessions.push_back(SnapshotSession(id, session, now));
  }
  for (const auto& [id, plan] : node_.tenure.plans().standing()) {
    if (!plan.ended) snapshot.plans.push_back(SnapshotPlan(id, plan));
  }
  return snapshot;
}

absl::StatusOr<std::vector<CopyRef>> NodePicture::Select(
    const CopySelector& which, bool existing_only) const {
  HOIST_ASSIGN_OR_RETURN(ModelPtr model,
                         node_.tenure.Find(which.asker, which.model));
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
    for (const auto& [place, copy] : node_.copies.FindGroup(key)->copies) {
      if (!which.at.has_value() || place.at == *which.at) {
        refs.push_back({key, place});
      }
    }
  }
  return refs;
}

}  // namespace hoistd
