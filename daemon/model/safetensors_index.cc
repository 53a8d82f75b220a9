#include "daemon/model/safetensors_index.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/status.h"
#include "daemon/model/file_header.h"
#include "daemon/model/json_reader.h"

namespace hoistd {
namespace {

// Takes {"weight_map": {tensor: shard}}; everything else is passed over.
class IndexReader final : public JsonEvents {
 public:
  SafetensorsIndex Take() && { return std::move(index_); }
  bool found() const { return found_; }

  absl::Status OnBeginObject() override {
    ++depth_;
    if (depth_ == 2 && key_ == "weight_map") {
      found_ = inside_ = true;
    } else if (inside_) {
      return NoString();
    }
    return absl::OkStatus();
  }
  absl::Status OnEndObject() override {
    if (depth_-- == 2) inside_ = false;
    return absl::OkStatus();
  }
  absl::Status OnKey(std::string key) override {
    if (depth_ == 1) {
      // Readers that keep the last of two would see another model.
      if (key == "weight_map" && std::exchange(named_, true)) {
        return absl::InvalidArgumentError("two weight_maps");
      }
      key_ = std::move(key);
    } else if (inside_) {
      tensor_ = std::move(key);
    }
    return absl::OkStatus();
  }
  absl::Status OnBeginArray() override {
    ++depth_;
    return inside_ ? NoString() : absl::OkStatus();
  }
  absl::Status OnEndArray() override {
    --depth_;
    return absl::OkStatus();
  }
  absl::Status OnString(std::string value) override {
    if (!inside_) return absl::OkStatus();
    if (value.empty() || value == "." || value == ".." ||
        value.find('/') != std::string::npos ||
        value.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard ", Quoted(value), " is not a plain file name"));
    }
    if (!index_.shard_of.emplace(tensor_, std::move(value)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(tensor_), " is there twice"));
    }
    return absl::OkStatus();
  }
  absl::Status OnUnsigned(uint64_t) override {
    return inside_ ? NoString() : absl::OkStatus();
  }
  absl::Status OnOther(absl::string_view) override {
    return inside_ ? NoString() : absl::OkStatus();
  }

 private:
  absl::Status NoString() const {
    return absl::InvalidArgumentError(absl::StrCat(
        "weight_map: tensor ", Quoted(tensor_), " needs a shard's file name"));
  }

  SafetensorsIndex index_;
  int depth_ = 0;
  bool inside_ = false;  // The weight_map.
  bool named_ = false;   // Whatever it is.
  bool found_ = false;
  std::string key_;
  std::string tensor_;
};

}  // namespace

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view json) {
  IndexReader reader;
  HOIST_RETURN_IF_ERROR(ReadJson(json, reader));
  if (!reader.found()) {
    return absl::InvalidArgumentError("the index has no weight_map");
  }
  return std::move(reader).Take();
}

}  // namespace hoistd
