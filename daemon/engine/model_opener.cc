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

// The headers of one model's files, as far as they are read.
class HeaderReader {
 public:
  HeaderReader(Uid owner, OpenFiles& open) : owner_(owner), open_(open) {}

  absl::StatusOr<ShardHeader> Read(const SourceFile& file);

 private:
  const Uid owner_;
  OpenFiles& open_;
  uint64_t bytes_ = 0;
  uint64_t tensors_ = 0;
  std::optional<OpenFiles::Turn> turn_;  // Once they are large.
};

absl::StatusOr<ShardHeader> HeaderReader::Read(const SourceFile& file) {
  const uint64_t prefix =
      std::min<uint64_t>(file.bytes(), kSafetensorsLengthBytes);
  HOIST_ASSIGN_OR_RETURN(const std::string first, file.ReadPrefix(0, prefix));
  HOIST_ASSIGN_OR_RETURN(const uint64_t bytes,
                         SafetensorsHeaderBytes(first, file.bytes()));
  bytes_ += bytes;
  if (bytes_ > kMaxHeaderBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the headers of the model's files take more than ", kMaxHeaderBytes,
        " bytes; register them as several models"));
  }
  if (bytes_ > kSmallHeaderBytes && !turn_.has_value()) {
    turn_.emplace(open_.TakeTurn(owner_));
  }
  HOIST_ASSIGN_OR_RETURN(const std::string json,
                         file.ReadPrefix(kSafetensorsLengthBytes, bytes));
  ShardHeader shard;
  shard.name = file.name();
  shard.identity = file.identity();
  shard.identity.header_hash =
      Xxh3(std::as_bytes(std::span<const char>(json.data(), json.size())));
  HOIST_ASSIGN_OR_RETURN(shard.header,
                         ParseSafetensorsHeader(json, file.bytes()));
  tensors_ += shard.header.tensors.size();
  if (tensors_ > kMaxTensors) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the model's files hold more than ", kMaxTensors,
                     " tensors; register them as several models"));
  }
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

absl::StatusOr<OpenedModel> OpenModel(Uid owner, RegisterModelArgs args,
                                      const SourceFileOptions& options,
                                      OpenFiles& open) {
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
  HeaderReader headers(owner, open);
  std::map<std::string, std::shared_ptr<const SourceFile>> opened;
  for (OpenFile& shard : args.shards) {
    const std::string name = shard.name;
    absl::StatusOr<SourceFile> file =
        SourceFile::Open(std::move(shard.fd), name, options);
    if (!file.ok()) return Annotate(file.status(), name);
    absl::StatusOr<ShardHeader> header = headers.Read(*file);
    if (!header.ok()) return Annotate(header.status(), name);
    build.shards.push_back(*std::move(header));
    if (!opened.emplace(name, open.Share(owner, *std::move(file))).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("file ", Quoted(name), " was given twice"));
    }
  }
  OpenedModel model;
  HOIST_ASSIGN_OR_RETURN(model.spec, BuildModel(std::move(build)));
  auto files = std::make_shared<SourceFiles>();
  for (const std::string& name : model.spec->files) {
    files->push_back(opened.at(name));
  }
  model.files = std::move(files);
  return model;
}

}  // namespace hoistd
