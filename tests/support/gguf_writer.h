// Writes GGUF files, right ones and wrong ones.
#ifndef HOIST_TESTS_SUPPORT_GGUF_WRITER_H_
#define HOIST_TESTS_SUPPORT_GGUF_WRITER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hoistd::testing {

// Of metadata.
inline constexpr uint32_t kGgufUint16 = 2, kGgufUint32 = 4, kGgufString = 8,
                          kGgufArray = 9;

// Little-endian, in so many bytes.
std::string GgufNumber(uint64_t value, int bytes);
std::string GgufText(std::string_view text);  // Its length, and it.
// A key with its value's type and bytes.
std::string GgufPair(std::string_view key, uint32_t type,
                     std::string_view value);
// An array's bytes: its elements' type, their count, and they.
std::string GgufElements(uint32_t type, uint64_t count,
                         std::string_view elements);
// `dimensions` as ggml has them, the fastest first; `offset` from the data's
// begin.
std::string GgufTensor(std::string_view name,
                       const std::vector<uint64_t>& dimensions, uint32_t type,
                       uint64_t offset);

struct GgufFile {
  std::vector<std::string> pairs;
  std::vector<std::string> tensors;
  uint64_t data_bytes = 0;
  uint64_t alignment = 32;
  uint32_t version = 3;
  std::optional<uint64_t> pair_count;    // Else as there are.
  std::optional<uint64_t> tensor_count;  // Else as there are.

  std::string Header() const;
  // With its padding, and data of TensorBytes.
  std::string Whole() const;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_GGUF_WRITER_H_
