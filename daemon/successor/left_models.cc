#include "daemon/successor/left_models.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/model/file_header.h"

namespace hoistd {
namespace {

using OwnedModel = ModelRoll::Models::key_type;
// The places of each model's groups.
using Places = std::map<OwnedModel, std::set<uint32_t>>;
// By owner, model and index: the order of restoring.
using Groups = std::map<std::tuple<User, std::string, GroupIndex, std::string>,
                        RestoredGroup>;

RestoredGroup& GroupOf(const SpillMeta& meta, Groups& all) {
  RestoredGroup& group =
      all[{meta.owner, meta.model, meta.group_index, meta.group.name}];
  if (group.group == nullptr) {
    group.model = meta.model;
    group.owner = meta.owner;
    group.readers = meta.readers;
    group.group = std::make_shared<Group>(meta.group);
    group.content = meta.group_content;
  }
  return group;
}

// A forgotten model's group of this name may claim another's place: it comes
// last, at the end.
std::vector<RestoredGroup> InPlaces(Groups all, Places& places) {
  std::vector<RestoredGroup> placed;
  std::vector<RestoredGroup> displaced;
  for (auto& [at, group] : all) {
    group.index = std::get<GroupIndex>(at);
    std::set<uint32_t>& taken = places[{group.owner, group.model}];
    const bool is_free = group.index.number() < kMaxTensors &&
                         taken.insert(group.index.number()).second;
    (is_free ? placed : displaced).push_back(std::move(group));
  }
  for (RestoredGroup& group : displaced) {
    std::set<uint32_t>& taken = places[{group.owner, group.model}];
    group.index = GroupIndex(taken.empty() ? 0 : *taken.rbegin() + 1);
    taken.insert(group.index.number());
    placed.push_back(std::move(group));
  }
  return placed;
}

// Groups published last may leave no image that shows their place.
void CountMissing(const Places& places, const ModelRoll::Models& rolled,
                  const std::map<ModelId, ModelRecord>& kept,
                  LeftModels& left) {
  for (const auto& [model, taken] : places) {
    left.had[model] = *taken.rbegin() + 1;
  }
  for (const auto& [id, model] : kept) {
    const auto had = left.had.find({model.owner, model.name});
    if (had == left.had.end() || model.missing_groups.empty()) continue;
    had->second = std::max(had->second, model.missing_groups.back() + 1);
  }
  for (const auto& [model, groups] : rolled) {
    const auto had = left.had.find(model);
    if (had != left.had.end()) {
      had->second = std::max(had->second, groups);
      continue;
    }
    left.gone.push_back(model);
    left.notes.push_back(
        absl::StrCat("model ", model.second, " of ", ToString(model.first),
                     " is gone with all of its ", groups,
                     " groups, which no disk had; publish it again"));
  }
  for (const auto& [model, had] : left.had) {
    const size_t there = places.at(model).size();
    if (there == had) continue;
    left.notes.push_back(
        absl::StrCat("model ", model.second, " of ", ToString(model.first),
                     " is back without ", had - there, " of its ", had,
                     " groups; publish it again"));
  }
}

std::map<OwnedModel, ModelId> KnownIds(
    const Places& places, const ModelRoll::Models& had,
    const std::map<ModelId, ModelRecord>& kept) {
  std::map<OwnedModel, ModelId> ids;
  for (const auto& [id, record] : kept) {
    const OwnedModel model = {record.owner, record.name};
    const auto there = places.find(model);
    if (record.spec != 0 || there == places.end()) continue;
    const auto lacked = std::count_if(
        record.missing_groups.begin(), record.missing_groups.end(),
        [&](uint32_t place) { return !there->second.contains(place); });
    if (had.at(model) == there->second.size() + static_cast<size_t>(lacked)) {
      ids[model] = id;
    }
  }
  return ids;
}

}  // namespace

LeftModels FindLeft(std::span<const FoundImage> images,
                    std::span<const SpillRecord> spilled,
                    const ModelRoll::Models& rolled,
                    const std::map<ModelId, ModelRecord>& kept) {
  Groups all;
  for (const FoundImage& image : images) {
    GroupOf(image.meta, all).host_offset = image.host_offset;
  }
  for (const SpillRecord& record : spilled) {
    RestoredGroup& group = GroupOf(*record.meta, all);
    if (group.content == record.meta->group_content) group.spill = record.id;
  }
  LeftModels left;
  Places places;
  left.groups = InPlaces(std::move(all), places);
  CountMissing(places, rolled, kept, left);
  const std::map<OwnedModel, ModelId> ids = KnownIds(places, left.had, kept);
  for (RestoredGroup& group : left.groups) {
    const auto id = ids.find({group.owner, group.model});
    if (id != ids.end()) group.model_id = id->second;
  }
  return left;
}

}  // namespace hoistd
