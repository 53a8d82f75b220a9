// Publishing: receiving images, and what makes room for them.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/core/node.h"
#include "daemon/model/model_name.h"

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

// Whether each tensor lies where it does in the other's image.
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

void Node::Publish(RequestId request, SessionId session,
                   const std::string& model, std::shared_ptr<const Group> group,
                   std::shared_ptr<hoist::UniqueFd> memfd,
                   std::optional<Readers> readers,
                   std::optional<Content> expected, absl::Time deadline,
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
  incoming.expected = expected;
  if (const ModelEntry* own = models_.Named(peer->uid, model)) {
    if (absl::Status s = CheckReaders(*own->model, readers); !s.ok()) {
      return refuse(std::move(s));
    }
    incoming.readers = own->model->readers;
    sessions_.Use(session, own->model->id);
  }
  incoming.group = std::move(group);
  incoming.memfd = std::move(memfd);
  incoming.deadline = deadline;
  incoming.owner_id = copies_.NewOwner();
  incoming_.Add(std::move(incoming));
  Tick(now, effects);
}

// Starts to receive the image as soon as there is space for it. Where the group
// is there already, the bytes are only compared.
void Node::AdvanceIncoming(RequestId request, absl::Time now,
                           Effects& effects) {
  const Incoming& incoming = incoming_.At(request);
  const ModelEntry* model = models_.Named(incoming.owner, incoming.model);
  const auto index = model == nullptr
                         ? std::nullopt
                         : FindGroup(*model->model->spec, incoming.group->name);
  // What is lost comes again.
  if (!index.has_value() || !model->groups[index->number()].lost.ok()) {
    if (incoming.tried_at == space_epoch_) return;
    if (absl::Status s = MakeRoomToPublish(incoming, now, effects); !s.ok()) {
      return incoming_.Block(request, space_epoch_,
                             {std::move(s), std::nullopt, 0});
    }
    Need need;
    need.urgent = true;
    const uint64_t bytes = SpaceOf(*incoming.group);
    const absl::StatusOr<uint64_t> offset =
        AllocateHost(incoming.owner_id, bytes, need, now, effects);
    if (!offset.ok()) {
      return incoming_.Block(request, space_epoch_,
                             {offset.status(), OnHost(), bytes});
    }
    incoming_.Place(request, *offset);
  }
  Transfer transfer;
  transfer.urgent = true;
  transfer.group = incoming.group;
  transfer.way = ClientToHost{incoming.memfd, incoming.offset};
  incoming_.Start(request, Start(std::move(transfer), effects));
}

void Node::ExpireIncoming(absl::Time now, Effects& effects) {
  for (const RequestId request : incoming_.Late(now)) {
    const Incoming& incoming = incoming_.At(request);
    effects.answers.push_back(
        {request, absl::ResourceExhaustedError(absl::StrCat(
                      "no space to receive the group: ",
                      TextFor(PeerOf(incoming.session), incoming.blocked)))});
    DropIncoming(incoming_.Take(request));
  }
}

void Node::DropIncoming(const Incoming& incoming) {
  if (!incoming_.Drop(incoming)) return;
  host_.Free(*incoming.offset);
  ++space_epoch_;
}

void Node::ReceiveDone(Incoming incoming, const absl::Status& status,
                       const Content& content, absl::Time now,
                       Effects& effects) {
  Answer answer = {incoming.request, status};
  if (status.ok()) answer.status = CheckExpected(incoming, content);
  if (answer.status.ok()) {
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
      if (!entry->groups[index->number()].lost.ok() &&
          incoming.offset.has_value()) {
        if (!SameLayout(*spec.groups[index->number()], *incoming.group)) {
          return absl::AlreadyExistsError(absl::StrCat(
              incoming.model, "/", incoming.group->name,
              " is lost, and these are its bytes in another layout, which "
              "those who have the model do not know; forget it, and publish "
              "all of it again"));
        }
        Mend(*entry, *index, effects);
        PlaceReceived({entry->model->id, *index}, incoming, now, effects);
        sessions_.Use(incoming.session, entry->model->id);
        return entry->model;
      }
      if (incoming.offset.has_value()) DropIncoming(incoming);
      sessions_.Use(incoming.session, entry->model->id);
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
    Keep(KeptModel{id, entry->model});
  }
  HOIST_RETURN_IF_ERROR(models_.Append(*entry, incoming.group, content));
  const GroupIndex last(static_cast<uint32_t>(entry->groups.size() - 1));
  PlaceReceived({entry->model->id, last}, incoming, now, effects);
  effects.published.push_back(
      {incoming.owner, incoming.model, last.number() + 1});
  sessions_.Use(incoming.session, entry->model->id);
  return entry->model;
}

// What no tier had any more was published again: of what the store put aside
// nothing is needed now.
void Node::Mend(ModelEntry& model, GroupIndex index, Effects& effects) {
  GroupEntry& group = model.groups[index.number()];
  group.lost = absl::OkStatus();
  effects.unspill.insert(effects.unspill.end(), group.damaged.begin(),
                         group.damaged.end());
  group.damaged.clear();
}

