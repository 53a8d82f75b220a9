// Publishing: receives images, and makes room for them.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/core/node_picture.h"
#include "daemon/core/registry.h"
#include "daemon/model/model_name.h"
#include "daemon/model/published_group.h"

namespace hoistd {
namespace {

absl::Status CheckExpected(const Incoming& incoming, const Content& content) {
  if (incoming.expected.value_or(content) == content) return absl::OkStatus();
  const auto hex = [](const Content& of) {
    return absl::BytesToHexString(
        {reinterpret_cast<const char*>(of.data()), of.size()});
  };
  return absl::DataLossError(absl::StrCat(
      "the bytes of ", incoming.model, "/", incoming.group->name,
      " are others than expected: their content is ", hex(content),
      " and should be ", hex(*incoming.expected),
      "; nothing of them is kept, send them again from where they are right"));
}

// Whether each tensor has the same place in both images.
bool SameLayout(const Group& a, const Group& b) {
  const auto same = [](const Tensor& x, const Tensor& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape &&
           x.strides == y.strides && x.offset == y.offset && x.bytes == y.bytes;
  };
  return a.image_bytes == b.image_bytes &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(),
                    b.tensors.end(), same);
}

}  // namespace

absl::Status Registry::Publish(Incoming incoming,
                               std::optional<Readers> readers) {
  const SessionId session = incoming.session;
  const Group& group = *incoming.group;
  const Peer* peer = tenure_.PeerOf(session);
  if (peer == nullptr) return absl::NotFoundError("session closed");
  if (tenure_.draining() && !GoesOnPublishing(session, incoming.model)) {
    return absl::UnavailableError(
        "hoistd is draining and takes no new models; publish to another node, "
        "or wait for `hoistctl drain --resume`");
  }
  if (SpaceOf(group) > options_.host_capacity_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "group ", group.name, " takes ", HumanBytes(SpaceOf(group)),
        " and the host pool is ", HumanBytes(options_.host_capacity_bytes),
        "; raise host.pool in hoistd.toml or publish smaller groups"));
  }
  incoming.owner = peer->uid;
  incoming.readers = readers.value_or(options_.default_readers);
  if (const ModelEntry* own = models_.Named(peer->uid, incoming.model)) {
    HOIST_RETURN_IF_ERROR(CheckReaders(*own->model, readers));
    incoming.readers = own->model->readers;
    tenure_.sessions().Use(session, own->model->id);
  }
  incoming.owner_id = copies_.NewOwner();
  incoming_.Add(std::move(incoming));
  return absl::OkStatus();
}

// Parked groups, and further groups of a model, are no new work.
bool Registry::GoesOnPublishing(SessionId session,
                                const std::string& model) const {
  if (EndsWith(model) == session) return true;
  const ModelEntry* own =
      models_.Named(tenure_.sessions().At(session).uid(), model);
  return own != nullptr && tenure_.sessions().Uses(session, own->model->id);
}

bool Registry::Advance(RequestId request, absl::Time now, Effects& effects) {
  const Incoming& incoming = incoming_.At(request);
  const uint64_t bytes = SpaceOf(*incoming.group);
  if (incoming.offset.has_value()) {
    absl::Status keeps = space_.KeepWayBack(*incoming.offset, bytes, now);
    if (!keeps.ok()) {
      incoming_.Block(request, space_.epoch(),
                      {std::move(keeps), OnHost(), bytes});
      return false;
    }
  } else if (!IsThere(incoming)) {
    if (incoming.tried_at == space_.epoch()) return false;
    absl::StatusOr<bool> room = MakeRoom(incoming, now, effects);
    if (!room.ok()) {
      incoming_.Block(request, space_.epoch(),
                      {room.status(), std::nullopt, 0});
      return false;
    }
    return !*room || Place(incoming, bytes, now);
  }
  Transfer transfer;
  transfer.urgent = true;
  transfer.group = incoming.group;
  transfer.way = ClientToHost{incoming.memfd, incoming.offset};
  incoming_.Start(request,
                  supply_.transfers().Start(std::move(transfer), effects));
  return false;
}

bool Registry::IsThere(const Incoming& incoming) const {
  const ModelEntry* model = models_.Named(incoming.owner, incoming.model);
  if (model == nullptr) return false;
  const auto index = model->Find(incoming.group->name);
  // A lost group is published again.
  return index.has_value() && model->groups[index->number()].lost.ok();
}

