// Models: registering, finding, publishing, forgetting.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"
#include "daemon/model/model_name.h"
#include "daemon/model/published_group.h"

namespace hoistd {
namespace {

absl::Status OtherWeights(const ModelSpec& has, const Fingerprint& wanted) {
  return absl::AlreadyExistsError(absl::StrCat(
      "model ", has.name,
      " is there with other weights or groups "
      "(fingerprint ",
      FingerprintHex(has.fingerprint), ", not ", FingerprintHex(wanted),
      "); use another name, or forget it first (`hoistctl evict --forget`)"));
}

absl::Status CheckReaders(const Model& has, std::optional<Readers> wanted) {
  if (!wanted.has_value() || *wanted == has.readers) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("your model ", has.spec->name, " is there for ",
                   has.readers == Readers::kEveryone ? "everyone" : "you alone",
                   "; use another name, or forget it first"));
}

}  // namespace

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
    return own->model;
  }
  // A caller who opened the same files may use what everyone may read.
  if (ModelPtr same =
          models_.Shared(peer->uid, spec->content, /*published=*/false);
      same != nullptr && same->owner != peer->uid) {
    return same;
  }
  HOIST_RETURN_IF_ERROR(models_.CheckMore(peer->uid, *spec));
  const ModelEntry& entry =
      models_.Add(ModelId(++last_id_), std::move(spec), peer->uid,
                  readers.value_or(options_.default_readers));
  NodeEvent event;
  event.kind = "model-added";
  event.model = entry.model->spec->name;
  event.session = session;
  event.bytes = entry.model->spec->image_bytes;
  effects.events.push_back(std::move(event));
  return entry.model;
}

absl::Status Node::Restore(const std::string& name, User owner, Readers readers,
                           std::shared_ptr<const Group> group,
                           const Content& content, SpillId spill) {
  ModelEntry* entry = models_.Named(owner, name);
  if (entry == nullptr) {
    const ModelId id(++last_id_);
    entry = &models_.AddPublished(id, name, owner, readers);
  }
  if (FindGroup(*entry->model->spec, group->name).has_value()) {
    return absl::AlreadyExistsError(
        absl::StrCat("two spilled images of ", name, "/", group->name));
  }
  HOIST_RETURN_IF_ERROR(models_.Append(*entry, std::move(group), content));
  entry->groups.back().spilled = spill;
  return absl::OkStatus();
}

absl::StatusOr<ModelPtr> Node::Find(SessionId session,
                                    const std::string& name) const {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  return models_.Find(*peer, name);
}

absl::StatusOr<ModelPtr> Node::Find(const Peer& asker,
                                    const std::string& name) const {
  return models_.Find(asker, name);
}

