#include "tests/fuzz/model_checks.h"

#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "daemon/convert/types_convert.h"
#include "daemon/model/model_builder.h"
#include "daemon/model/published_group.h"
#include "hoist/shared/image_layout.h"
#include "tests/fuzz/fuzz.h"

namespace hoistd::fuzz {
namespace {

// From the first byte of the first element to the last of the last, counted
// with numbers that cannot overflow.
void RequireWithin(const Tensor& tensor) {
  __extension__ using Wide = unsigned __int128;
  FUZZ_REQUIRE(tensor.strides.empty() ||
               tensor.strides.size() == tensor.shape.size());
  if (tensor.strides.empty()) {
    const auto bytes = hoist::ContiguousBytes(tensor.dtype, tensor.shape);
    FUZZ_REQUIRE(bytes.has_value() && *bytes <= tensor.bytes);
    return;
  }
  Wide last = 0;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    FUZZ_REQUIRE(tensor.shape[i] >= 0 && tensor.strides[i] >= 0);
    if (tensor.shape[i] == 0) return;  // It has no elements.
    const auto steps = static_cast<uint64_t>(tensor.shape[i] - 1);
    const Wide most = Wide{1} << 100;
    last += Wide{steps} * static_cast<uint64_t>(tensor.strides[i]);
    FUZZ_REQUIRE(last < most);
  }
  const Wide bits =
      (last + 1) * static_cast<uint64_t>(hoist::BitsOf(tensor.dtype));
  FUZZ_REQUIRE((bits + 7) / 8 <= Wide{tensor.bytes});
}

}  // namespace

void RequireSoundTensors(const FileHeader& header, uint64_t data_begin,
                         uint64_t file_bytes) {
  std::set<std::string> names;
  uint64_t end = data_begin;
  for (const FileTensor& tensor : header.tensors) {
    FUZZ_REQUIRE(names.insert(tensor.name).second);
    FUZZ_REQUIRE(tensor.name.find('\0') == std::string::npos);
    FUZZ_REQUIRE(tensor.shape.size() <= kMaxDimensions);
    FUZZ_REQUIRE(tensor.file_offset >= end);
    FUZZ_REQUIRE(hoist::ContiguousBytes(tensor.dtype, tensor.shape) ==
                 std::optional<uint64_t>(tensor.bytes));
    end = tensor.file_offset + tensor.bytes;
    FUZZ_REQUIRE(end >= tensor.file_offset && end <= file_bytes);
  }
}

void RequireSoundHeader(const FileHeader& header, uint64_t data_begin,
                        uint64_t file_bytes) {
  RequireSoundTensors(header, data_begin, file_bytes);
  uint64_t end = data_begin;
  for (const FileTensor& tensor : header.tensors) {
    FUZZ_REQUIRE(tensor.file_offset == end);
    end = tensor.file_offset + tensor.bytes;
  }
  FUZZ_REQUIRE(end == file_bytes);
}

void RequireSoundModel(const ModelSpec& model, uint64_t file_bytes) {
  std::set<std::string> tensors;
  std::set<std::string> groups;
  for (const auto& group : model.groups) {
    FUZZ_REQUIRE(!group->name.empty() && groups.insert(group->name).second);
    FUZZ_REQUIRE(group->image_bytes <= hoist::kMaxImageBytes);
    uint64_t end = 0;
    for (const Tensor& tensor : group->tensors) {
      FUZZ_REQUIRE(tensors.insert(tensor.name).second);
      FUZZ_REQUIRE(tensor.offset % hoist::kTensorAlignment == 0);
      FUZZ_REQUIRE(tensor.offset >= end);
      end = tensor.offset + tensor.bytes;
      FUZZ_REQUIRE(end >= tensor.offset && end <= group->image_bytes);
      FUZZ_REQUIRE(hoist::ContiguousBytes(tensor.dtype, tensor.shape) ==
                   std::optional<uint64_t>(tensor.bytes));
    }
    uint64_t image_end = 0;
    for (const SourceRun& run : group->runs) {
      FUZZ_REQUIRE(run.from.file < model.sheets.size());
      FUZZ_REQUIRE(run.from.bytes > 0 && run.image_offset >= image_end);
      image_end = run.image_end();
      FUZZ_REQUIRE(image_end <= group->image_bytes);
      uint64_t read = 0;
      for (const Sheet::Run& at : RunsOf(model.sheets, run.from)) {
        FUZZ_REQUIRE(at.file_offset <= file_bytes &&
                     at.bytes <= file_bytes - at.file_offset);
        read += at.bytes;
      }
      FUZZ_REQUIRE(read > 0 && read <= run.from.bytes);
    }
  }
  FUZZ_REQUIRE(tensors.size() == model.tensors);
}

