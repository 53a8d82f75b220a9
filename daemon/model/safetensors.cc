#include "daemon/model/safetensors.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/model/json_reader.h"
#include "daemon/model/model_name.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

constexpr char kMetadata[] = "__metadata__";

// The document is {name: {dtype, shape, data_offsets}, __metadata__: {k: v}};
// anything deeper or other is refused where it begins.
class HeaderReader final : public JsonEvents {
 public:
  FileHeader Take() && { return std::move(header_); }

  absl::Status OnBeginObject() override {
    if (depth_ == 0) {
      depth_ = 1;
      return absl::OkStatus();
    }
    if (depth_ != 1 || array_) return Unexpected("an object");
    depth_ = 2;
    fields_ = 0;
    tensor_ = {};
    tensor_.name = key_;
    offsets_.clear();
    return absl::OkStatus();
  }

  absl::Status OnKey(std::string key) override {
    if (depth_ == 1) {
      key_ = std::move(key);
      HOIST_RETURN_IF_ERROR(ValidateTensorName(key_));
      if (!names_.insert(key_).second) {
        return BadTensor(key_, "the name is there twice");
      }
      if (names_.size() > kMaxTensors) {
        return absl::InvalidArgumentError(
            absl::StrCat("the header names more than ", kMaxTensors,
                         " tensors; split the file"));
      }
      return absl::OkStatus();
    }
    if (in_metadata()) {
      if (!metadata_.insert(key).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("metadata key ", Quoted(key), " is there twice"));
      }
      field_ = std::move(key);
      return absl::OkStatus();
    }
    const unsigned bit = key == "dtype"          ? 1
                         : key == "shape"        ? 2
                         : key == "data_offsets" ? 4
                                                 : 0;
    if (bit == 0) {
      return BadTensor(key_, absl::StrCat("unknown field ", Quoted(key)));
    }
    if ((fields_ & bit) != 0) {
      return BadTensor(key_, absl::StrCat("field ", key, " is there twice"));
    }
    fields_ |= bit;
    field_ = std::move(key);
    return absl::OkStatus();
  }

  absl::Status OnEndObject() override {
    if (--depth_ != 1 || key_ == kMetadata) return absl::OkStatus();
    if (fields_ != 7) {
      return BadTensor(key_, "dtype, shape and data_offsets must all be given");
    }
    if (offsets_.size() != 2) {
      return BadTensor(key_, "data_offsets must be two numbers, begin and end");
    }
    if (offsets_[0] > offsets_[1]) {
      return BadTensor(key_, "data_offsets end before they begin");
    }
    tensor_.file_offset = offsets_[0];
    tensor_.bytes = offsets_[1] - offsets_[0];
    header_.tensors.push_back(std::move(tensor_));
    return absl::OkStatus();
  }

  absl::Status OnBeginArray() override {
    if (depth_ != 2 || array_ || in_metadata() || field_ == "dtype") {
      return Unexpected("an array");
    }
    array_ = true;
    return absl::OkStatus();
  }
  absl::Status OnEndArray() override {
    array_ = false;
    return absl::OkStatus();
  }

  absl::Status OnString(std::string value) override {
    if (depth_ != 2 || array_) return Unexpected("a string");
    if (in_metadata()) return absl::OkStatus();
    if (field_ != "dtype") return Unexpected("a string");
    const std::optional<hoist::DType> dtype = hoist::DTypeFromName(value);
    if (!dtype.has_value() || *dtype == hoist::DType::kC128) {
      return BadTensor(key_, absl::StrCat("unknown dtype ", Quoted(value)));
    }
    tensor_.dtype = *dtype;
    return absl::OkStatus();
  }

  absl::Status OnUnsigned(uint64_t value) override {
    if (!array_) return Unexpected("a number");
    if (field_ == "data_offsets") {
      offsets_.push_back(value);
      if (offsets_.size() > 2) {
        return BadTensor(key_,
                         "data_offsets must be two numbers, begin and end");
      }
      return absl::OkStatus();
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return BadTensor(key_, "a dimension is larger than 2^63 - 1");
    }
    if (tensor_.shape.size() == kMaxDimensions) {
      return BadTensor(key_, absl::StrCat("it has more than ", kMaxDimensions,
                                          " dimensions"));
    }
    tensor_.shape.push_back(static_cast<int64_t>(value));
    return absl::OkStatus();
  }

  absl::Status OnOther(absl::string_view what) override {
    return Unexpected(what);
  }

 private:
  bool in_metadata() const { return depth_ == 2 && key_ == kMetadata; }

  absl::Status Unexpected(absl::string_view what) const {
    if (depth_ == 0) {
      return absl::InvalidArgumentError("the header is not a JSON object");
    }
    return BadTensor(
        key_,
        absl::StrCat(what, " where ", depth_ == 1 ? "a tensor" : Quoted(field_),
                     " needs something else"));
  }

  FileHeader header_;
  absl::flat_hash_set<std::string> names_;
  absl::flat_hash_set<std::string> metadata_;  // Its keys.
  int depth_ = 0;
  bool array_ = false;
  std::string key_;    // At depth 1.
  std::string field_;  // At depth 2.
  unsigned fields_ = 0;
  FileTensor tensor_;
  std::vector<uint64_t> offsets_;
};

