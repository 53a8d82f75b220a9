#include "daemon/model/model.h"

#include <algorithm>
#include <set>

#include "absl/strings/escaping.h"

namespace hoistd {
namespace {

// Of one piece from glibc's malloc.
uint64_t PieceBytes(uint64_t bytes) {
  return bytes == 0 ? 0 : std::max<uint64_t>(32, (bytes + 8 + 15) / 16 * 16);
}

uint64_t HeapBytes(const std::string& text) {
  constexpr size_t kInside = 15;  // Characters within the object itself.
  return text.capacity() <= kInside ? 0 : PieceBytes(text.capacity() + 1);
}

template <typename T>
uint64_t HeapBytes(const std::vector<T>& values) {
  return PieceBytes(values.capacity() * sizeof(T));
}

}  // namespace

uint64_t BookBytesOf(const Group& group) {
  // The model's pointer to the group, its content, the node's entry for it.
  constexpr uint64_t kEntry = 256;
  // A shared pointer's counts lie before its object.
  uint64_t bytes = kEntry + PieceBytes(sizeof(Group) + 16) +
                   HeapBytes(group.name) + HeapBytes(group.tensors) +
                   HeapBytes(group.runs) + HeapBytes(group.reaches);
  for (const Tensor& tensor : group.tensors) {
    bytes += HeapBytes(tensor.name) + HeapBytes(tensor.shape) +
             HeapBytes(tensor.strides) + HeapBytes(tensor.block_type);
  }
  return bytes;
}

uint64_t BookBytesOf(const Sheet& sheet) {
  return PieceBytes(sizeof(Sheet) + 16) + HeapBytes(sheet.runs);
}

std::vector<std::string> BlockTypesOf(const Group& group) {
  std::set<std::string> types;
  for (const Tensor& tensor : group.tensors) {
    if (!tensor.block_type.empty()) types.insert(tensor.block_type);
  }
  return {types.begin(), types.end()};
}

std::optional<GroupIndex> FindGroup(const ModelSpec& model,
                                    absl::string_view name) {
  for (uint32_t g = 0; g < model.groups.size(); ++g) {
    if (model.groups[g]->name == name) return GroupIndex(g);
  }
  return std::nullopt;
}

std::string FingerprintHex(const Fingerprint& fingerprint) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(fingerprint.data()), fingerprint.size()));
}

}  // namespace hoistd
