#include "tests/support/safetensors_writer.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "hoist/shared/image_layout.h"

namespace hoistd::testing {
namespace {

// splitmix64: each next number is as good as random.
uint64_t Next(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

std::string TensorBytes(uint64_t seed, const std::string& name, size_t bytes) {
  uint64_t state = seed;
  for (const char c : name) {
    state = state * 0x100000001b3 + static_cast<unsigned char>(c) + 1;
  }
  std::string out(bytes, '\0');
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = Next(&state);
    for (size_t k = i; k < std::min(bytes, i + 8); ++k) {
      out[k] = static_cast<char>(word >> (8 * (k - i)));
    }
  }
  return out;
}

std::string WithLength(const std::string& json) {
  std::string out;
  for (int i = 0; i < 8; ++i) {
    out.push_back(static_cast<char>(uint64_t{json.size()} >> (8 * i)));
  }
  return out + json;
}

absl::StatusOr<std::string> SafetensorsFile(
    std::span<const TensorToWrite> tensors, uint64_t seed,
    const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> entries;
  if (!metadata.empty()) {
    entries.push_back("\"__metadata__\":" + nlohmann::json(metadata).dump());
  }
  std::string data;
  for (const TensorToWrite& tensor : tensors) {
    const std::optional<uint64_t> bytes =
        hoist::ContiguousBytes(tensor.dtype, tensor.shape);
    if (!bytes.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.name, " has no size"));
    }
    const nlohmann::json entry = {
        {"dtype", std::string(hoist::NameOf(tensor.dtype))},
        {"shape", tensor.shape},
        {"data_offsets", {data.size(), data.size() + *bytes}}};
    entries.push_back(nlohmann::json(tensor.name).dump() + ":" + entry.dump());
    data += TensorBytes(seed, tensor.name, *bytes);
  }
  std::string json = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return WithLength(json) + data;
}

absl::Status WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("write ", path));
  return absl::OkStatus();
}

absl::StatusOr<WrittenModel> WriteModel(const std::string& folder,
                                        std::span<const TensorToWrite> tensors,
                                        size_t shards, uint64_t seed) {
  WrittenModel model;
  nlohmann::json weight_map = nlohmann::json::object();
  const size_t each =
      (tensors.size() + shards - 1) / std::max<size_t>(1, shards);
  for (size_t i = 0; i < shards; ++i) {
    const std::string name =
        shards == 1
            ? "model.safetensors"
            : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards);
    const size_t begin = std::min(tensors.size(), i * each);
    const size_t end = std::min(tensors.size(), begin + each);
    const auto part = tensors.subspan(begin, end - begin);
    const absl::StatusOr<std::string> bytes = SafetensorsFile(part, seed);
    if (!bytes.ok()) return bytes.status();
    const absl::Status written = WriteFile(folder + "/" + name, *bytes);
    if (!written.ok()) return written;
    for (const TensorToWrite& tensor : part) weight_map[tensor.name] = name;
    model.files.push_back(name);
  }
  if (shards == 1) return model;
  model.index = "model.safetensors.index.json";
  const nlohmann::json index = {{"metadata", {{"total_size", 0}}},
                                {"weight_map", weight_map}};
  const absl::Status written =
      WriteFile(folder + "/" + model.index, index.dump(2));
  if (!written.ok()) return written;
  return model;
}

std::vector<TensorToWrite> SmallTransformer(int layers, int64_t width) {
  const auto f32 = hoist::DType::kF32;
  std::vector<TensorToWrite> tensors = {
      {"model.embed_tokens.weight", f32, {4 * width, width}}};
  for (int i = 0; i < layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    tensors.push_back(
        {layer + "self_attn.qkv.weight", f32, {3 * width, width}});
    tensors.push_back({layer + "self_attn.qkv.bias", f32, {3 * width}});
    tensors.push_back({layer + "mlp.down.weight", f32, {width, width}});
  }
  tensors.push_back({"model.norm.weight", f32, {width}});
  tensors.push_back({"lm_head.weight", f32, {4 * width, width}});
  return tensors;
}

}  // namespace hoistd::testing
