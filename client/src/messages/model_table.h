// A model's description in this process: plain, checked data.
#ifndef HOIST_CLIENT_SRC_MESSAGES_MODEL_TABLE_H_
#define HOIST_CLIENT_SRC_MESSAGES_MODEL_TABLE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hoist/shared/dtype.h"
#include "hoist/shared/status.h"

namespace hoist {

struct TensorEntry {
  std::string name;
  DType dtype = DType::kUnspecified;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // In elements; always as many as `shape`.
  uint64_t offset_bytes = 0;     // From the image's start.
  uint64_t size_bytes = 0;
  std::string block_type;  // ggml's, of packed blocks: "Q4_K".
};

// Wherever they lie.
bool SameTensor(const TensorEntry& a, const TensorEntry& b);

struct GroupEntry {
  std::string name;
  uint64_t image_bytes = 0;
  std::vector<TensorEntry> tensors;
  std::optional<std::array<uint8_t, 32>> content;  // If published.

  // OutOfRange: no such tensor.
  Result<const TensorEntry*> Tensor(uint32_t number) const;
  // Its number. NotFound: no such name.
  Result<uint32_t> FindTensor(std::string_view tensor) const;
};

struct TensorPlace {
  uint32_t group = 0;
  uint32_t tensor = 0;
};

// All groups of a model; or some that follow each other, and the number of all.
//
// Threads:  immutable once built; shared freely.
class ModelTable {
 public:
  struct Facts {
    uint64_t id = 0;
    std::string name;
    std::array<uint8_t, 16> fingerprint = {};
    uint64_t image_bytes = 0;
    bool published = false;
    uint32_t owner_uid = 0;
    std::string owner_tenant;
    int readers = 0;  // HOIST_READERS_*, the proto's numbers.
  };

  // Internal: a tensor outside its image or larger than its size, or a
  // duplicate name; so reads through the table stay inside. `first`: the number
  // of the first of `groups`; `count`: of all, and 0 if these are all.
  static Result<ModelTable> Create(Facts facts, std::vector<GroupEntry> groups,
                                   uint32_t first = 0, uint32_t count = 0);
  // The lookups point into `groups_`; a move keeps its entries in place.
  ModelTable(ModelTable&&) = default;
  ModelTable(const ModelTable&) = delete;
  ModelTable& operator=(const ModelTable&) = delete;

  const Facts& facts() const { return facts_; }
  uint32_t count() const { return count_; }
  bool whole() const { return groups_.size() == count_; }
  bool has(uint32_t group) const {
    return group >= first_ && group - first_ < groups_.size();
  }
  // Which it has.
  const GroupEntry& group(uint32_t number) const {
    return groups_[number - first_];
  }
  // All, of a whole table.
  const std::vector<GroupEntry>& groups() const { return groups_; }
  // OutOfRange: no such group.
  Status CheckGroup(uint32_t group) const;
  // Among those that it has.
  std::optional<uint32_t> FindGroup(std::string_view name) const;
  std::optional<TensorPlace> FindTensor(std::string_view name) const;

 private:
  ModelTable(Facts facts, std::vector<GroupEntry> groups, uint32_t first,
             uint32_t count)
      : facts_(std::move(facts)),
        groups_(std::move(groups)),
        first_(first),
        count_(count == 0 ? static_cast<uint32_t>(groups_.size()) : count) {}

  Facts facts_;
  std::vector<GroupEntry> groups_;
  uint32_t first_;
  uint32_t count_;
  std::unordered_map<std::string_view, uint32_t> group_of_;
  std::unordered_map<std::string_view, TensorPlace> tensor_of_;
};

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_MESSAGES_MODEL_TABLE_H_
