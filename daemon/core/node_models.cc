// Models: registering, finding, publishing, forgetting.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"
#include "daemon/model/model_name.h"
#include "daemon/model/published_group.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {

absl::StatusOr<ModelPtr> Node::AddModel(SessionId session,
                                        std::shared_ptr<const ModelSpec> spec,
                                        std::optional<Readers> readers,
                                        Effects& effects) {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  if (draining_) return absl::UnavailableError("hoistd is draining");
  if (const ModelEntry* own = models_.Named(peer->uid, spec->name)) {
    if (own->model->spec->content != spec->content) {
      return OtherWeights(*own->model->spec, spec->fingerprint);
    }
    HOIST_RETURN_IF_ERROR(CheckReaders(*own->model, readers));
    sessions_.Use(session, own->model->id);
    return own->model;
  }
  // A caller who opened the same files may use what everyone may read.
  if (ModelPtr same =
          models_.Shared(peer->uid, spec->content, /*published=*/false);
      same != nullptr && same->owner != peer->uid) {
    sessions_.Use(session, same->id);
    return same;
  }
  HOIST_RETURN_IF_ERROR(models_.CheckMore(peer->uid, *spec));
  const ModelEntry& entry =
      models_.Add(ModelId(++last_id_), std::move(spec), peer->uid,
                  readers.value_or(options_.default_readers));
  sessions_.Use(session, entry.model->id);
  NodeEvent event;
  event.kind = EventKind::kModelAdded;
  event.model = entry.model->spec->name;
  event.session = session;
  event.bytes = entry.model->spec->image_bytes;
  effects.events.push_back(std::move(event));
  return entry.model;
}

absl::Status Node::Restore(const RestoredGroup& restored) {
  const uint64_t bytes = SpaceOf(*restored.group);
  const std::string name =
      absl::StrCat(restored.model, "/", restored.group->name);
  if (restored.host_offset.has_value()) {
    HOIST_RETURN_IF_ERROR(
        Annotate(CheckRestored(*restored.host_offset, bytes), name));
  } else if (!restored.spill.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is nowhere"));
  }
  ModelEntry* entry = models_.Named(restored.owner, restored.model);
  if (entry == nullptr) {
    ModelId id = restored.model_id.value_or(ModelId());
    if (id == ModelId() || copies_.FindModel(id) != nullptr) {
      id = ModelId(++last_id_);
    }
    last_id_ = std::max(last_id_, id.number());
    entry = &models_.AddPublished(id, restored.model, restored.owner,
                                  restored.readers);
    Keep(KeptModel{id, entry->model});
  }
  if (FindGroup(*entry->model->spec, restored.group->name).has_value()) {
    return absl::AlreadyExistsError(
        absl::StrCat("two published images of ", name));
  }
  HOIST_RETURN_IF_ERROR(
      models_.Append(*entry, restored.group, restored.content));
  entry->groups.back().spilled = restored.spill;
  if (!restored.host_offset.has_value()) return absl::OkStatus();
  const GroupKey key = {
      entry->model->id,
      GroupIndex(static_cast<uint32_t>(entry->groups.size() - 1))};
  Copy& copy = copies_.At({key, kHost});
  copies_.Apply(copy, ResidencyEvent::kReserve);
  copy.owner = copies_.NewOwner({key, kHost});
  copy.offset = *restored.host_offset;
  restored_[copy.offset] = {.bytes = bytes, .image = key};
  if (!restored.spill.has_value()) unchecked_.insert(key);
  return absl::OkStatus();
}

absl::Status Node::Restore(uint64_t host_offset, const KeptPart& part) {
  const std::string name = absl::StrCat(part.bytes, " bytes of a file");
  const SheetSpan span = {0, part.from, part.from + part.bytes};
  if (part.bytes == 0 || span.to < part.from ||
      part.from % PartBook::kGranule != 0 ||
      part.bytes % PartBook::kGranule != 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, " are no part"));
  }
  HOIST_RETURN_IF_ERROR(
      Annotate(CheckRestored(host_offset, span.space()), name));
  RestoredExtent extent;
  extent.bytes = span.space();
  extent.owner = copies_.NewOwner();
  extent.filler = TransferId(++last_id_);
  const SheetKey sheet = {part.file, models_.ReadersOf(part.owner)};
  if (!parts_.Restore(sheet, part.from, part.bytes, host_offset, extent.owner,
                      extent.filler)) {
    return absl::AlreadyExistsError(absl::StrCat(name, " lie there twice"));
  }
  restored_[host_offset] = extent;
  return absl::OkStatus();
}

// Whether nothing else that was restored lies there.
absl::Status Node::CheckRestored(uint64_t offset, uint64_t bytes) const {
  const auto after = restored_.lower_bound(offset);
  const bool free =
      offset % hoist::kImageAlignment == 0 &&
      bytes <= options_.host_capacity_bytes &&
      offset <= options_.host_capacity_bytes - bytes &&
      (after == restored_.end() || after->first - offset >= bytes) &&
      (after == restored_.begin() ||
       std::prev(after)->first + std::prev(after)->second.bytes <= offset);
  if (free) return absl::OkStatus();
  return absl::InvalidArgumentError("it cannot lie where it was kept");
}

// Whether the image was restored, and the pool is not up where it lies.
bool Node::AwaitsPool(GroupKey key, const Copy& copy) const {
  const auto found = restored_.find(copy.offset);
  return found != restored_.end() && found->second.image == key;
}

