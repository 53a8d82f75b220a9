// A safetensors file's header, and the model that is made of it.
#include "daemon/model/safetensors.h"

#include <set>

#include "daemon/model/model_builder.h"
#include "hoist/shared/image_layout.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/safetensors_writer.h"

namespace hoistd {
namespace {

// Tensors cover the data without gap or overlap, each as long as its shape.
void RequireSound(const SafetensorsHeader& header, uint64_t data_begin,
                  uint64_t file_bytes) {
  std::set<std::string> names;
  uint64_t end = data_begin;
  for (const SafetensorsTensor& tensor : header.tensors) {
    FUZZ_REQUIRE(names.insert(tensor.name).second);
    FUZZ_REQUIRE(tensor.name.find('\0') == std::string::npos);
    FUZZ_REQUIRE(tensor.shape.size() <= kMaxDimensions);
    FUZZ_REQUIRE(tensor.file_offset == end);
    FUZZ_REQUIRE(hoist::ContiguousBytes(tensor.dtype, tensor.shape) ==
                 std::optional<uint64_t>(tensor.bytes));
    end = tensor.file_offset + tensor.bytes;
  }
  FUZZ_REQUIRE(end == file_bytes);
}

// Each tensor lies once in the groups, within its image, and is read from
// within the file; no two share a byte.
void RequireSound(const ModelSpec& model, const SafetensorsHeader& header,
                  uint64_t file_bytes) {
  size_t tensors = 0;
  for (const auto& group : model.groups) {
    FUZZ_REQUIRE(!group->name.empty());
    FUZZ_REQUIRE(group->image_bytes <= hoist::kMaxImageBytes);
    tensors += group->tensors.size();
    uint64_t end = 0;
    for (const Tensor& tensor : group->tensors) {
      FUZZ_REQUIRE(tensor.offset % hoist::kTensorAlignment == 0);
      FUZZ_REQUIRE(tensor.offset >= end);
      end = tensor.offset + tensor.bytes;
      FUZZ_REQUIRE(end >= tensor.offset && end <= group->image_bytes);
    }
    uint64_t image_end = 0;
    for (const SourceRun& run : group->runs) {
      FUZZ_REQUIRE(run.bytes > 0 && run.image_offset >= image_end);
      image_end = run.image_offset + run.bytes;
      FUZZ_REQUIRE(image_end <= group->image_bytes);
      uint64_t read = 0;
      for (const Sheet::Run& at :
           RunsOf(*model.sheets.at(run.file), run.sheet_offset, run.bytes)) {
        FUZZ_REQUIRE(at.file_offset <= file_bytes &&
                     at.bytes <= file_bytes - at.file_offset);
        read += at.bytes;
      }
      FUZZ_REQUIRE(read > 0 && read <= run.bytes);
    }
  }
  FUZZ_REQUIRE(tensors == header.tensors.size());
}

// The last byte that JSON needs is a brace; what the file has behind it is said
// before: a length that must be right would keep the fuzzer from the rest.
std::string InputOf(GroupingRule rule, const std::string& file) {
  const uint64_t json = *SafetensorsHeaderBytes(file.substr(0, 8), file.size());
  return fuzz::Output()
      .Put(static_cast<uint8_t>(rule))
      .Put(static_cast<uint16_t>(file.size() - 8 - json))
      .Bytes(file.substr(8, json))
      .str();
}

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  using Tensors = std::vector<testing::TensorToWrite>;
  const auto input = [](GroupingRule rule, const Tensors& tensors,
                        const std::map<std::string, std::string>& metadata) {
    return InputOf(rule, *testing::SafetensorsFile(tensors, 1, metadata));
  };
  const Tensors odd = {{"empty", hoist::DType::kF16, {0, 3}},
                       {"scalar", hoist::DType::kF64, {}},
                       {"small", hoist::DType::kF4, {6}},
                       {"h.0.\"\xc3\xa9\"", hoist::DType::kI8, {2}}};
  const Tensors transformer = testing::SmallTransformer(1, 4);
  return {{"block", input(GroupingRule::kBlock, transformer, {{"a", "b"}})},
          {"module", input(GroupingRule::kModule, transformer, {})},
          {"odd", input(GroupingRule::kWhole, odd, {})}};
}

}  // namespace fuzz
}  // namespace hoistd

// u8 rule of groups, u16 bytes of data, then the header's JSON.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  fuzz::Input input(data, size);
  const uint8_t rule = input.Take() % 3;
  const auto data_bytes = input.Take<uint16_t>();
  const std::string_view rest = input.Rest();
  const absl::string_view json(rest.data(), rest.size());
  const uint64_t file_bytes = 8 + json.size() + data_bytes;
  const auto lie = SafetensorsHeaderBytes(json.substr(0, 8), file_bytes);
  if (lie.ok()) FUZZ_REQUIRE(*lie <= file_bytes - 8);
  const auto header = ParseSafetensorsHeader(json, file_bytes);
  if (!header.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(header.status()));
    FUZZ_REQUIRE(header.status().message().size() < 600);
    return 0;
  }
  RequireSound(*header, 8 + json.size(), file_bytes);
  BuildModelArgs args;
  args.name = "m";
  args.shards.push_back({"m.safetensors", {}, *header});
  args.grouping.rule = rule == 0   ? GroupingRule::kBlock
                       : rule == 1 ? GroupingRule::kModule
                                   : GroupingRule::kWhole;
  const auto model = BuildModel(std::move(args));
  if (model.ok()) RequireSound(**model, *header, file_bytes);
  return 0;
}