void RequireName(std::string_view name, size_t max_bytes) {
  FUZZ_REQUIRE(!name.empty() && name.size() <= max_bytes);
  FUZZ_REQUIRE(name.find('\0') == std::string_view::npos);
}

void RequireSoundRegister(const RegisterModelArgs& args) {
  RequireName(args.name, kMaxModelNameBytes);
  std::set<std::string> files;
  for (const OpenFile& file : args.shards) {
    RequireName(file.name, 255);
    FUZZ_REQUIRE(file.name.find('/') == std::string::npos);
    FUZZ_REQUIRE(file.name != "." && file.name != "..");
    FUZZ_REQUIRE(file.fd.valid() && files.insert(file.name).second);
  }
  for (const JoinedTensor& tensor : args.joined) {
    RequireName(tensor.name, kMaxTensorNameBytes);
    FUZZ_REQUIRE(tensor.shape.size() <= kMaxRank);
  }
  std::set<std::string> groups;
  for (const NamedGroup& group : args.grouping.groups) {
    RequireName(group.name, kMaxGroupNameBytes);
    FUZZ_REQUIRE(groups.insert(group.name).second);
  }
  FUZZ_REQUIRE((args.grouping.rule == GroupingRule::kExplicit) !=
               args.grouping.groups.empty());
}

void RequireSoundGroup(const Group& group) {
  RequireName(group.name, kMaxGroupNameBytes);
  FUZZ_REQUIRE(group.image_bytes <= hoist::kMaxImageBytes);
  FUZZ_REQUIRE(group.image_bytes % hoist::kImageAlignment == 0);
  std::set<std::string> tensors;
  for (const Tensor& tensor : group.tensors) {
    FUZZ_REQUIRE(tensors.insert(tensor.name).second);
    FUZZ_REQUIRE(tensor.offset <= group.image_bytes);
    FUZZ_REQUIRE(tensor.bytes <= group.image_bytes - tensor.offset);
    FUZZ_REQUIRE(tensor.shape.size() <= kMaxRank);
  }
}

FileHeader SmallHeader() {
  FileHeader header;
  uint64_t at = kSmallFileBytes - 4096;
  const auto add = [&](const char* name, hoist::DType dtype,
                       std::vector<int64_t> shape) {
    const uint64_t bytes = *hoist::ContiguousBytes(dtype, shape);
    header.tensors.push_back({name, dtype, std::move(shape), at, bytes});
    at += bytes;
  };
  add("h.0.w", hoist::DType::kF32, {8, 32});
  add("h.0.b", hoist::DType::kBF16, {512});
  add("h.1.w", hoist::DType::kI8, {1023});
  add("e", hoist::DType::kU8, {1});
  add("z", hoist::DType::kF64, {0});
  add("q", hoist::DType::kF4, {2048});
  FUZZ_REQUIRE(at == kSmallFileBytes);
  return header;
}

void BuildAsWished(const RegisterModelArgs& args) {
  BuildModelArgs build;
  build.name = args.name;
  build.shards.push_back({"m.safetensors", {}, SmallHeader()});
  build.joined = args.joined;
  build.grouping = args.grouping;
  const auto model = BuildModel(std::move(build));
  if (!model.ok()) return;
  RequireSoundModel(**model, kSmallFileBytes);
}

std::shared_ptr<const Group> PublishAsSaid(Group group) {
  auto checked = CheckPublishedGroup(std::move(group));
  if (!checked.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(checked.status()));
    return nullptr;
  }
  RequireSoundGroup(**checked);
  FUZZ_REQUIRE(!(*checked)->tensors.empty() && (*checked)->runs.empty());
  for (const Tensor& tensor : (*checked)->tensors) RequireWithin(tensor);
  if ((*checked)->image_bytes > uint64_t{1} << 30) return *checked;
  const ContentPlan plan = PlanContent(**checked);
  uint64_t bytes = 0;
  for (const ByteRange& range : plan.ranges) {
    FUZZ_REQUIRE(range.offset <= (*checked)->image_bytes &&
                 range.bytes <= (*checked)->image_bytes - range.offset);
    bytes += range.bytes;
  }
  // Nobody is made to hash much more than he sent.
  FUZZ_REQUIRE(bytes <= 2 * (*checked)->image_bytes);
  return *checked;
}

}  // namespace hoistd::fuzz
