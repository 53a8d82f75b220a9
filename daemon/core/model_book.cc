#include "daemon/core/model_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "daemon/core/device_space.h"
#include "daemon/model/file_header.h"
#include "daemon/model/published_group.h"

namespace hoistd {
namespace {

// Uids are below.
constexpr uint64_t kFirstTenant = uint64_t{1} << 32;

absl::Status NoModel(absl::string_view name) {
  return absl::NotFoundError(
      absl::StrCat("no model ", name,
                   " of yours or root's; register its files, or load it with "
                   "`hoistctl load` (another user's is written UID:NAME, a "
                   "tenant's TENANT:NAME)"));
}

}  // namespace

absl::Status OtherWeights(const ModelSpec& has, const Fingerprint& wanted) {
  return absl::AlreadyExistsError(absl::StrCat(
      "model ", has.name,
      " is there with other weights or groups "
      "(fingerprint ",
      FingerprintHex(FingerprintOf(ContentOf(has))), ", not ",
      FingerprintHex(wanted),
      "); use another name, or forget it first (`hoistctl evict --forget`)"));
}

absl::Status CheckReaders(const Model& has, std::optional<Readers> wanted) {
  if (!wanted.has_value() || *wanted == has.readers) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("your model ", has.spec->name, " is there for ",
                   has.readers == Readers::kEveryone ? "everyone" : "you alone",
                   "; use another name, or forget it first"));
}

ModelBook::ModelBook(CopyTable& copies, QuotaBook& quota,
                     bool users_share_devices)
    : copies_(copies),
      quota_(quota),
      users_share_devices_(users_share_devices) {}

absl::Status ModelBook::CheckMore(User owner, const ModelSpec& spec) const {
  HOIST_RETURN_IF_ERROR(quota_.Check(owner, Quota::kModels, 1));
  HOIST_RETURN_IF_ERROR(
      quota_.Check(owner, Quota::kHeaderBytes, spec.book_bytes));
  return quota_.CheckFiles(owner, spec.identities);
}

absl::Status ModelBook::CheckAppend(User owner, const std::string& model,
                                    const Group& group) const {
  HOIST_RETURN_IF_ERROR(
      quota_.Check(owner, Quota::kHeaderBytes, BookBytesOf(group)));
  if (Named(owner, model) != nullptr) return absl::OkStatus();
  return quota_.Check(owner, Quota::kModels, 1);
}

ModelEntry& ModelBook::Enlist(ModelId id, std::shared_ptr<const ModelSpec> spec,
                              User owner, Readers readers) {
  quota_.Add(owner, Quota::kModels, 1);
  quota_.Add(owner, Quota::kHeaderBytes, spec->book_bytes);
  quota_.UseFiles(owner, spec->identities);
  if (owner.is_tenant()) {
    tenant_numbers_.emplace(owner, tenant_numbers_.size());
  }
  const bool is_new = named_.try_emplace({owner, spec->name}, id).second;
  HOIST_CHECK(is_new);
  auto model = std::make_shared<Model>();
  model->id = id;
  model->owner = owner;
  model->readers = readers;
  model->spec = std::move(spec);
  return copies_.AddModel(std::move(model));
}

ModelEntry& ModelBook::Add(ModelId id, std::shared_ptr<const ModelSpec> spec,
                           User owner, Readers readers) {
  ModelEntry& entry = Enlist(id, std::move(spec), owner, readers);
  for (const auto& group : entry.model->spec->groups) {
    entry.numbers.emplace(group->name, entry.next_place);
    entry.groups.push_back({.group = group, .in_files = true});
    entry.next_place = GroupIndex(entry.next_place.number() + 1);
  }
  return entry;
}

ModelEntry& ModelBook::AddPublished(ModelId id, const std::string& name,
                                    User owner, Readers readers) {
  auto spec = std::make_shared<ModelSpec>();
  spec->name = name;
  spec->published = true;
  return Enlist(id, std::move(spec), owner, readers);
}

absl::Status ModelBook::Put(ModelEntry& entry, GroupIndex place,
                            std::shared_ptr<const Group> group,
                            const Content& content) {
  if (entry.Find(group->name).has_value()) {
    return absl::AlreadyExistsError(
        absl::StrCat("model ", entry.model->spec->name, " has a group ",
                     Quoted(group->name)));
  }
  HOIST_ASSIGN_OR_RETURN(std::shared_ptr<const ModelSpec> spec,
                         WithGroup(*entry.model->spec, place, group, content));
  SetSpec(entry, std::move(spec));
  entry.groups.resize(entry.model->spec->groups.size());
  entry.numbers.emplace(group->name, place);
  entry.groups[place.number()] = {.group = std::move(group)};
  uint32_t next = entry.next_place.number();
  while (next < entry.groups.size() && !IsMissing(*entry.groups[next].group))
    ++next;
  entry.next_place = GroupIndex(next);
  return absl::OkStatus();
}

void ModelBook::LeavePlaces(ModelEntry& entry, uint32_t groups) {
  if (groups <= entry.groups.size()) return;
  SetSpec(entry, WithPlaces(*entry.model->spec, groups));
  const ModelSpec& spec = *entry.model->spec;
  while (entry.groups.size() < groups) {
    GroupEntry& missing = entry.groups.emplace_back();
    missing.group = spec.groups[entry.groups.size() - 1];
    missing.lost = absl::DataLossError(absl::StrCat(
        "group ", entry.groups.size() - 1, " of model ", spec.name,
        " is gone, since no disk had it when hoistd ended; publish the model "
        "again, of which only what is missing is taken"));
  }
}

