#include "tests/bench/synthetic.h"

#include <fstream>

#include "tests/bench/basics.h"

namespace hoist::bench {

uint64_t Checksum(const void* data, uint64_t bytes) {
  const auto* words = static_cast<const uint64_t*>(data);
  uint64_t sum = 0;
  for (uint64_t i = 0; i < bytes / 8; ++i) sum += words[i] * (2 * i + 1);
  return sum;
}

void FillGroup(uint64_t group, std::vector<uint64_t>& words) {
  for (uint64_t i = 0; i < words.size(); ++i) words[i] = WordAt(group, i);
}

Synthetic Publish(const Session& session, const std::string& name,
                  const SyntheticSpec& spec) {
  Synthetic made;
  std::vector<uint64_t> words(spec.group_bytes / 8);
  for (uint32_t g = 0; g < spec.groups; ++g) {
    FillGroup(g, words);
    made.checksums.push_back(Checksum(words.data(), spec.group_bytes));
    const std::string group = "layers." + std::to_string(g);
    const std::string tensor_name = group + ".weight";
    const auto length = static_cast<int64_t>(spec.group_bytes);
    hoist_publish_tensor tensor = {};
    tensor.name = tensor_name.c_str();
    tensor.dtype = HOIST_U8;
    tensor.rank = 1;
    tensor.shape = &length;
    tensor.data = words.data();
    hoist_publish_options options = {};
    options.struct_size = sizeof(options);
    options.model = name.c_str();
    options.group = group.c_str();
    options.tensors = &tensor;
    options.tensor_count = 1;
    const bool last = g + 1 == spec.groups;
    hoist_model* model = nullptr;
    hoist_error* error = nullptr;
    RequireOk(hoist_publish_group(session.get(), &options,
                                  last ? &model : nullptr, &error),
              error, "publish " + group);
    made.model.reset(model);
  }
  return made;
}

void WriteFile(const std::string& path, const SyntheticSpec& spec) {
  std::string header = "{";
  for (uint64_t g = 0; g < spec.groups; ++g) {
    const uint64_t begin = g * spec.group_bytes;
    header += (g ? ",\"layers." : "\"layers.") + std::to_string(g) +
              ".weight\":{\"dtype\":\"U8\",\"shape\":[" +
              std::to_string(spec.group_bytes) + "],\"data_offsets\":[" +
              std::to_string(begin) + "," +
              std::to_string(begin + spec.group_bytes) + "]}";
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::ofstream file(path, std::ios::binary);
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << header;
  std::vector<uint64_t> words(spec.group_bytes / 8);
  for (uint64_t g = 0; g < spec.groups; ++g) {
    FillGroup(g, words);
    file.write(reinterpret_cast<const char*>(words.data()),
               static_cast<std::streamsize>(spec.group_bytes));
  }
  file.close();
  if (!file) Fail("cannot write " + path + "; see --folder");
}

Model RegisterFile(const Session& session, const std::string& name,
                   const std::string& path) {
  hoist_register_options options = {};
  options.struct_size = sizeof(options);
  options.name = name.c_str();
  options.path = path.c_str();
  hoist_model* model = nullptr;
  hoist_error* error = nullptr;
  RequireOk(hoist_register_model(session.get(), &options, &model, &error),
            error, "register " + path);
  return Model(model);
}

}  // namespace hoist::bench