// What the pool has grown over is there: images once they are found right.
void Node::PlaceRestored(absl::Time now, Effects& effects) {
  while (!restored_.empty() && restored_.begin()->first < host_.bytes()) {
    const auto [offset, extent] = *restored_.begin();
    restored_.erase(restored_.begin());
    if (!extent.image.has_value()) {
      host_.AllocateAt(offset, extent.bytes, extent.owner);
      PartsFilled(extent.filler, absl::OkStatus(), now, effects);
      continue;
    }
    Copy& copy = copies_.At({*extent.image, kHost});
    host_.AllocateAt(offset, extent.bytes, copy.owner);
    copy.filling =
        Start(*extent.image, CheckOnHost{offset}, /*urgent=*/false, effects);
  }
}

absl::StatusOr<ModelPtr> Node::Find(SessionId session,
                                    const std::string& name) {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  absl::StatusOr<ModelPtr> found = models_.Find(*peer, name);
  if (found.ok()) sessions_.Use(session, (*found)->id);
  return found;
}

absl::StatusOr<ModelPtr> Node::Find(const Peer& asker,
                                    const std::string& name) const {
  return models_.Find(asker, name);
}

absl::StatusOr<ModelPtr> Node::FindContent(SessionId session,
                                           const Content& content) {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  ModelPtr same = models_.Shared(peer->uid, content, /*published=*/true);
  if (same == nullptr) {
    return absl::NotFoundError(
        "no published model of this content that this user may read");
  }
  sessions_.Use(session, same->id);
  return same;
}

absl::StatusOr<ModelPtr> Node::Find(SessionId session, ModelId id) const {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  return models_.Find(*peer, id);
}

absl::StatusOr<std::shared_ptr<const ModelSpec>> Node::SpecOf(
    ModelId id) const {
  const ModelEntry* entry = copies_.FindModel(id);
  if (entry == nullptr) return absl::NotFoundError("no such model");
  return entry->model->spec;
}

uint64_t Node::BytesOf(GroupKey key) const {
  const GroupEntry* group = copies_.FindGroup(key);
  return group == nullptr ? 0 : group->group->image_bytes;
}

absl::Status Node::ForgetBy(SessionId session, ModelId id, absl::Time now,
                            Effects& effects) {
  HOIST_ASSIGN_OR_RETURN(const ModelPtr model, Find(session, id));
  const Peer& peer = *PeerOf(session);
  if (!peer.admin && model->owner != peer.uid) {
    return absl::PermissionDeniedError(
        absl::StrCat(model->spec->name, " is ", ToString(model->owner),
                     "'s; only they or an admin can forget it"));
  }
  return Forget(id, now, effects, &peer);
}

absl::Status Node::Forget(ModelId id, absl::Time now, Effects& effects,
                          const Peer* asker) {
  ModelEntry* entry = copies_.FindModel(id);
  if (entry == nullptr) return absl::NotFoundError("no such model");
  HOIST_RETURN_IF_ERROR(InUse(*entry, asker));
  RemoveModel(id, "", now, effects);
  Tick(now, effects);
  return absl::OkStatus();
}

void Node::RemoveModel(ModelId id, const std::string& why, absl::Time now,
                       Effects& effects) {
  ModelEntry* entry = copies_.FindModel(id);
  const std::string name = entry->model->spec->name;
  const User owner = entry->model->owner;
  // Before any image on the host goes: a model that comes back without one has
  // another number, and what was kept on devices would be of no model.
  for (uint32_t g = 0; g < entry->groups.size(); ++g) {
    for (auto& [place, copy] : entry->groups[g].copies) {
      if (place.at.tier != Tier::kDevice || !copy.usable()) continue;
      Drop({{id, GroupIndex(g)}, place}, copy, ResidencyEvent::kForget);
    }
  }
  for (uint32_t g = 0; g < entry->groups.size(); ++g) {
    const GroupKey key = {id, GroupIndex(g)};
    if (entry->groups[g].unsaved()) {
      quota_.Remove(owner, Quota::kPublishedBytes,
                    SpaceOf(*entry->groups[g].group));
    }
    FailNeeds(key, absl::NotFoundError(absl::StrCat(name, " was forgotten")),
              effects);
    for (auto& [place, copy] : entry->groups[g].copies) {
      if (copy.state == Residency::kSpilling) {
        OrphanSpill({key, place}, copy);
      } else if (copy.usable()) {
        Drop({key, place}, copy, ResidencyEvent::kForget);
      }
    }
    std::vector<SpillId> on_disk = entry->groups[g].damaged;
    if (entry->groups[g].spilled.has_value()) {
      on_disk.push_back(*entry->groups[g].spilled);
    }
    effects.unspill.insert(effects.unspill.end(), on_disk.begin(),
                           on_disk.end());
    // There is room on the disk again.
    if (!on_disk.empty()) spill_retry_at_ = now;
  }
  if (entry->model->spec->published) {
    effects.published.push_back({owner, name, 0});
  }
  orders_.ForgetModel(id);
  heat_.ForgetModel(id);
  sessions_.ForgetModel(id);
  Keep(KeptModel{id, nullptr});
  effects.forgotten.push_back(id);
  models_.Remove(id);
  NodeEvent event;
  event.kind = EventKind::kModelForgotten;
  event.model = name;
  event.detail = why;
  effects.events.push_back(std::move(event));
}

}  // namespace hoistd
