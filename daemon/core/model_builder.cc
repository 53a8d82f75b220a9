#include "daemon/core/model_builder.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "daemon/core/model_name.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

struct Located {
  uint32_t file = 0;
  const SafetensorsTensor* tensor = nullptr;
};
using Tensors = absl::flat_hash_map<absl::string_view, Located>;

// Keeps the shards that the index names, each of which must be there.
absl::Status ApplyIndex(const SafetensorsIndex& index,
                        std::vector<ShardHeader>& shards) {
  std::set<std::string> named;
  for (const auto& [tensor, shard] : index.shard_of) named.insert(shard);
  for (const std::string& shard : named) {
    const bool there =
        std::any_of(shards.begin(), shards.end(),
                    [&](const ShardHeader& s) { return s.name == shard; });
    if (!there) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the index names shard ", Quoted(shard), ", which was not given"));
    }
  }
  std::erase_if(shards,
                [&](const ShardHeader& s) { return !named.contains(s.name); });
  return absl::OkStatus();
}

absl::StatusOr<Tensors> Locate(const std::vector<ShardHeader>& shards,
                               const std::optional<SafetensorsIndex>& index) {
  Tensors located;
  absl::flat_hash_set<absl::string_view> files;
  for (uint32_t file = 0; file < shards.size(); ++file) {
    if (!files.insert(shards[file].name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("file ", Quoted(shards[file].name), " was given twice"));
    }
    for (const SafetensorsTensor& tensor : shards[file].header.tensors) {
      if (!located.emplace(tensor.name, Located{file, &tensor}).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor ", Quoted(tensor.name),
                         " is in two files; give an index, or fewer files"));
      }
    }
  }
  if (located.size() > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("the files hold ", located.size(), " tensors; at most ",
                     kMaxTensors, " are allowed"));
  }
  if (!index.has_value()) return located;
  for (const auto& [tensor, shard] : index->shard_of) {
    const auto found = located.find(tensor);
    if (found == located.end() || shards[found->second.file].name != shard) {
      return absl::InvalidArgumentError(
          absl::StrCat("the index says that ", Quoted(shard), " has tensor ",
                       Quoted(tensor), "; it does not"));
    }
  }
  return located;
}

absl::StatusOr<std::shared_ptr<const Group>> BuildGroup(
    const NamedGroup& named, const Tensors& located) {
  if (absl::Status name = ValidateGroupName(named.name); !name.ok()) {
    return Annotate(name, absl::StrCat("group ", Quoted(named.name),
                                       " (explicit groups have free names)"));
  }
  std::vector<uint64_t> sizes;
  std::vector<Located> sources;
  for (const std::string& name : named.tensors) {
    sources.push_back(located.at(name));
    sizes.push_back(sources.back().tensor->bytes);
  }
  const std::optional<hoist::ImageLayout> layout = hoist::LayOutImage(sizes);
  if (!layout.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("group ", Quoted(named.name), " is larger than ",
                     hoist::kMaxImageBytes, " bytes; use smaller groups"));
  }
  auto group = std::make_shared<Group>();
  group->name = named.name;
  group->image_bytes = layout->image_bytes;
  for (size_t i = 0; i < sources.size(); ++i) {
    const SafetensorsTensor& source = *sources[i].tensor;
    group->tensors.push_back({.name = source.name,
                              .dtype = source.dtype,
                              .shape = source.shape,
                              .strides = {},
                              .offset = layout->offsets[i],
                              .bytes = source.bytes});
    if (source.bytes == 0) continue;
    const SourceRun run = {sources[i].file, source.file_offset,
                           layout->offsets[i], source.bytes};
    SourceRun* last = group->runs.empty() ? nullptr : &group->runs.back();
    if (last != nullptr && last->file == run.file &&
        last->file_offset + last->bytes == run.file_offset &&
        last->image_offset + last->bytes == run.image_offset) {
      last->bytes += run.bytes;
    } else {
      group->runs.push_back(run);
    }
  }
  return group;
}

void HashTensor(const Tensor& tensor, Hasher& hasher) {
  hasher.String(tensor.name)
      .Number(static_cast<uint64_t>(tensor.dtype))
      .Number(tensor.shape.size());
  for (const int64_t d : tensor.shape) hasher.Number(static_cast<uint64_t>(d));
  hasher.Number(tensor.offset).Number(tensor.bytes);
}

Fingerprint FingerprintOf(const ModelSpec& model) {
  Hasher hasher;
  hasher.String("hoist model 1").Number(model.files.size());
  for (const FileIdentity& id : model.identities) {
    hasher.Number(id.device).Number(id.inode).Number(id.size);
    hasher.Number(static_cast<uint64_t>(id.mtime_ns));
    hasher.Number(static_cast<uint64_t>(id.ctime_ns));
    hasher.Bytes(std::as_bytes(std::span(id.header_hash)));
  }
  hasher.Number(model.groups.size());
  for (const auto& group : model.groups) {
    hasher.String(group->name).Number(group->tensors.size());
    for (const Tensor& tensor : group->tensors) HashTensor(tensor, hasher);
  }
  return hasher.Finish();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ModelSpec>> BuildModel(
    BuildModelArgs args) {
  HOIST_RETURN_IF_ERROR(ValidateModelName(args.name));
  if (args.index.has_value()) {
    HOIST_RETURN_IF_ERROR(ApplyIndex(*args.index, args.shards));
  }
  // By name, so that the caller's order does not matter.
  std::sort(args.shards.begin(), args.shards.end(),
            [](const ShardHeader& a, const ShardHeader& b) {
              return a.name < b.name;
            });
  HOIST_ASSIGN_OR_RETURN(const Tensors located,
                         Locate(args.shards, args.index));
  if (located.empty()) {
    return absl::InvalidArgumentError("the files hold no tensors");
  }
  std::vector<std::string> names;
  for (const ShardHeader& shard : args.shards) {
    for (const SafetensorsTensor& tensor : shard.header.tensors) {
      names.push_back(tensor.name);
    }
  }
  HOIST_ASSIGN_OR_RETURN(const std::vector<NamedGroup> groups,
                         GroupTensors(args.grouping, names));
  auto model = std::make_shared<ModelSpec>();
  model->name = args.name;
  for (const ShardHeader& shard : args.shards) {
    model->files.push_back(shard.name);
    model->identities.push_back(shard.identity);
  }
  for (const NamedGroup& named : groups) {
    HOIST_ASSIGN_OR_RETURN(auto group, BuildGroup(named, located));
    if (__builtin_add_overflow(model->image_bytes, group->image_bytes,
                               &model->image_bytes)) {
      return absl::ResourceExhaustedError("the files are too large");
    }
    model->tensors += static_cast<uint32_t>(group->tensors.size());
    model->groups.push_back(std::move(group));
  }
  model->fingerprint = FingerprintOf(*model);
  return model;
}

}  // namespace hoistd
