// A checkpoint's index of its safetensors shards (*.safetensors.index.json).
#include <map>
#include <string>

#include "daemon/model/safetensors_index.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz.h"

namespace hoistd {
namespace {

// A path of it names something in the index's own folder.
void RequirePlainName(const std::string& shard) {
  FUZZ_REQUIRE(!shard.empty() && shard != "." && shard != "..");
  FUZZ_REQUIRE(shard.find('/') == std::string::npos);
  FUZZ_REQUIRE(shard.find('\0') == std::string::npos);
}

// As another reader has it, which keeps the last of two keys; two are refused
// where they matter, in the weight_map and of it.
std::map<std::string, std::string> WeightMapOf(const std::string& json) {
  const nlohmann::json index = nlohmann::json::parse(json);
  FUZZ_REQUIRE(index.is_object());
  std::map<std::string, std::string> shard_of;
  const nlohmann::json& map = index.at("weight_map");
  for (const auto& [tensor, shard] : map.items()) {
    shard_of[tensor] = shard.get<std::string>();
  }
  return shard_of;
}

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  return {
      {"two", R"({"metadata":{"total_size":1.5,"x":[{"weight_map":null}]},)"
              R"("weight_map":{"a":"1.safetensors","b":"2.safetensors"},)"
              R"("more":[1,{"weight_map":{"c":7}}]})"},
      {"empty", R"({"weight_map":{}})"},
      {"escaped", R"({"weight_map":{"h.0.\"\u00e9":"..a\n","\\":"b"}})"},
      {"outside", R"({"weight_map":{"a":"../1.safetensors"}})"},
      {"twice", R"({"weight_map":{"a":"1","a":"2"}})"},
      {"second_is_no_map", R"({"weight_map":{"a":"1"},"weight_map":3})"},
      {"nested", R"({"weight_map":{"a":{"b":"c"}}})"},
      {"twice_below", R"({"weight_map":{"a":"1"},"b":{"weight_map":{}}})"},
  };
}

}  // namespace fuzz
}  // namespace hoistd

// The index, and nothing else.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  const std::string json(reinterpret_cast<const char*>(data), size);
  const auto index = ParseSafetensorsIndex(json);
  if (!index.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(index.status()));
    FUZZ_REQUIRE(index.status().message().size() < 600);
    return 0;
  }
  for (const auto& [tensor, shard] : index->shard_of) RequirePlainName(shard);
  FUZZ_REQUIRE(index->shard_of == WeightMapOf(json));
  return 0;
}
