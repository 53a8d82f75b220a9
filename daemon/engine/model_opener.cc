#include "daemon/engine/model_opener.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "daemon/io_helper/file_calls.h"
#include "daemon/io_helper/parked_file.h"
#include "daemon/model/gguf.h"
#include "daemon/model/model_builder.h"
#include "daemon/model/safetensors.h"
#include "daemon/model/safetensors_index.h"

namespace hoistd {
namespace {

absl::StatusOr<SourceFile> Open(OpenFile file, const OpenOptions& options) {
  if (options.helper == nullptr || !IsParked(file.fd.get())) {
    return SourceFile::Open(std::move(file.fd), file.name, options.files);
  }
  return OpenByHelper(*options.helper, options.owner, std::move(file.fd),
                      file.name, options.files);
}

absl::StatusOr<std::string> ReadPrefix(const SourceFile& file, uint64_t offset,
                                       uint64_t bytes,
                                       const OpenOptions& options) {
  if (!file.parked_for().has_value()) return file.ReadPrefix(offset, bytes);
  return ReadPrefixByHelper(*options.helper, file, offset, bytes);
}

// The headers of one model's files read so far.
class HeaderReader {
 public:
  HeaderReader(const OpenOptions& options, OpenFiles& open)
      : options_(options), open_(open) {}

  absl::StatusOr<ShardHeader> Read(const SourceFile& file);

 private:
  // A file's header, and the bytes that hold it.
  struct Parsed {
    FileHeader header;
    std::string bytes;
  };
  absl::StatusOr<Parsed> ReadSafetensors(const SourceFile& file,
                                         absl::string_view first);
  absl::StatusOr<Parsed> ReadGguf(const SourceFile& file);
  // Before the next header, or as much of it as is known, is read.
  absl::Status Admit(uint64_t bytes);

  const OpenOptions options_;
  OpenFiles& open_;
  uint64_t bytes_ = 0;
  uint64_t tensors_ = 0;
  std::optional<OpenFiles::Turn> turn_;  // Set once they are large.
};

absl::Status HeaderReader::Admit(uint64_t bytes) {
  if (bytes_ + bytes > kMaxHeaderBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the headers of the model's files take more than ", kMaxHeaderBytes,
        " bytes; register them as several models"));
  }
  if (bytes_ + bytes > kSmallHeaderBytes && !turn_.has_value()) {
    turn_.emplace(open_.TakeTurn(options_.owner));
  }
  return absl::OkStatus();
}

absl::StatusOr<HeaderReader::Parsed> HeaderReader::ReadSafetensors(
    const SourceFile& file, absl::string_view first) {
  HOIST_ASSIGN_OR_RETURN(const uint64_t bytes,
                         SafetensorsHeaderBytes(first, file.bytes()));
  HOIST_RETURN_IF_ERROR(Admit(bytes));
  Parsed parsed;
  HOIST_ASSIGN_OR_RETURN(
      parsed.bytes, ReadPrefix(file, kSafetensorsLengthBytes, bytes, options_));
  HOIST_ASSIGN_OR_RETURN(parsed.header,
                         ParseSafetensorsHeader(parsed.bytes, file.bytes()));
  return parsed;
}

// A GGUF header does not say how long it is: a longer beginning is read until
// it holds all of it.
absl::StatusOr<HeaderReader::Parsed> HeaderReader::ReadGguf(
    const SourceFile& file) {
  constexpr uint64_t kFirstBytes = uint64_t{256} << 10;
  for (uint64_t bytes = kFirstBytes;;) {
    bytes = std::min({bytes, file.bytes(), kMaxGgufHeaderBytes});
    Parsed parsed;
    HOIST_ASSIGN_OR_RETURN(parsed.bytes, ReadPrefix(file, 0, bytes, options_));
    HOIST_ASSIGN_OR_RETURN(GgufHeader gguf,
                           ParseGgufHeader(parsed.bytes, file.bytes()));
    HOIST_RETURN_IF_ERROR(Admit(gguf.bytes));
    if (gguf.bytes <= bytes) {
      parsed.header = std::move(gguf.header);
      parsed.bytes.resize(gguf.bytes);
      return parsed;
    }
    bytes = std::max(gguf.bytes, 2 * bytes);
  }
}

absl::StatusOr<ShardHeader> HeaderReader::Read(const SourceFile& file) {
  const uint64_t prefix =
      std::min<uint64_t>(file.bytes(), kSafetensorsLengthBytes);
  HOIST_ASSIGN_OR_RETURN(const std::string first,
                         ReadPrefix(file, 0, prefix, options_));
  HOIST_ASSIGN_OR_RETURN(Parsed parsed, IsGguf(first)
                                            ? ReadGguf(file)
                                            : ReadSafetensors(file, first));
  bytes_ += parsed.bytes.size();
  ShardHeader shard;
  shard.name = file.name();
  shard.identity = file.identity();
  shard.identity.header_hash =
      Xxh3(std::as_bytes(std::span<const char>(parsed.bytes)));
  shard.header = std::move(parsed.header);
  tensors_ += shard.header.tensors.size();
  if (tensors_ > kMaxTensors) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the model's files hold more than ", kMaxTensors,
                     " tensors; register them as several models"));
  }
  return shard;
}

absl::StatusOr<SafetensorsIndex> ReadIndex(OpenFile index,
                                           OpenOptions options) {
  // Small and read once: O_DIRECT gains nothing.
  options.files.mode = ReadMode::kBuffered;
  HOIST_ASSIGN_OR_RETURN(const SourceFile file,
                         Open(std::move(index), options));
  if (file.bytes() > kMaxSafetensorsIndexBytes) {
    return absl::InvalidArgumentError("the index is larger than 100 MB");
  }
  HOIST_ASSIGN_OR_RETURN(const std::string json,
                         ReadPrefix(file, 0, file.bytes(), options));
  return ParseSafetensorsIndex(json);
}

}  // namespace

bool HasParked(const RegisterModelArgs& args) {
  const auto parked = [](const OpenFile& file) {
    return IsParked(file.fd.get());
  };
  return std::any_of(args.shards.begin(), args.shards.end(), parked) ||
         (args.index.has_value() && parked(*args.index));
}

absl::StatusOr<OpenedModel> OpenModel(RegisterModelArgs args,
                                      const OpenOptions& options,
                                      OpenFiles& open) {
  BuildModelArgs build;
  build.name = std::move(args.name);
  build.joined = std::move(args.joined);
  build.grouping = std::move(args.grouping);
  if (args.index.has_value()) {
    const std::string name = args.index->name;
    absl::StatusOr<SafetensorsIndex> index =
        ReadIndex(*std::move(args.index), options);
    if (!index.ok()) return Annotate(index.status(), name);
    build.index = *std::move(index);
  }
  HeaderReader headers(options, open);
  std::map<std::string, std::shared_ptr<const SourceFile>> opened;
  for (OpenFile& shard : args.shards) {
    const std::string name = shard.name;
    absl::StatusOr<SourceFile> file = Open(std::move(shard), options);
    if (!file.ok()) return Annotate(file.status(), name);
    absl::StatusOr<ShardHeader> header = headers.Read(*file);
    if (!header.ok()) return Annotate(header.status(), name);
    build.shards.push_back(*std::move(header));
    if (!opened.emplace(name, open.Share(options.owner, *std::move(file)))
             .second) {
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
