#include "daemon/model/model_builder.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/sha256.h"
#include "daemon/base/status.h"
#include "daemon/model/model_name.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

using Tensors = absl::flat_hash_map<absl::string_view, const SourceTensor*>;

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

// A file that says which part of a set it is needs the others: what it holds
// is no model.
absl::Status CheckSets(const std::vector<ShardHeader>& shards) {
  std::set<uint32_t> parts;
  uint32_t wanted = 0;
  for (const ShardHeader& shard : shards) {
    const auto& [tensors, part, count] = shard.header;
    if (count == 0) continue;
    if (!parts.insert(part).second || (wanted != 0 && wanted != count)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "file ", Quoted(shard.name), " is part ", part + 1, " of ", count,
          ", and another file is of another set: name one set's files"));
    }
    wanted = count;
  }
  if (parts.size() == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the files are ", parts.size(), " of a set's ", wanted,
                   " parts; name all of them, or a folder with no other"));
}

// The files' tensors, in file order, and each file's sheet.
absl::StatusOr<std::vector<SourceTensor>> Locate(
    const std::vector<ShardHeader>& shards,
    const std::optional<SafetensorsIndex>& index, Sheets& sheets) {
  std::vector<SourceTensor> located;
  absl::flat_hash_map<absl::string_view, uint32_t> file_of;
  absl::flat_hash_set<absl::string_view> files;
  for (uint32_t file = 0; file < shards.size(); ++file) {
    if (!files.insert(shards[file].name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("file ", Quoted(shards[file].name), " was given twice"));
    }
    std::vector<uint64_t> offsets;
    std::optional<Sheet> sheet =
        LayOutSheet(shards[file].header.tensors, offsets);
    if (!sheet.has_value()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("file ", Quoted(shards[file].name), " is larger than ",
                       hoist::kMaxImageBytes, " bytes; split it"));
    }
    sheets.push_back(std::make_shared<const Sheet>(*std::move(sheet)));
    const uint64_t* offset = offsets.data();
    for (const FileTensor& tensor : shards[file].header.tensors) {
      if (const auto [other, fresh] = file_of.emplace(tensor.name, file);
          !fresh) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor ", Quoted(tensor.name), " is in two files, ",
            Quoted(shards[other->second].name), " and ",
            Quoted(shards[file].name),
            "; name one of them, if they are variants of one model, or give "
            "an index"));
      }
      SourceTensor source = {tensor.name, tensor.dtype, tensor.shape,
                             tensor.bytes, tensor.block_type};
      AppendRun({{file, *offset++, tensor.bytes}, 0}, source.runs);
      located.push_back(std::move(source));
    }
  }
  if (located.size() > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("the files hold ", located.size(), " tensors; at most ",
                     kMaxTensors, " are allowed"));
  }
  if (!index.has_value()) return located;
  for (const auto& [tensor, shard] : index->shard_of) {
    const auto found = file_of.find(tensor);
    if (found == file_of.end() || shards[found->second].name != shard) {
      return absl::InvalidArgumentError(
          absl::StrCat("the index says that ", Quoted(shard), " has tensor ",
                       Quoted(tensor), "; it does not"));
    }
  }
  return located;
}

absl::StatusOr<std::shared_ptr<const Group>> BuildGroup(
    const NamedGroup& named, const Tensors& tensors) {
  if (absl::Status name = ValidateGroupName(named.name); !name.ok()) {
    return Annotate(name, absl::StrCat("group ", Quoted(named.name),
                                       " (explicit groups have free names)"));
  }
  std::vector<uint64_t> sizes;
  for (const std::string& name : named.tensors) {
    sizes.push_back(tensors.at(name)->bytes);
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
  group->tensors.reserve(named.tensors.size());
  for (size_t i = 0; i < named.tensors.size(); ++i) {
    const SourceTensor& source = *tensors.at(named.tensors[i]);
    group->tensors.push_back({.name = source.name,
                              .dtype = source.dtype,
                              .shape = source.shape,
                              .strides = {},
                              .offset = layout->offsets[i],
                              .bytes = source.bytes,
                              .block_type = source.block_type});
    for (SourceRun run : source.runs) {
      run.image_offset += layout->offsets[i];
      AppendRun(run, group->runs);
    }
    group->reaches.insert(group->reaches.end(), source.reaches.begin(),
                          source.reaches.end());
  }
  group->runs.shrink_to_fit();
  group->reaches.shrink_to_fit();
  return group;
}

void HashTensor(const Tensor& tensor, Sha256& hasher) {
  hasher.String(tensor.name)
      .Number(static_cast<uint64_t>(tensor.dtype))
      .Number(tensor.shape.size());
  for (const int64_t d : tensor.shape) hasher.Number(static_cast<uint64_t>(d));
  hasher.Number(tensor.offset).Number(tensor.bytes);
}

// A file's own tensors are told apart by their names; a joined one could be
// made of other parts.
void HashParts(const SourceTensor& joined, Sha256& hasher) {
  hasher.String(joined.name).Number(joined.runs.size());
  for (const auto& [from, image_offset] : joined.runs) {
    hasher.Number(from.file).Number(from.offset).Number(from.bytes);
  }
}

Content FileContent(const ModelSpec& model,
                    const std::vector<SourceTensor>& tensors) {
  Sha256 hasher;
  hasher.String("hoist model 2").Number(model.files.size());
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
  for (const SourceTensor& tensor : tensors) {
    if (tensor.joined) HashParts(tensor, hasher);
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
  HOIST_RETURN_IF_ERROR(CheckSets(args.shards));
  // By name, so that the caller's order does not matter.
  std::sort(args.shards.begin(), args.shards.end(),
            [](const ShardHeader& a, const ShardHeader& b) {
              return a.name < b.name;
            });
  auto model = std::make_shared<ModelSpec>();
  HOIST_ASSIGN_OR_RETURN(std::vector<SourceTensor> located,
                         Locate(args.shards, args.index, model->sheets));
  if (located.empty()) {
    return absl::InvalidArgumentError("the files hold no tensors");
  }
  HOIST_ASSIGN_OR_RETURN(const std::vector<SourceTensor> sources,
                         JoinTensors(std::move(located), args.joined));
  std::vector<std::string> names;
  Tensors tensors;
  for (const SourceTensor& source : sources) {
    names.push_back(source.name);
    tensors[source.name] = &source;
  }
  HOIST_ASSIGN_OR_RETURN(const std::vector<NamedGroup> groups,
                         GroupTensors(args.grouping, names));
  model->name = args.name;
  for (const auto& sheet : model->sheets) {
    model->book_bytes += BookBytesOf(*sheet);
  }
  for (const ShardHeader& shard : args.shards) {
    model->files.push_back(shard.name);
    model->identities.push_back(shard.identity);
  }
  model->groups.reserve(groups.size());
  for (const NamedGroup& named : groups) {
    HOIST_ASSIGN_OR_RETURN(auto group, BuildGroup(named, tensors));
    if (__builtin_add_overflow(model->image_bytes, group->image_bytes,
                               &model->image_bytes)) {
      return absl::ResourceExhaustedError("the files are too large");
    }
    model->tensors += static_cast<uint32_t>(group->tensors.size());
    model->book_bytes += BookBytesOf(*group);
    model->groups.push_back(std::move(group));
  }
  model->content = FileContent(*model, sources);
  return model;
}

}  // namespace hoistd