void ModelBook::SetSpec(ModelEntry& entry,
                        std::shared_ptr<const ModelSpec> spec) {
  const ModelSpec& before = *entry.model->spec;
  auto model = std::make_shared<Model>(*entry.model);
  model->spec = std::move(spec);
  quota_.Add(model->owner, Quota::kHeaderBytes,
             model->spec->book_bytes - before.book_bytes);
  entry.content.reset();
  entry.model = std::move(model);
}

void ModelBook::Remove(ModelId id) {
  const Model& model = *copies_.FindModel(id)->model;
  quota_.Remove(model.owner, Quota::kModels, 1);
  quota_.Remove(model.owner, Quota::kHeaderBytes, model.spec->book_bytes);
  quota_.UnuseFiles(model.owner, model.spec->identities);
  named_.erase({model.owner, model.spec->name});
  copies_.RemoveModel(id);
}

const ModelEntry* ModelBook::Named(User owner, const std::string& name) const {
  const auto found = named_.find({owner, name});
  return found == named_.end() ? nullptr : copies_.FindModel(found->second);
}

ModelEntry* ModelBook::Named(User owner, const std::string& name) {
  return const_cast<ModelEntry*>(std::as_const(*this).Named(owner, name));
}

ModelPtr ModelBook::Shared(User asker, const Content& content,
                           bool published) const {
  ModelPtr best;
  // Smaller is better: one's own, root's, another's.
  const auto rank = [&](const Model& model) {
    return model.owner == asker ? 0 : model.owner == User(0) ? 1 : 2;
  };
  for (const auto& [id, entry] : copies_.models()) {
    const ModelPtr& model = entry->model;
    if (model->spec->published != published) continue;
    if (model->owner != asker &&
        (model->readers != Readers::kEveryone || !users_share_devices_)) {
      continue;
    }
    if (best != nullptr && rank(*model) >= rank(*best)) continue;
    if (!entry->content.has_value()) entry->content = ContentOf(*model->spec);
    if (*entry->content == content) best = model;
  }
  return best;
}

absl::StatusOr<ModelPtr> ModelBook::Find(const Peer& asker,
                                         const std::string& name) const {
  for (const OwnedName& meant : MeantBy(asker.uid, name)) {
    const ModelEntry* entry = Named(meant.owner, meant.name);
    if (entry != nullptr && MayRead(asker, *entry->model)) return entry->model;
  }
  if (!asker.admin) return NoModel(name);
  for (const auto& [owned, id] : named_) {
    if (owned.name != name) continue;
    return absl::NotFoundError(
        absl::StrCat("no model ", name, " of yours or root's; write ",
                     ToString(owned.owner), "'s as ", ToString(owned)));
  }
  return absl::NotFoundError(
      absl::StrCat("no model ", name, "; `hoistctl models` lists them"));
}

absl::StatusOr<ModelPtr> ModelBook::Find(const Peer& asker, ModelId id) const {
  const ModelEntry* entry = copies_.FindModel(id);
  if (entry == nullptr || !MayRead(asker, *entry->model)) {
    return absl::NotFoundError("no such model; it may have been forgotten");
  }
  return entry->model;
}

bool ModelBook::MayRead(const Peer& peer, const Model& model) {
  return peer.admin || model.readers == Readers::kEveryone ||
         model.owner == peer.uid;
}

absl::Status ModelBook::CheckShares(const Peer& peer,
                                    const Model& model) const {
  if (users_share_devices_ || model.owner == peer.uid) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      model.spec->name, " is ", ToString(model.owner),
      "'s, and GPU memory is shared within a user alone, since whoever has it "
      "open could write to it; bring these weights as your own, or set "
      "device.trust = \"everyone\" in hoistd.toml where users trust each "
      "other"));
}

uint64_t ModelBook::ReadersOf(const Model& model) const {
  if (model.readers == Readers::kEveryone) return Zone::kEveryone;
  if (!model.owner.is_tenant()) return model.owner.number();
  return kFirstTenant + tenant_numbers_.at(model.owner);
}

uint64_t ModelBook::ReadersOf(const std::optional<User>& reader) {
  if (!reader.has_value()) return Zone::kEveryone;
  if (!reader->is_tenant()) return reader->number();
  const auto [it, is_new] =
      tenant_numbers_.emplace(*reader, tenant_numbers_.size());
  return kFirstTenant + it->second;
}

std::optional<User> ModelBook::ReaderOf(uint64_t readers) const {
  if (readers == Zone::kEveryone) return std::nullopt;
  if (readers < kFirstTenant) return User(static_cast<uint32_t>(readers));
  const auto found = std::find_if(
      tenant_numbers_.begin(), tenant_numbers_.end(),
      [&](const auto& one) { return kFirstTenant + one.second == readers; });
  HOIST_CHECK(found != tenant_numbers_.end());
  return found->first;
}

void ModelBook::Check() const {
  HOIST_CHECK(named_.size() == copies_.models().size());
  for (const auto& [id, entry] : copies_.models()) {
    const ModelSpec& spec = *entry->model->spec;
    HOIST_CHECK(named_.at({entry->model->owner, spec.name}) == id);
    HOIST_CHECK(entry->content.value_or(ContentOf(spec)) == ContentOf(spec));
    HOIST_CHECK(entry->groups.size() == spec.groups.size());
    uint32_t missing = 0;
    for (const auto& group : spec.groups) missing += IsMissing(*group);
    HOIST_CHECK(entry->numbers.size() + missing == spec.groups.size());
    for (const auto& [name, index] : entry->numbers) {
      HOIST_CHECK(spec.groups.at(index.number())->name == name);
    }
    HOIST_CHECK(missing > 0 ||
                entry->next_place.number() == spec.groups.size());
  }
}

}  // namespace hoistd
