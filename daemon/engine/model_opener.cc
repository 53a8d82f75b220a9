#include "daemon/engine/model_opener.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "daemon/core/model_builder.h"
#include "daemon/core/safetensors.h"
#include "daemon/core/safetensors_index.h"

namespace hoistd {
namespace {

absl::StatusOr<ShardHeader> ReadHeader(const SourceFile& file) {
  const uint64_t prefix =
      std::min<uint64_t>(file.bytes(), kSafetensorsLengthBytes);
  HOIST_ASSIGN_OR_RETURN(const std::string first, file.ReadPrefix(0, prefix));
  HOIST_ASSIGN_OR_RETURN(const uint64_t bytes,
                         SafetensorsHeaderBytes(first, file.bytes()));
  HOIST_ASSIGN_OR_RETURN(const std::string json,
                         file.ReadPrefix(kSafetensorsLengthBytes, bytes));
  ShardHeader shard;
  shard.name = file.name();
  shard.identity = file.identity();
  shard.identity.header_hash =
      Xxh3(std::as_bytes(std::span<const char>(json.data(), json.size())));
  HOIST_ASSIGN_OR_RETURN(shard.header,
                         ParseSafetensorsHeader(json, file.bytes()));
  return shard;
}

absl::StatusOr<SafetensorsIndex> ReadIndex(OpenFile index) {
  const std::string name = index.name;
  // Read once and small: nothing to gain from O_DIRECT.
  const SourceFileOptions buffered = {.mode = ReadMode::kBuffered};
  HOIST_ASSIGN_OR_RETURN(const SourceFile file,
                         SourceFile::Open(std::move(index.fd), name, buffered));
  if (file.bytes() > kMaxSafetensorsIndexBytes) {
    return absl::InvalidArgumentError("the index is larger than 100 MB");
  }
  HOIST_ASSIGN_OR_RETURN(const std::string json,
                         file.ReadPrefix(0, file.bytes()));
  return ParseSafetensorsIndex(json);
}

}  // namespace

absl::StatusOr<OpenedModel> OpenModel(RegisterModelArgs args,
                                      const SourceFileOptions& options) {
  BuildModelArgs build;
  build.name = std::move(args.name);
  build.joined = std::move(args.joined);
  build.grouping = std::move(args.grouping);
  if (args.index.has_value()) {
    const std::string name = args.index->name;
    absl::StatusOr<SafetensorsIndex> index = ReadIndex(*std::move(args.index));
    if (!index.ok()) return Annotate(index.status(), name);
    build.index = *std::move(index);
  }
  std::map<std::string, SourceFile> opened;
  for (OpenFile& shard : args.shards) {
    const std::string name = shard.name;
    absl::StatusOr<SourceFile> file =
        SourceFile::Open(std::move(shard.fd), name, options);
    if (!file.ok()) return Annotate(file.status(), name);
    absl::StatusOr<ShardHeader> header = ReadHeader(*file);
    if (!header.ok()) return Annotate(header.status(), name);
    build.shards.push_back(*std::move(header));
    if (!opened.emplace(name, *std::move(file)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("file ", Quoted(name), " was given twice"));
    }
  }
  OpenedModel model;
  HOIST_ASSIGN_OR_RETURN(model.spec, BuildModel(std::move(build)));
  auto files = std::make_shared<SourceFiles>();
  for (const std::string& name : model.spec->files) {
    files->push_back(std::move(opened.at(name)));
  }
  model.files = std::move(files);
  return model;
}

}  // namespace hoistd
