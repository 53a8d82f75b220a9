#include "tests/support/gguf_writer.h"

#include "tests/support/safetensors_writer.h"

namespace hoistd::testing {

std::string GgufNumber(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) {
    text.push_back(static_cast<char>(value >> (8 * i)));
  }
  return text;
}

std::string GgufText(std::string_view text) {
  return GgufNumber(text.size(), 8).append(text);
}

std::string GgufPair(std::string_view key, uint32_t type,
                     std::string_view value) {
  return (GgufText(key) + GgufNumber(type, 4)).append(value);
}

std::string GgufElements(uint32_t type, uint64_t count,
                         std::string_view elements) {
  return (GgufNumber(type, 4) + GgufNumber(count, 8)).append(elements);
}

std::string GgufTensor(std::string_view name,
                       const std::vector<uint64_t>& dimensions, uint32_t type,
                       uint64_t offset) {
  std::string text = GgufText(name) + GgufNumber(dimensions.size(), 4);
  for (const uint64_t dimension : dimensions) text += GgufNumber(dimension, 8);
  return text + GgufNumber(type, 4) + GgufNumber(offset, 8);
}

std::string GgufFile::Header() const {
  std::string text = "GGUF" + GgufNumber(version, 4) +
                     GgufNumber(tensor_count.value_or(tensors.size()), 8) +
                     GgufNumber(pair_count.value_or(pairs.size()), 8);
  for (const std::string& pair : pairs) text += pair;
  for (const std::string& tensor : tensors) text += tensor;
  return text;
}

std::string GgufFile::Whole() const {
  std::string text = Header();
  text.resize((text.size() + alignment - 1) / alignment * alignment);
  return text + TensorBytes(1, "data", data_bytes);
}

}  // namespace hoistd::testing
