// A GGUF file's header, and the model that is made of it.
#include "daemon/model/gguf.h"
#include "daemon/model/model_builder.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/model_checks.h"
#include "tests/support/gguf_writer.h"

namespace hoistd {
namespace {

// How many bytes of data follow is said apart, as for safetensors.
std::string InputOf(const testing::GgufFile& file) {
  std::string header = file.Whole();
  header.resize(header.size() - file.data_bytes);
  return fuzz::Output()
      .Put(static_cast<uint16_t>(file.data_bytes))
      .Bytes(header)
      .str();
}

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  using namespace testing;  // GgufPair and others.
  const std::string words = GgufText("a") + GgufText("bc");
  const GgufFile usual = {
      .pairs = {GgufPair("general.alignment", kGgufUint32, GgufNumber(64, 4)),
                GgufPair("name", kGgufString, GgufText("m")),
                GgufPair("words", kGgufArray,
                         GgufElements(kGgufString, 2, words)),
                GgufPair(
                    "nested", kGgufArray,
                    GgufElements(kGgufArray, 1, GgufElements(0, 2, "xy")))},
      .tensors = {GgufTensor("blk.0.w", {512, 3}, 12, 64),
                  GgufTensor("blk.0.b", {5}, 0, 0)},
      .data_bytes = 64 + 3 * 288,
      .alignment = 64};
  const GgufFile part = {
      .pairs = {GgufPair("split.no", kGgufUint16, GgufNumber(0, 2)),
                GgufPair("split.count", kGgufUint16, GgufNumber(1, 2))},
      .tensors = {GgufTensor("scalar", {}, 28, 0),
                  GgufTensor("empty", {0, 3}, 8, 32),
                  GgufTensor("half", {2, 2, 2}, 30, 32)},
      .data_bytes = 48,
      .version = 2};
  return {{"usual", InputOf(usual)}, {"part", InputOf(part)}};
}

}  // namespace fuzz
}  // namespace hoistd

// u16 bytes of data, then the file up to them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  fuzz::Input input(data, size);
  const auto data_bytes = input.Take<uint16_t>();
  const std::string_view rest = input.Rest();
  const absl::string_view prefix(rest.data(), rest.size());
  const uint64_t file_bytes = prefix.size() + data_bytes;
  const auto parsed = ParseGgufHeader(prefix, file_bytes);
  if (!parsed.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(parsed.status()));
    FUZZ_REQUIRE(parsed.status().message().size() < 600);
    return 0;
  }
  FUZZ_REQUIRE(parsed->bytes <= file_bytes);
  if (parsed->bytes > prefix.size()) {
    FUZZ_REQUIRE(parsed->header.tensors.empty());
    return 0;
  }
  // The header alone says the same.
  const auto again =
      ParseGgufHeader(prefix.substr(0, parsed->bytes), file_bytes);
  FUZZ_REQUIRE(again.ok() && again->bytes == parsed->bytes);
  const FileHeader& header = parsed->header;
  FUZZ_REQUIRE(again->header.tensors.size() == header.tensors.size());
  fuzz::RequireSoundTensors(header, parsed->bytes, file_bytes);
  BuildModelArgs args;
  args.name = "m";
  args.shards.push_back({"m.gguf", {}, header});
  const auto model = BuildModel(std::move(args));
  if (!model.ok()) return 0;
  fuzz::RequireSoundModel(**model, file_bytes);
  FUZZ_REQUIRE((*model)->tensors == header.tensors.size());
  return 0;
}
