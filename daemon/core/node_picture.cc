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

TierUse NodePicture::UseOf(TierAt at, absl::Time now) const {
  if (at.tier == Tier::kPageable) return UseOfPageable();
  return at.tier == Tier::kDisk ? UseOfDisk(now) : UseOfMemory(at);
}

std::vector<TierUse> NodePicture::Tiers(absl::Time now) const {
  std::vector<TierUse> tiers;
  for (uint32_t d = 0; d < node_.devices.size(); ++d) {
    tiers.push_back(UseOfMemory(OnDevice(DeviceIndex(d))));
  }
  tiers.push_back(UseOfMemory(OnHost()));
  if (node_.options.pageable_bytes > 0) tiers.push_back(UseOfPageable());
  tiers.push_back(UseOfDisk(now));
  return tiers;
}

TierUse NodePicture::UseOfPageable() const {
  const PageableBook& pageable = node_.copies.pageable();
  TierUse tier;
  tier.at = OnPageable();
  tier.capacity_bytes = pageable.memory().bytes();
  tier.allocated_bytes = tier.capacity_bytes;
  tier.used_bytes = pageable.memory().used();
  tier.largest_free_bytes = pageable.memory().largest_free();
  uint64_t rest = tier.used_bytes;
  for (const auto& [key, image] : pageable.images()) {
    tier.holders.push_back({node_.copies.NameOf(key), image.bytes});
    rest -= image.bytes;
  }
  if (rest > 0) tier.holders.push_back({"images that checks still read", rest});
  return tier;
}

TierUse NodePicture::UseOfDisk(absl::Time now) const {
  TierUse disk;
  disk.at = OnDisk();
  disk.capacity_bytes = node_.space.CapacityOf(disk.at);
  bool unsaved = false;
  for (const auto& [id, model] : node_.copies.models()) {
    for (const GroupEntry& group : model->groups) {
      unsaved = unsaved || group.unsaved();
      if (!group.spilled.has_value()) continue;
      disk.used_bytes += group.group->image_bytes;
      disk.holders.push_back(
          {absl::StrCat(model->model->spec->name, "/", group.group->name),
           group.group->image_bytes});
    }
  }
  // Each image has a file of its own: free space is one piece.
  disk.largest_free_bytes =
      disk.capacity_bytes - std::min(disk.capacity_bytes, disk.used_bytes);
  if (node_.spill.full() && unsaved) {
    disk.full_for =
        std::max(now - node_.spill.full_since(), absl::Milliseconds(1));
  }
  return disk;
}

TierUse NodePicture::UseOfMemory(TierAt at) const {
  TierUse tier;
  tier.at = at;
  tier.capacity_bytes = node_.space.CapacityOf(at);
  tier.used_bytes = node_.space.UsedOf(at);
  tier.largest_free_bytes = node_.space.LargestFreeOf(at);
  tier.allocated_bytes = node_.space.AllocatedOf(at);
  if (at.tier == Tier::kDevice) {
    tier.kept_arena_bytes = node_.space.device(at.device).free_writable();
  }
  AddCopies(tier);
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
void NodePicture::AddCopies(TierUse& tier) const {
  std::set<OwnerId> leased;
  std::set<OwnerId> pinned;
  std::vector<std::pair<SheetKey, SheetRange>> on_device;
  for (const auto& [id, model] : node_.copies.models()) {
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      const GroupEntry& group = model->groups[g];
      const GroupKey key = {id, GroupIndex(g)};
      for (const auto& [place, copy] : group.copies) {
        if (place.at != tier.at || copy.state == Residency::kAbsent) continue;
        if (place == kHost && node_.supply.restored().Awaits(key, copy))
          continue;
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

absl::StatusOr<const SessionBook::Session*> NodePicture::FindSession(
    SessionId session, const Peer& asker) const {
  const SessionBook::Session* found = node_.tenure.sessions().Find(session);
  if (found == nullptr || (!asker.admin && found->uid() != asker.uid)) {
    return absl::NotFoundError(absl::StrCat(
        "there is no session ", session.number(),
        asker.admin ? "" : " of yours", "; `hoistctl sessions` lists them"));
  }
  return found;
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