// Offsets are relative to the data's start on entry, to the file's on return.
absl::Status CheckTiling(uint64_t data_offset, uint64_t data_bytes,
                         std::vector<FileTensor>& tensors) {
  uint64_t end = 0;
  for (FileTensor& tensor : tensors) {
    if (tensor.file_offset > data_bytes ||
        tensor.bytes > data_bytes - tensor.file_offset) {
      return BadTensor(tensor.name,
                       absl::StrCat("its bytes end past the file's end (",
                                    data_bytes, " bytes of data)"));
    }
    if (tensor.file_offset < end) {
      return BadTensor(tensor.name, "its bytes overlap another tensor's");
    }
    if (tensor.file_offset > end) {
      return BadTensor(tensor.name, absl::StrCat("there is a hole of ",
                                                 tensor.file_offset - end,
                                                 " bytes before it"));
    }
    const auto bytes = hoist::ContiguousBytes(tensor.dtype, tensor.shape);
    if (!bytes.has_value()) {
      return BadTensor(
          tensor.name,
          "its shape overflows, or its bits do not fill whole bytes");
    }
    if (*bytes != tensor.bytes) {
      return BadTensor(tensor.name,
                       absl::StrCat("dtype and shape take ", *bytes,
                                    " bytes, data_offsets ", tensor.bytes));
    }
    end = tensor.file_offset + tensor.bytes;
    tensor.file_offset += data_offset;
  }
  if (end != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensors take ", end, " bytes and the file has ", data_bytes,
        " bytes of data: it is truncated, or has bytes that nothing names"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::string_view first_bytes,
                                                uint64_t file_bytes) {
  if (first_bytes.size() < kSafetensorsLengthBytes ||
      file_bytes < kSafetensorsLengthBytes) {
    return absl::InvalidArgumentError(
        "not a safetensors file: shorter than 8 bytes");
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kSafetensorsLengthBytes; ++i) {
    length |= uint64_t{static_cast<uint8_t>(first_bytes[i])} << (8 * i);
  }
  if (length > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a safetensors file: a header of ", length,
                     " bytes is announced, 100 MB are allowed"));
  }
  if (length > file_bytes - kSafetensorsLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the safetensors header is said to be ", length,
        " bytes long and the file has ", file_bytes, ": it is truncated"));
  }
  return length;
}

absl::StatusOr<FileHeader> ParseSafetensorsHeader(absl::string_view json,
                                                  uint64_t file_bytes) {
  if (json.empty() || json.front() != '{') {
    return absl::InvalidArgumentError(
        "not a safetensors file: the header does not begin with '{'");
  }
  const uint64_t data_offset = kSafetensorsLengthBytes + json.size();
  if (data_offset > file_bytes) {
    return absl::InvalidArgumentError(
        "the safetensors header is longer than its file");
  }
  HeaderReader reader;
  HOIST_RETURN_IF_ERROR(ReadJson(json, reader));
  FileHeader header = std::move(reader).Take();
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const FileTensor& a, const FileTensor& b) {
              return std::tie(a.file_offset, a.bytes, a.name) <
                     std::tie(b.file_offset, b.bytes, b.name);
            });
  HOIST_RETURN_IF_ERROR(
      CheckTiling(data_offset, file_bytes - data_offset, header.tensors));
  return header;
}

}  // namespace hoistd
