#include "daemon/core/registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/core/node_picture.h"
#include "daemon/model/model_name.h"
#include "daemon/model/published_group.h"

namespace hoistd {

Registry::Registry(const NodeOptions& options, CopyTable& copies,
                   ModelBook& models, QuotaBook& quota, Space& space,
                   Supply& supply, Tenure& tenure, PersistedLog& persisted,
                   IdSource& ids)
    : options_(options),
      copies_(copies),
      models_(models),
      quota_(quota),
      space_(space),
      supply_(supply),
      tenure_(tenure),
      persisted_(persisted),
      ids_(ids),
      incoming_(quota) {}

absl::StatusOr<ModelPtr> Registry::AddModel(
    SessionId session, std::shared_ptr<const ModelSpec> spec,
    std::optional<Readers> readers, Effects& effects) {
  const Peer* peer = tenure_.PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  if (tenure_.draining()) return Tenure::DrainsNow();
  if (const ModelEntry* own = models_.Named(peer->uid, spec->name)) {
    if (ContentOf(*own->model->spec) != spec->content) {
      return OtherWeights(*own->model->spec, FingerprintOf(spec->content));
    }
    HOIST_RETURN_IF_ERROR(CheckReaders(*own->model, readers));
    tenure_.sessions().Use(session, own->model->id);
    return own->model;
  }
  // A caller with the same files open may use a model readable by everyone.
  if (ModelPtr same =
          models_.Shared(peer->uid, spec->content, /*published=*/false);
      same != nullptr && same->owner != peer->uid) {
    tenure_.sessions().Use(session, same->id);
    return same;
  }
  HOIST_RETURN_IF_ERROR(models_.CheckMore(peer->uid, *spec));
  const ModelEntry& entry =
      models_.Add(ModelId(ids_.Next()), std::move(spec), peer->uid,
                  readers.value_or(options_.default_readers));
  tenure_.sessions().Use(session, entry.model->id);
  NodeEvent event;
  event.kind = EventKind::kModelAdded;
  event.model = entry.model->spec->name;
  event.session = session;
  event.bytes = entry.model->spec->image_bytes;
  effects.events.push_back(std::move(event));
  return entry.model;
}

absl::Status Registry::Restore(const RestoredGroup& restored) {
  const uint64_t bytes = SpaceOf(*restored.group);
  const std::string name =
      absl::StrCat(restored.model, "/", restored.group->name);
  if (restored.host_offset.has_value()) {
    HOIST_RETURN_IF_ERROR(
        Annotate(supply_.restored().Check(*restored.host_offset, bytes), name));
  } else if (!restored.spill.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is nowhere"));
  }
  ModelEntry* entry = models_.Named(restored.owner, restored.model);
  if (entry == nullptr) {
    ModelId id = restored.model_id.value_or(ModelId());
    if (id == ModelId() || copies_.FindModel(id) != nullptr) {
      id = ModelId(ids_.Next());
    }
    ids_.Skip(id.number());
    entry = &models_.AddPublished(id, restored.model, restored.owner,
                                  restored.readers);
    persisted_.Add(PersistedModel{id, entry->model});
  }
  const GroupIndex place = restored.index;
  HadGroups(restored.owner, restored.model, place.number());
  HOIST_RETURN_IF_ERROR(
      models_.Put(*entry, place, restored.group, restored.content));
  copies_.SetSpilled(entry->groups[place.number()], restored.spill);
  if (!restored.host_offset.has_value()) return absl::OkStatus();
  supply_.restored().AddImage({entry->model->id, place}, *restored.host_offset);
  return absl::OkStatus();
}

void Registry::HadGroups(const User& owner, const std::string& model,
                         uint32_t groups) {
  ModelEntry* entry = models_.Named(owner, model);
  if (entry == nullptr || groups <= entry->groups.size()) return;
  models_.LeavePlaces(*entry, groups);
  persisted_.Add(PersistedModel{entry->model->id, entry->model});
}

void Registry::EndOfGone() {
  for (const auto& [id, model] : copies_.models()) {
    const auto session = EndsWith(model->model->spec->name);
    if (session.has_value() && tenure_.sessions().Find(*session) == nullptr) {
      ending_.insert(id);
    }
  }
}

bool Registry::IsWanted(const ModelEntry& entry) const {
  return tenure_.sessions().Used(entry.model->id) ||
         std::ranges::any_of(entry.groups, [](const GroupEntry& group) {
           return std::ranges::any_of(group.copies, [](const auto& copy) {
             return copy.second.pinned;
           });
         });
}

void Registry::EndUnused(SessionId session, ModelId model) {
  if (FindOwn(session, model).ok()) ending_.insert(model);
}

std::vector<ModelId> Registry::TakeEnded(const NodePicture& picture) {
  std::vector<ModelId> ended;
  std::erase_if(ending_, [&](ModelId id) {
    const ModelEntry* entry = copies_.FindModel(id);
    if (entry == nullptr) return true;  // It made room.
    if (!EndsWith(entry->model->spec->name) && IsWanted(*entry)) {
      return !tenure_.sessions().Assumed(id);
    }
    if (!picture.InUse(*entry, nullptr).ok()) return false;
    ended.push_back(id);
    return true;
  });
  return ended;
}

void Registry::Remove(const ForgottenModel& gone, const std::string& why,
                      Effects& effects) {
  const ModelEntry& entry = *copies_.FindModel(gone.model);
  const std::string name = entry.model->spec->name;
  const User owner = entry.model->owner;
  if (gone.unsaved_bytes > 0) {
    quota_.Remove(owner, Quota::kPublishedBytes, gone.unsaved_bytes);
  }
  if (entry.model->spec->published) {
    effects.published.push_back({owner, name, 0});
  }
  persisted_.Add(PersistedModel{gone.model, nullptr});
  effects.forgotten.push_back(gone.model);
  models_.Remove(gone.model);
  NodeEvent event;
  event.kind = EventKind::kModelForgotten;
  event.model = name;
  event.detail = why;
  effects.events.push_back(std::move(event));
}

absl::StatusOr<ModelPtr> Registry::FindOwn(SessionId session,
                                           ModelId id) const {
  HOIST_ASSIGN_OR_RETURN(ModelPtr model, tenure_.Find(session, id));
  const Peer& peer = *tenure_.PeerOf(session);
  if (peer.admin || model->owner == peer.uid) return model;
  return absl::PermissionDeniedError(
      absl::StrCat(model->spec->name, " is ", ToString(model->owner),
                   "'s; only they or an admin can forget it"));
}

absl::StatusOr<std::vector<CopyRef>> Registry::FindParked(
    SessionId session, const Model& model,
    const std::vector<GroupIndex>& groups) const {
  if (EndsWith(model.spec->name) != session) {
    return absl::PermissionDeniedError(absl::StrCat(
        "only what ends with this session goes to the disk at its word, and ",
        model.spec->name, " does not; publish it with of_session"));
  }
  std::vector<CopyRef> copies;
  for (const GroupIndex group : groups) {
    const CopyRef ref = {{model.id, group}, kHost};
    if (copies_.FindGroup(ref.key) == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(model.spec->name, " has no group ", group.number(),
                       "; it has ", model.spec->groups.size()));
    }
    copies.push_back(ref);
  }
  return copies;
}

}  // namespace hoistd