// Gives the image a place on the host; false: there is none now.
bool Registry::Place(const Incoming& incoming, uint64_t bytes, absl::Time now) {
  uint64_t published = 0;
  for (const auto& [user, holdings] : quota_.users()) {
    published += holdings.Of(Quota::kPublishedBytes);
  }
  const absl::StatusOr<uint64_t> offset =
      space_.PlaceUnsaved(incoming.owner_id, bytes, published, now);
  if (offset.ok()) {
    incoming_.Place(incoming.request, *offset);
  } else {
    incoming_.Block(incoming.request, space_.epoch(),
                    {offset.status(), OnHost(), bytes});
  }
  return offset.ok();
}

void Registry::Expire(absl::Time now, const NodePicture& picture,
                      Effects& effects) {
  for (const RequestId request : incoming_.Late(now)) {
    const Incoming& incoming = incoming_.At(request);
    effects.answers.push_back(
        {request, absl::ResourceExhaustedError(absl::StrCat(
                      "no space to receive the group: ",
                      picture.TextFor(tenure_.PeerOf(incoming.session),
                                      incoming.blocked)))});
    Drop(incoming_.Take(request));
  }
}

void Registry::Leave(SessionId session) {
  for (const RequestId request : incoming_.WaitingOf(session)) {
    Drop(incoming_.Take(request));
  }
}

void Registry::Drop(const Incoming& incoming) {
  if (!incoming_.Drop(incoming)) return;
  space_.FreeHost(*incoming.offset);
}

