#include "client/src/messages/model_table.h"

#include <utility>

#include "hoist/shared/image_layout.h"

namespace hoist {
namespace {

Status MalformedModel(const std::string& what) {
  return Status(Code::kInternal, "hoistd described a model wrongly: " + what);
}

Status CheckTensor(const GroupEntry& group, const TensorEntry& tensor) {
  const std::string what = "tensor \"" + tensor.name + "\"";
  if (tensor.strides.size() != tensor.shape.size()) {
    return MalformedModel(what + " has strides for another shape");
  }
  const std::optional<uint64_t> span =
      SpanBytes(tensor.dtype, tensor.shape, tensor.strides);
  if (!span.has_value() || *span > tensor.size_bytes) {
    return MalformedModel(what + " spans more than its size");
  }
  if (tensor.offset_bytes > group.image_bytes ||
      tensor.size_bytes > group.image_bytes - tensor.offset_bytes) {
    return MalformedModel(what + " lies outside its image");
  }
  return Status();
}

}  // namespace

bool SameTensor(const TensorEntry& a, const TensorEntry& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape &&
         a.strides == b.strides && a.size_bytes == b.size_bytes;
}

Result<ModelTable> ModelTable::Create(Facts facts,
                                      std::vector<GroupEntry> groups,
                                      uint32_t first, uint32_t count) {
  ModelTable table(std::move(facts), std::move(groups), first, count);
  if (uint64_t{first} + table.groups_.size() > table.count_) {
    return MalformedModel("it has more groups than it counts");
  }
  size_t tensors = 0;
  for (const GroupEntry& group : table.groups_) tensors += group.tensors.size();
  table.group_of_.reserve(table.groups_.size());
  table.tensor_of_.reserve(tensors);
  for (uint32_t i = 0; i < table.groups_.size(); ++i) {
    const uint32_t g = first + i;
    const GroupEntry& group = table.groups_[i];
    if (group.name.empty()) {  // A missing group has a number only.
      if (group.image_bytes != 0 || !group.tensors.empty()) {
        return MalformedModel("a missing group has an image or tensors");
      }
      continue;
    }
    if (!table.group_of_.emplace(group.name, g).second) {
      return MalformedModel("group \"" + group.name + "\" is there twice");
    }
    for (uint32_t t = 0; t < group.tensors.size(); ++t) {
      const TensorEntry& tensor = group.tensors[t];
      if (Status s = CheckTensor(group, tensor); !s.ok()) return s;
      // Published groups may have tensors of equal names; the first one counts.
      table.tensor_of_.emplace(tensor.name, TensorPlace{g, t});
    }
  }
  return table;
}

Result<const TensorEntry*> GroupEntry::Tensor(uint32_t number) const {
  if (number < tensors.size()) return &tensors[number];
  return Status(Code::kOutOfRange, "group \"" + name + "\" has " +
                                       std::to_string(tensors.size()) +
                                       " tensors");
}

Result<uint32_t> GroupEntry::FindTensor(std::string_view tensor) const {
  for (uint32_t number = 0; number < tensors.size(); ++number) {
    if (tensors[number].name == tensor) return number;
  }
  return Status(Code::kNotFound, "group \"" + name + "\" has no tensor \"" +
                                     std::string(tensor) + "\"");
}

Status ModelTable::CheckGroup(uint32_t group) const {
  if (group < count_) return Status();
  return Status(Code::kOutOfRange,
                "model \"" + facts_.name + "\" has " + std::to_string(count_) +
                    " groups, none is number " + std::to_string(group));
}

std::optional<uint32_t> ModelTable::FindGroup(std::string_view name) const {
  const auto it = group_of_.find(name);
  if (it == group_of_.end()) return std::nullopt;
  return it->second;
}

std::optional<TensorPlace> ModelTable::FindTensor(std::string_view name) const {
  const auto it = tensor_of_.find(name);
  if (it == tensor_of_.end()) return std::nullopt;
  return it->second;
}

}  // namespace hoist
