#include "daemon/core/copy_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "daemon/model/published_group.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {

uint64_t SpaceOf(const Group& group) {
  return std::max(group.image_bytes, hoist::kImageAlignment);
}

bool GroupEntry::unsaved() const {
  const auto host = copies.find(kHost);
  return !on_disk() && host != copies.end() && host->second.usable();
}

std::optional<GroupIndex> ModelEntry::Find(absl::string_view name) const {
  const auto found = numbers.find(name);
  if (found == numbers.end()) return std::nullopt;
  return found->second;
}

uint32_t ModelEntry::missing() const {
  return static_cast<uint32_t>(std::count_if(
      groups.begin(), groups.end(),
      [](const GroupEntry& group) { return IsMissing(*group.group); }));
}

ModelEntry& CopyTable::AddModel(ModelPtr model) {
  auto entry = std::make_unique<ModelEntry>();
  entry->model = std::move(model);
  const ModelId id = entry->model->id;
  return *(models_[id] = std::move(entry));
}

void CopyTable::RemoveModel(ModelId id) {
  for (GroupEntry& group : models_.at(id)->groups) {
    SetSpilled(group, std::nullopt);
  }
  models_.erase(id);
}

absl::StatusOr<std::shared_ptr<const ModelSpec>> CopyTable::SpecOf(
    ModelId id) const {
  const ModelEntry* entry = FindModel(id);
  if (entry == nullptr) return absl::NotFoundError("no such model");
  return entry->model->spec;
}

uint64_t CopyTable::BytesOf(GroupKey key) const {
  const GroupEntry* group = FindGroup(key);
  return group == nullptr ? 0 : group->group->image_bytes;
}

std::string CopyTable::NameOf(GroupKey key) const {
  const GroupEntry* group = FindGroup(key);
  if (group == nullptr) return "?";
  return absl::StrCat(FindModel(key.model)->model->spec->name, "/",
                      group->group->name);
}

void CopyTable::SetSpilled(GroupEntry& group, std::optional<SpillId> spilled) {
  const uint64_t space = hoistd::SpaceOf(*group.group);
  if (group.spilled.has_value()) spilled_.erase(spilled_.find(space));
  group.spilled = spilled;
  if (group.spilled.has_value()) spilled_.insert(space);
}

// Groups of files are read again; the kernel may cache them.
bool CopyTable::PageOut(const CopyRef& ref, absl::Time now) {
  const GroupEntry& group = *FindGroup(ref.key);
  return ref.place == kHost && group.spilled.has_value() && At(ref).serves() &&
         pageable_.Place(ref.key, hoistd::SpaceOf(*group.group), now);
}

const ModelEntry* CopyTable::FindModel(ModelId id) const {
  const auto found = models_.find(id);
  return found == models_.end() ? nullptr : found->second.get();
}

ModelEntry* CopyTable::FindModel(ModelId id) {
  return const_cast<ModelEntry*>(std::as_const(*this).FindModel(id));
}

const GroupEntry* CopyTable::FindGroup(GroupKey key) const {
  const ModelEntry* model = FindModel(key.model);
  if (model == nullptr || key.group.number() >= model->groups.size()) {
    return nullptr;
  }
  return &model->groups[key.group.number()];
}

GroupEntry* CopyTable::FindGroup(GroupKey key) {
  return const_cast<GroupEntry*>(std::as_const(*this).FindGroup(key));
}

uint64_t CopyTable::SpaceOf(GroupKey key) const {
  return hoistd::SpaceOf(*FindGroup(key)->group);
}

Copy& CopyTable::At(const CopyRef& ref) {
  GroupEntry* group = FindGroup(ref.key);
  HOIST_CHECK(group != nullptr);
  return group->copies[ref.place];
}

Copy* CopyTable::Find(const CopyRef& ref) {
  GroupEntry* group = FindGroup(ref.key);
  if (group == nullptr) return nullptr;
  const auto found = group->copies.find(ref.place);
  return found == group->copies.end() ? nullptr : &found->second;
}

void CopyTable::Apply(Copy& copy, ResidencyEvent event) {
  const std::optional<Residency> next = NextState(copy.state, event);
  HOIST_CHECK(next.has_value());
  copy.state = *next;
  if (copy.state != Residency::kFilling) copy.filling.reset();
}

void CopyTable::Fill(Copy& copy, TransferId by) {
  Apply(copy, ResidencyEvent::kFillStart);
  copy.filling = by;
}

OwnerId CopyTable::NewOwner(const CopyRef& ref) {
  const OwnerId owner = NewOwner();
  SetOwner(owner, ref);
  return owner;
}

OwnerId CopyTable::NewOwner() { return OwnerId(++last_owner_); }

void CopyTable::SetOwner(OwnerId owner, const CopyRef& ref) {
  owners_[owner] = ref;
}

void CopyTable::DropOwner(OwnerId owner) { owners_.erase(owner); }

const CopyRef* CopyTable::RefOf(OwnerId owner) const {
  const auto found = owners_.find(owner);
  return found == owners_.end() ? nullptr : &found->second;
}

}  // namespace hoistd