void Registry::Received(TransferId id, const absl::Status& status,
                        const Content& content, absl::Time now,
                        Effects& effects) {
  const Incoming incoming = incoming_.Take(id);
  Answer answer = {incoming.request, status};
  if (status.ok()) answer.status = CheckExpected(incoming, content);
  if (answer.status.ok()) {
    if (tenure_.sessions().Find(incoming.session) != nullptr) {
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
  Drop(incoming);
  effects.answers.push_back(std::move(answer));
}

// Makes the received image a group of its model, or finds the same one.
absl::StatusOr<ModelPtr> Registry::Adopt(const Incoming& incoming,
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
    const auto index = entry->Find(incoming.group->name);
    if (index.has_value()) {
      if (spec.group_contents[index->number()] != content) {
        return OtherWeights(spec, FingerprintOf(content));
      }
      if (!entry->groups[index->number()].lost.ok() &&
          incoming.offset.has_value()) {
        if (!SameLayout(*spec.groups[index->number()], *incoming.group)) {
          return absl::AlreadyExistsError(absl::StrCat(
              incoming.model, "/", incoming.group->name,
              " is lost, and these are its bytes in another layout, which "
              "those who have the model do not know; forget it, and publish "
              "all of it again"));
        }
        Repair(*entry, *index, effects);
        supply_.Received({entry->model->id, *index}, incoming.owner_id,
                         *incoming.offset, now, effects);
        tenure_.sessions().Use(incoming.session, entry->model->id);
        return entry->model;
      }
      if (incoming.offset.has_value()) Drop(incoming);
      tenure_.sessions().Use(incoming.session, entry->model->id);
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
    const ModelId id(ids_.Next());
    entry = &models_.AddPublished(id, incoming.model, incoming.owner,
                                  incoming.readers);
    persisted_.Add(PersistedModel{id, entry->model});
  }
  const GroupIndex place = entry->next_place;
  const bool was_missing = place.number() < entry->groups.size();
  HOIST_RETURN_IF_ERROR(models_.Put(*entry, place, incoming.group, content));
  // Before the image: once both are recorded, nothing else was ever there.
  if (was_missing)
    persisted_.Add(PersistedModel{entry->model->id, entry->model});
  supply_.Received({entry->model->id, place}, incoming.owner_id,
                   *incoming.offset, now, effects);
  effects.published.push_back({incoming.owner, incoming.model,
                               static_cast<uint32_t>(entry->groups.size())});
  tenure_.sessions().Use(incoming.session, entry->model->id);
  return entry->model;
}

// A lost group was published again: its quarantined images are obsolete.
void Registry::Repair(ModelEntry& model, GroupIndex index, Effects& effects) {
  GroupEntry& group = model.groups[index.number()];
  group.lost = absl::OkStatus();
  effects.unspill.insert(effects.unspill.end(), group.damaged.begin(),
                         group.damaged.end());
  group.damaged.clear();
}

// Drops published models of the user that no session uses, least recently used
// first, until `bytes` of them are gone. False: there is not as much, or it can
// be spilled; then nothing is dropped.
bool Registry::ForgetUnreferenced(const Incoming& incoming, uint64_t bytes,
                                  absl::Time now) {
  if (!space_.CannotSpill(now)) return false;
  std::vector<ModelId> leaving;
  uint64_t gained = 0;
  for (const ModelId id : space_.Expendable()) {
    if (gained >= bytes) break;
    const ModelEntry& model = *copies_.FindModel(id);
    if (model.model->owner != incoming.owner) continue;
    uint64_t unsaved = 0;
    for (const GroupEntry& group : model.groups) {
      if (group.unsaved()) unsaved += SpaceOf(*group.group);
    }
    if (unsaved > 0) leaving.push_back(id);
    gained += unsaved;
  }
  if (gained < bytes) return false;
  for (const ModelId id : leaving) space_.Forget(id);
  return true;
}

// Whether the publisher's quota has room for the image. If not, starts to spill
// the user's published images where possible. Refuses the image now if nothing
// can ever make room. False: there will be room once forgotten models are
// removed.
absl::StatusOr<bool> Registry::MakeRoom(const Incoming& incoming,
                                        absl::Time now, Effects& effects) {
  const uint64_t bytes = SpaceOf(*incoming.group);
  const uint64_t published =
      quota_.Of(incoming.owner).Of(Quota::kPublishedBytes);
  const uint64_t host_limit = quota_.HostLimitOf(incoming.owner);
  absl::Status status =
      quota_.Check(incoming.owner, Quota::kPublishedBytes, bytes);
  uint64_t limit = quota_.LimitOf(incoming.owner, Quota::kPublishedBytes);
  if (status.ok() && bytes > tenure_.HostRoom(incoming.owner)) {
    status = absl::ResourceExhaustedError(absl::StrCat(
        ToString(incoming.owner), " holds ",
        HumanBytes(tenure_.HostBytesOf(incoming.owner)), " of ",
        HumanBytes(host_limit),
        " of host memory for plans and published images and asks for ",
        HumanBytes(bytes), "; clear a plan or forget a model, or raise ",
        incoming.owner.is_tenant() ? "tenant." : "",
        "quota.host_bytes in hoistd.toml"));
    // Held bytes stay: this much may be published beside them.
    limit =
        host_limit -
        std::min(host_limit, tenure_.HostBytesOf(incoming.owner) - published);
  }
  if (status.ok()) {
    const uint64_t unchecked =
        supply_.restored().UncheckedSpaceOf(incoming.owner);
    if (unchecked == 0) return true;
    if (bytes + unchecked <= tenure_.HostRoom(incoming.owner)) {
      status = quota_.Check(incoming.owner, Quota::kPublishedBytes,
                            bytes + unchecked);
      if (status.ok()) return true;
    }
    return absl::ResourceExhaustedError(absl::StrCat(
        "waiting until ", HumanBytes(unchecked), " are read again that ",
        ToString(incoming.owner), " published before hoistd began"));
  }
  if (bytes <= limit && published + bytes > limit &&
      ForgetUnreferenced(incoming, published + bytes - limit, now)) {
    return false;
  }
  if (!space_.CanSpill() || bytes > limit)
    incoming_.GiveUp(incoming.request, now);
  if (!space_.MaySpill(now) || bytes > limit) return status;
  // The least valuable ones, until there is room.
  uint64_t held = published;
  std::vector<std::pair<double, CopyRef>> idle;
  for (const auto& [id, model] : copies_.models()) {
    if (model->model->owner != incoming.owner) continue;
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      if (!model->groups[g].unsaved()) continue;
      const CopyRef ref = {{id, GroupIndex(g)}, kHost};
      const Copy& copy = copies_.At(ref);
      if (copy.spilling()) {
        supply_.saver().Hurry(ref.key, effects);
        held -= SpaceOf(*model->groups[g].group);
      } else if (const auto value =
                     space_.ValueOf(copy.owner, SpaceClaim(), now)) {
        idle.emplace_back(*value, ref);
      }
    }
  }
  std::sort(idle.begin(), idle.end());
  for (const auto& [value, ref] : idle) {
    if (held + bytes <= limit) break;
    held -= copies_.SpaceOf(ref.key);
    supply_.saver().Start(ref, copies_.At(ref), /*urgent=*/true, effects);
  }
  return status;
}

}  // namespace hoistd
