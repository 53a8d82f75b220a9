// A safetensors file's header, and the model that is made of it.
#include "daemon/model/model_builder.h"
#include "daemon/model/safetensors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/model_checks.h"
#include "tests/support/safetensors_writer.h"

namespace hoistd {
namespace {

// How many bytes of data follow is said apart: a length that must be right
// would keep the fuzzer from the rest.
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
  fuzz::RequireSoundHeader(*header, 8 + json.size(), file_bytes);
  BuildModelArgs args;
  args.name = "m";
  args.shards.push_back({"m.safetensors", {}, *header});
  args.grouping.rule = rule == 0   ? GroupingRule::kBlock
                       : rule == 1 ? GroupingRule::kModule
                                   : GroupingRule::kWhole;
  const auto model = BuildModel(std::move(args));
  if (!model.ok()) return 0;
  fuzz::RequireSoundModel(**model, file_bytes);
  FUZZ_REQUIRE((*model)->tensors == header->tensors.size());
  return 0;
}
