// Models: registering, finding, publishing, forgetting.
#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"
#include "daemon/core/published_group.h"

namespace hoistd {
namespace {

const Place kHost = {OnHost(), false};

absl::Status OtherWeights(const ModelSpec& has, const Fingerprint& wanted) {
  return absl::AlreadyExistsError(absl::StrCat(
      "model ", has.name,
      " is there with other weights or groups "
      "(fingerprint ",
      FingerprintHex(has.fingerprint), ", not ", FingerprintHex(wanted),
      "); use another name, or forget it first (`hoistctl evict --forget`)"));
}

}  // namespace

ModelPtr Node::MakeModel(std::shared_ptr<const ModelSpec> spec, Uid owner,
                         Readers readers) {
  auto model = std::make_shared<Model>();
  model->id = ModelId(++last_id_);
  model->owner = owner;
  model->readers = readers;
  model->spec = std::move(spec);
  return model;
}

bool Node::MayRead(const Peer& peer, const Model& model) {
  return peer.admin || model.readers == Readers::kEveryone ||
         model.owner == peer.uid;
}

// Names are one space per owner, and one for models that everyone may read.
ModelEntry* Node::Named(Uid owner, Readers readers, const std::string& name) {
  for (const auto& [id, entry] : copies_.models()) {
    const Model& model = *entry->model;
    if (model.spec->name != name || model.readers != readers) continue;
    if (readers == Readers::kEveryone || model.owner == owner) {
      return entry.get();
    }
  }
  return nullptr;
}

absl::StatusOr<ModelPtr> Node::AddModel(SessionId session,
                                        std::shared_ptr<const ModelSpec> spec,
                                        std::optional<Readers> readers,
                                        Effects& effects) {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  if (draining_) return absl::UnavailableError("hoistd is draining");
  const Readers who = readers.value_or(options_.default_readers);
  // A caller who opened the same files may use what everyone may read.
  for (const Readers r : {who, Readers::kEveryone}) {
    const ModelEntry* same = Named(peer->uid, r, spec->name);
    if (same != nullptr &&
        same->model->spec->fingerprint == spec->fingerprint) {
      return same->model;
    }
  }
  if (const ModelEntry* other = Named(peer->uid, who, spec->name)) {
    return OtherWeights(*other->model->spec, spec->fingerprint);
  }
  ModelEntry& entry =
      copies_.AddModel(MakeModel(std::move(spec), peer->uid, who));
  for (const auto& group : entry.model->spec->groups) {
    entry.groups.push_back({.group = group, .in_files = true});
  }
  NodeEvent event;
  event.kind = "model-added";
  event.model = entry.model->spec->name;
  event.session = session;
  event.bytes = entry.model->spec->image_bytes;
  effects.events.push_back(std::move(event));
  return entry.model;
}

absl::Status Node::Restore(const std::string& name, Uid owner, Readers readers,
                           std::shared_ptr<const Group> group,
                           const Fingerprint& fingerprint, SpillId spill) {
  ModelEntry* entry = Named(owner, readers, name);
  if (entry == nullptr) {
    auto spec = std::make_shared<ModelSpec>();
    spec->name = name;
    spec->published = true;
    entry = &copies_.AddModel(MakeModel(std::move(spec), owner, readers));
  }
  if (FindGroup(*entry->model->spec, group->name).has_value()) {
    return absl::AlreadyExistsError(
        absl::StrCat("two spilled images of ", name, "/", group->name));
  }
  auto model = std::make_shared<Model>(*entry->model);
  HOIST_ASSIGN_OR_RETURN(model->spec,
                         AppendGroup(*entry->model->spec, group, fingerprint));
  entry->model = std::move(model);
  entry->groups.push_back({.group = std::move(group), .spilled = spill});
  return absl::OkStatus();
}

absl::StatusOr<ModelPtr> Node::Find(SessionId session,
                                    const std::string& name) const {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  ModelPtr found;
  for (const auto& [id, entry] : copies_.models()) {
    if (entry->model->spec->name != name || !MayRead(*peer, *entry->model)) {
      continue;
    }
    // One's own goes before those of others.
    if (found == nullptr || entry->model->owner == peer->uid) {
      found = entry->model;
    }
  }
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no model ", name,
                     "; register its files, or load it with `hoistctl load`"));
  }
  return found;
}