void Node::PlaceReceived(GroupKey key, const Incoming& incoming, absl::Time now,
                         Effects& effects) {
  const CopyRef ref = {key, kHost};
  Copy& copy = copies_.At(ref);
  copies_.Apply(copy, ResidencyEvent::kReserve);
  copies_.Apply(copy, ResidencyEvent::kFillDone);
  copy.owner = incoming.owner_id;
  copy.offset = *incoming.offset;
  copy.last_use = now;
  copies_.SetOwner(copy.owner, ref);
  KeepImage(ref, copy);
  // What ends with a session, a power cut ends, too.
  if (!EndsWith(copies_.FindModel(key.model)->model->spec->name)) SaveSoon(key);
  ++space_epoch_;
  Note(effects, EventKind::kCopyPresent, ref, "published");
}

// They count once they are found right.
uint64_t Node::UncheckedBytesOf(User uid) const {
  uint64_t bytes = 0;
  for (const GroupKey key : unchecked_) {
    const ModelEntry* model = copies_.FindModel(key.model);
    if (model == nullptr || model->model->owner != uid) continue;
    bytes += SpaceOf(*model->groups[key.group.number()].group);
  }
  return bytes;
}

// Drops published models of the user's that no session uses, the least recently
// used first, until so many bytes of them are gone; false: they are not as
// many, or can be spilled. Nothing is dropped then.
bool Node::ForgetDeserted(const Incoming& incoming, uint64_t bytes,
                          absl::Time now, Effects& effects) {
  if (!CannotSpill(now)) return false;
  std::vector<ModelId> leaving;
  uint64_t gained = 0;
  for (const ModelId id : Expendable()) {
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
  for (const ModelId id : leaving) {
    ++counters_.models_forgotten;
    RemoveModel(id,
                "it made room for its owner: no session used it, and it could "
                "not be spilled",
                now, effects);
  }
  return true;
}

// Whether the publisher's quota has room for the image; where it has not, and
// what the user published before can be spilled, that has begun. Where nothing
// can ever make room it is refused now.
absl::Status Node::MakeRoomToPublish(const Incoming& incoming, absl::Time now,
                                     Effects& effects) {
  const uint64_t bytes = SpaceOf(*incoming.group);
  const uint64_t published =
      quota_.Of(incoming.owner).Of(Quota::kPublishedBytes);
  const uint64_t host_limit = quota_.HostLimitOf(incoming.owner);
  absl::Status status =
      quota_.Check(incoming.owner, Quota::kPublishedBytes, bytes);
  uint64_t limit = quota_.LimitOf(incoming.owner, Quota::kPublishedBytes);
  if (status.ok() && bytes > HostRoom(incoming.owner)) {
    status = absl::ResourceExhaustedError(absl::StrCat(
        ToString(incoming.owner), " holds ",
        HumanBytes(HostBytesOf(incoming.owner)), " of ", HumanBytes(host_limit),
        " of host memory for plans and published images and asks for ",
        HumanBytes(bytes), "; clear a plan or forget a model, or raise ",
        incoming.owner.is_tenant() ? "tenant." : "",
        "quota.host_bytes in hoistd.toml"));
    // What is only held stays: so much may be published beside it.
    limit = host_limit -
            std::min(host_limit, HostBytesOf(incoming.owner) - published);
  }
  if (status.ok()) {
    const uint64_t unchecked = UncheckedBytesOf(incoming.owner);
    if (unchecked == 0) return status;
    if (bytes + unchecked <= HostRoom(incoming.owner)) {
      status = quota_.Check(incoming.owner, Quota::kPublishedBytes,
                            bytes + unchecked);
      if (status.ok()) return status;
    }
    return absl::ResourceExhaustedError(absl::StrCat(
        "waiting until ", HumanBytes(unchecked), " are read again that ",
        ToString(incoming.owner), " published before hoistd began"));
  }
  if (bytes <= limit && published + bytes > limit &&
      ForgetDeserted(incoming, published + bytes - limit, now, effects)) {
    return absl::OkStatus();
  }
  if (!CanSpill() || bytes > limit) incoming_.GiveUp(incoming.request, now);
  if (!MaySpill(now) || bytes > limit) return status;
  // Those that are worth least, until there is room.
  uint64_t held = published;
  Need need;
  need.urgent = true;
  std::vector<std::pair<double, CopyRef>> idle;
  for (const auto& [id, model] : copies_.models()) {
    if (model->model->owner != incoming.owner) continue;
    for (uint32_t g = 0; g < model->groups.size(); ++g) {
      if (!model->groups[g].unsaved()) continue;
      const CopyRef ref = {{id, GroupIndex(g)}, kHost};
      const Copy& copy = copies_.At(ref);
      if (copy.state == Residency::kSpilling) {
        HurrySpill(ref.key, effects);
        held -= SpaceOf(*model->groups[g].group);
      } else if (const auto value = ValueOf(copy.owner, need, now)) {
        idle.emplace_back(*value, ref);
      }
    }
  }
  std::sort(idle.begin(), idle.end());
  for (const auto& [value, ref] : idle) {
    if (held + bytes <= limit) break;
    held -= copies_.SpaceOf(ref.key);
    StartSpill(ref, copies_.At(ref), /*urgent=*/true, effects);
  }
  return status;
}

}  // namespace hoistd
