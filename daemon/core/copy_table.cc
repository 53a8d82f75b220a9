#include "daemon/core/copy_table.h"

#include <algorithm>
#include <utility>

#include "daemon/base/check.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {

uint64_t SpaceOf(const Group& group) {
  return std::max(group.image_bytes, hoist::kImageAlignment);
}

bool GroupEntry::unsaved() const {
  const auto host = copies.find(kHost);
  return !on_disk() && host != copies.end() && host->second.usable();
}

ModelEntry& CopyTable::AddModel(ModelPtr model) {
  auto entry = std::make_unique<ModelEntry>();
  entry->model = std::move(model);
  const ModelId id = entry->model->id;
  return *(models_[id] = std::move(entry));
}

void CopyTable::RemoveModel(ModelId id) { models_.erase(id); }

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