absl::StatusOr<ModelPtr> Node::Find(SessionId session, ModelId id) const {
  const Peer* peer = PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("the session is closed");
  const ModelEntry* entry = copies_.FindModel(id);
  if (entry == nullptr || !MayRead(*peer, *entry->model)) {
    return absl::NotFoundError("no such model; it may have been forgotten");
  }
  return entry->model;
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

absl::StatusOr<ModelPtr> Node::FindAny(const std::string& name) const {
  std::vector<ModelPtr> found;
  for (const auto& [id, entry] : copies_.models()) {
    const Model& model = *entry->model;
    if (model.spec->name == name ||
        absl::StrCat(model.owner.number(), ":", model.spec->name) == name) {
      found.push_back(entry->model);
    }
  }
  if (found.size() == 1) return found[0];
  if (found.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no model ", name, "; `hoistctl models` lists them"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("several users have a model ", name, "; write it as ",
                   found[0]->owner.number(), ":", name));
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
  const ModelEntry* model =
      Named(incoming.owner, incoming.readers, incoming.model);
  const bool known =
      model != nullptr &&
      FindGroup(*model->model->spec, incoming.group->name).has_value();
  if (!known) {
    if (incoming.tried_at == space_epoch_) return;
    Need need;
    need.urgent = true;
    const absl::StatusOr<uint64_t> offset = AllocateHost(
        incoming.owner_id, SpaceOf(*incoming.group), need, now, effects);
    if (!offset.ok()) {
      incoming.blocked = offset.status();
      incoming.tried_at = space_epoch_;
      return;
    }
    incoming.offset = *offset;
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
  host_.Free(*incoming.offset);
  ++space_epoch_;
}

void Node::ReceiveDone(Incoming incoming, const absl::Status& status,
                       const Fingerprint& content, absl::Time now,
                       Effects& effects) {
  Answer answer = {incoming.request, status};
  if (status.ok()) {
    if (sessions_.contains(incoming.session)) {
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
                                     const Fingerprint& content, absl::Time now,
                                     Effects& effects) {
  const Fingerprint fingerprint =
      PublishedFingerprint(*incoming.group, content);
  ModelEntry* entry = Named(incoming.owner, incoming.readers, incoming.model);
  if (entry != nullptr && !entry->model->spec->published) {
    return absl::AlreadyExistsError(
        absl::StrCat("model ", incoming.model,
                     " is read from files; publish under another name"));
  }
  if (entry != nullptr) {
    const ModelSpec& spec = *entry->model->spec;
    const auto index = FindGroup(spec, incoming.group->name);
    if (index.has_value()) {
      if (spec.group_fingerprints[index->number()] != fingerprint) {
        return OtherWeights(spec, fingerprint);
      }
      if (incoming.offset.has_value()) DropIncoming(incoming);
      return entry->model;
    }
  }
  if (!incoming.offset.has_value()) {
    return absl::AbortedError(
        "the group was forgotten while it was compared; publish again");
  }
  if (entry == nullptr) {
    auto spec = std::make_shared<ModelSpec>();
    spec->name = incoming.model;
    spec->published = true;
    entry = &copies_.AddModel(
        MakeModel(std::move(spec), incoming.owner, incoming.readers));
  }
  auto model = std::make_shared<Model>(*entry->model);
  HOIST_ASSIGN_OR_RETURN(model->spec, AppendGroup(*entry->model->spec,
                                                  incoming.group, fingerprint));
  entry->model = model;
  entry->groups.push_back({.group = incoming.group});
  const CopyRef ref = {
      {model->id, GroupIndex(static_cast<uint32_t>(entry->groups.size() - 1))},
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

absl::Status Node::Forget(ModelId id, absl::Time now, Effects& effects) {
  ModelEntry* entry = copies_.FindModel(id);
  if (entry == nullptr) return absl::NotFoundError("no such model");
  const std::string name = entry->model->spec->name;
  for (const auto& [request, pending] : pending_plans_) {
    if (pending.grant.model != id) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is about to be streamed by session ",
                     pending.session.number(), ", whose plan waits for space"));
  }
  for (const auto& [plan_id, plan] : plans_) {
    if (plan.grant.model != id) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is streamed by session ", plan.session.number(),
                     "; `hoistctl plans` shows who has plans"));
  }
  for (const GroupEntry& group : entry->groups) {
    for (const auto& [place, copy] : group.copies) {
      if (copy.leases == 0 && copy.readers == 0 && !copy.filling.has_value()) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat(
          name, "/", group.group->name, " is ",
          copy.leases > 0 ? "leased" : "being copied", " on ",
          ToString(place.at), "; `hoistctl sessions` shows who holds leases"));
    }
  }
  for (uint32_t g = 0; g < entry->groups.size(); ++g) {
    const GroupKey key = {id, GroupIndex(g)};
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
  copies_.RemoveModel(id);
  NodeEvent event;
  event.kind = "model-forgotten";
  event.model = name;
  effects.events.push_back(std::move(event));
  Tick(now, effects);
  return absl::OkStatus();
}

}  // namespace hoistd