absl::StatusOr<ModelPtr> Node::FindContent(SessionId session,
                                           const Content& content) const {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  ModelPtr same = models_.Shared(peer->uid, content, /*published=*/true);
  if (same == nullptr) {
    return absl::NotFoundError(
        "no published model of this content that this user may read");
  }
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

void Node::Publish(RequestId request, SessionId session,
                   const std::string& model, std::shared_ptr<const Group> group,
                   std::shared_ptr<hoist::UniqueFd> memfd,
                   std::optional<Readers> readers, absl::Time deadline,
                   absl::Time now, Effects& effects) {
  const auto refuse = [&](absl::Status why) {
    effects.answers.push_back({request, std::move(why)});
  };
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return refuse(absl::NotFoundError("session closed"));
  if (draining_) return refuse(absl::UnavailableError("hoistd is draining"));
  if (SpaceOf(*group) > options_.host_capacity_bytes) {
    return refuse(absl::ResourceExhaustedError(absl::StrCat(
        "group ", group->name, " takes ", HumanBytes(SpaceOf(*group)),
        " and the host pool is ", HumanBytes(options_.host_capacity_bytes),
        "; raise host.pool in hoistd.toml or publish smaller groups")));
  }
  Incoming incoming;
  incoming.request = request;
  incoming.session = session;
  incoming.model = model;
  incoming.owner = peer->uid;
  incoming.readers = readers.value_or(options_.default_readers);
  if (const ModelEntry* own = models_.Named(peer->uid, model)) {
    if (absl::Status s = CheckReaders(*own->model, readers); !s.ok()) {
      return refuse(std::move(s));
    }
    incoming.readers = own->model->readers;
  }
  incoming.group = std::move(group);
  incoming.memfd = std::move(memfd);
  incoming.deadline = deadline;
  incoming.owner_id = copies_.NewOwner();
  incoming_[request.number()] = std::move(incoming);
  Tick(now, effects);
}

// Starts to receive the image as soon as there is space for it. Where the group
// is there already, the bytes are only compared.
void Node::AdvanceIncoming(Incoming& incoming, absl::Time now,
                           Effects& effects) {
  if (incoming.transfer.has_value()) return;
  const ModelEntry* model = models_.Named(incoming.owner, incoming.model);
  const bool known =
      model != nullptr &&
      FindGroup(*model->model->spec, incoming.group->name).has_value();
  if (!known) {
    if (incoming.tried_at == space_epoch_) return;
    if (absl::Status s = MakeRoomToPublish(incoming, now, effects); !s.ok()) {
      incoming.blocked = {std::move(s), std::nullopt, 0};
      incoming.tried_at = space_epoch_;
      return;
    }
    Need need;
    need.urgent = true;
    const absl::StatusOr<uint64_t> offset = AllocateHost(
        incoming.owner_id, SpaceOf(*incoming.group), need, now, effects);
    if (!offset.ok()) {
      incoming.blocked = {offset.status(), OnHost(), SpaceOf(*incoming.group)};
      incoming.tried_at = space_epoch_;
      return;
    }
    incoming.offset = *offset;
    quota_.Add(incoming.owner, Quota::kPublishedBytes,
               SpaceOf(*incoming.group));
  }
  Transfer& transfer =
      NewTransfer(TransferKind::kReceive, {}, /*urgent=*/true, effects);
  transfer.group = incoming.group;
  transfer.host_offset = incoming.offset;
  transfer.memfd = incoming.memfd;
  incoming.transfer = transfer.id;
  transfers_[transfer.id] = transfer;
}

void Node::DropIncoming(const Incoming& incoming) {
  if (!incoming.offset.has_value()) return;
  quota_.Remove(incoming.owner, Quota::kPublishedBytes,
                SpaceOf(*incoming.group));
  host_.Free(*incoming.offset);
  ++space_epoch_;
}

void Node::ReceiveDone(Incoming incoming, const absl::Status& status,
                       const Content& content, absl::Time now,
                       Effects& effects) {
  Answer answer = {incoming.request, status};
  if (status.ok()) {
    if (sessions_.Find(incoming.session) != nullptr) {
      absl::StatusOr<ModelPtr> model = Adopt(incoming, content, now, effects);
      answer.status = model.status();
      if (model.ok()) {
        answer.model = *std::move(model);
        effects.answers.push_back(std::move(answer));
        return;
      }
    } else {
      answer.status = absl::CancelledError("the session is closed");
    }
  }
  DropIncoming(incoming);
  effects.answers.push_back(std::move(answer));
}

// Makes the received image a group of its model, or attaches to the same one.
absl::StatusOr<ModelPtr> Node::Adopt(const Incoming& incoming,
                                     const Content& content, absl::Time now,
                                     Effects& effects) {
  ModelEntry* entry = models_.Named(incoming.owner, incoming.model);
  if (entry != nullptr && !entry->model->spec->published) {
    return absl::AlreadyExistsError(
        absl::StrCat("model ", incoming.model,
                     " is read from files; publish under another name"));
  }
  if (entry != nullptr) {
    const ModelSpec& spec = *entry->model->spec;
    const auto index = FindGroup(spec, incoming.group->name);
    if (index.has_value()) {
      if (spec.group_contents[index->number()] != content) {
        return OtherWeights(spec, FingerprintOf(content));
      }
      if (incoming.offset.has_value()) DropIncoming(incoming);
      return entry->model;
    }
  }
  if (!incoming.offset.has_value()) {
    return absl::AbortedError(
        "the group was forgotten while it was compared; publish again");
  }
  HOIST_RETURN_IF_ERROR(
      models_.CheckAppend(incoming.owner, incoming.model, *incoming.group));
  if (entry == nullptr) {
    const ModelId id(++last_id_);
    entry = &models_.AddPublished(id, incoming.model, incoming.owner,
                                  incoming.readers);
  }
  HOIST_RETURN_IF_ERROR(models_.Append(*entry, incoming.group, content));
  const CopyRef ref = {
      {entry->model->id,
       GroupIndex(static_cast<uint32_t>(entry->groups.size() - 1))},
      kHost};
  Copy& copy = copies_.At(ref);
  copies_.Apply(copy, ResidencyEvent::kReserve);
  copies_.Apply(copy, ResidencyEvent::kFillDone);
  copy.owner = incoming.owner_id;
  copy.offset = *incoming.offset;
  copy.last_use = now;
  copies_.SetOwner(copy.owner, ref);
  ++space_epoch_;
  Note(effects, "copy-present", ref, "published");
  return entry->model;
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
  for (uint32_t g = 0; g < entry->groups.size(); ++g) {
    const GroupKey key = {id, GroupIndex(g)};
    if (entry->groups[g].unsaved()) {
      quota_.Remove(owner, Quota::kPublishedBytes,
                    SpaceOf(*entry->groups[g].group));
    }
    FailNeeds(key, absl::NotFoundError(absl::StrCat(name, " was forgotten")),
              effects);
    for (auto& [place, copy] : entry->groups[g].copies) {
      if (copy.usable()) {
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
  orders_.ForgetModel(id);
  effects.forgotten.push_back(id);
  models_.Remove(id);
  NodeEvent event;
  event.kind = "model-forgotten";
  event.model = name;
  event.detail = why;
  effects.events.push_back(std::move(event));
}

}  // namespace hoistd
