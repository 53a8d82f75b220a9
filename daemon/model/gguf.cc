#include "daemon/model/gguf.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/model/model_name.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

using hoist::DType;

constexpr absl::string_view kGgufMagic = "GGUF";
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint32_t kString = 8, kArray = 9;  // Of metadata.

// ggml's table (ggml.c, type_traits): each `elements` of a row take `bytes`.
struct GgmlType {
  absl::string_view name;  // Empty: removed from the format.
  uint64_t elements = 1;
  uint64_t bytes = 0;
  DType dtype = DType::kU8;
};

// Indexed by the type's number.
constexpr GgmlType kTypes[] = {
    {"F32", 1, 4, DType::kF32},
    {"F16", 1, 2, DType::kF16},
    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},
    {},
    {},
    {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},
    {"Q8_0", 32, 34},
    {"Q8_1", 32, 36},
    {"Q2_K", 256, 84},
    {"Q3_K", 256, 110},
    {"Q4_K", 256, 144},
    {"Q5_K", 256, 176},
    {"Q6_K", 256, 210},
    {"Q8_K", 256, 292},
    {"IQ2_XXS", 256, 66},
    {"IQ2_XS", 256, 74},
    {"IQ3_XXS", 256, 98},
    {"IQ1_S", 256, 50},
    {"IQ4_NL", 32, 18},
    {"IQ3_S", 256, 110},
    {"IQ2_S", 256, 82},
    {"IQ4_XS", 256, 136},
    {"I8", 1, 1, DType::kI8},
    {"I16", 1, 2, DType::kI16},
    {"I32", 1, 4, DType::kI32},
    {"I64", 1, 8, DType::kI64},
    {"F64", 1, 8, DType::kF64},
    {"IQ1_M", 256, 56},
    {"BF16", 1, 2, DType::kBF16},
    {},
    {},
    {},
    {"TQ1_0", 256, 54},
    {"TQ2_0", 256, 66},
    {},
    {},
    {},
    {"MXFP4", 32, 17},
    {"NVFP4", 64, 36},
    {"Q1_0", 128, 18},
    {"Q2_0", 64, 18},
};
constexpr uint32_t kTypeCount = std::size(kTypes);

// The bytes of a value of metadata; 0: no such type, a string or an array.
uint64_t ScalarBytes(uint32_t type) {
  constexpr uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

absl::Status BadPair(absl::string_view key, absl::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat("metadata key ", Quoted(key), ": ", rule));
}

// Reads a header front to back. A read past the prefix fails with OutOfRange,
// and then wanted() is how many bytes it takes at least.
class GgufReader {
 public:
  GgufReader(absl::string_view prefix, uint64_t file_bytes)
      : prefix_(prefix), file_bytes_(file_bytes) {}

  absl::StatusOr<FileHeader> Read();

  uint64_t at() const { return at_; }
  uint64_t wanted() const { return wanted_; }

 private:
  // The next `count` bytes of `what`.
  absl::StatusOr<absl::string_view> Take(uint64_t count,
                                         absl::string_view what);
  template <typename T>
  absl::Status Number(absl::string_view what, T& number);
  absl::StatusOr<absl::string_view> String(absl::string_view what,
                                           uint64_t most);
  absl::Status Start(uint64_t& tensors, uint64_t& pairs);
  absl::Status Pair();
  absl::Status Value(absl::string_view key, uint32_t type, int depth);
  absl::Status Array(absl::string_view key, int depth);
  // Keeps what hoistd uses of a scalar.
  absl::Status Keep(absl::string_view key, uint32_t type,
                    absl::string_view bytes);
  absl::Status Tensor();
  absl::StatusOr<GgmlType> Type(absl::string_view tensor, uint64_t dimensions);
  // Makes offsets the file's, and checks that tensors lie side by side.
  absl::Status Place();

  const absl::string_view prefix_;
  const uint64_t file_bytes_;
  uint64_t at_ = 0;
  uint64_t wanted_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  absl::flat_hash_set<absl::string_view> keys_;
  absl::flat_hash_set<absl::string_view> names_;
  FileHeader header_;
};

absl::StatusOr<absl::string_view> GgufReader::Take(uint64_t count,
                                                   absl::string_view what) {
  // `at_` is at most as large as the prefix, which is within the file.
  if (count > file_bytes_ - at_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the GGUF header is truncated: ", what, " at byte ", at_,
                     " takes ", count, " bytes, and the file ends at ",
                     file_bytes_, "; fetch it again"));
  }
  if (count > kMaxGgufHeaderBytes - at_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the GGUF header takes more than 100 MB: ", what,
                     " at byte ", at_, " takes ", count));
  }
  if (count > prefix_.size() - at_) {
    wanted_ = at_ + count;
    return absl::OutOfRangeError("the prefix ends within the header");
  }
  const absl::string_view taken = prefix_.substr(at_, count);
  at_ += count;
  return taken;
}

template <typename T>
absl::Status GgufReader::Number(absl::string_view what, T& number) {
  HOIST_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(sizeof(T), what));
  number = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    number |= T{static_cast<uint8_t>(bytes[i])} << (8 * i);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> GgufReader::String(absl::string_view what,
                                                     uint64_t most) {
  uint64_t bytes = 0;
  HOIST_RETURN_IF_ERROR(Number(what, bytes));
  if (bytes > most) {
    return absl::InvalidArgumentError(absl::StrCat(what, " at byte ", at_,
                                                   " has ", bytes, " bytes; ",
                                                   most, " are allowed"));
  }
  return Take(bytes, what);
}

absl::Status GgufReader::Start(uint64_t& tensors, uint64_t& pairs) {
  HOIST_ASSIGN_OR_RETURN(const absl::string_view magic,
                         Take(kGgufMagic.size(), "the magic"));
  if (magic != kGgufMagic) {
    return absl::InvalidArgumentError(
        "not a GGUF file: it does not begin with \"GGUF\"");
  }
  uint32_t version = 0;
  HOIST_RETURN_IF_ERROR(Number("the version", version));
  if ((version & 0xffff) == 0) {
    return absl::InvalidArgumentError(
        "the GGUF file is big-endian; convert it with gguf-convert-endian");
  }
  if (version != 2 && version != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("the GGUF file is of version ", version,
                     "; versions 2 and 3 are known: write it anew"));
  }
  HOIST_RETURN_IF_ERROR(Number("the count of tensors", tensors));
  HOIST_RETURN_IF_ERROR(Number("the count of metadata", pairs));
  if (tensors > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header names ", tensors, " tensors; at most ",
                     kMaxTensors, " are allowed: split the file"));
  }
  if (pairs > kMaxGgufPairs) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header has ", pairs, " metadata keys; at most ",
                     kMaxGgufPairs, " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status GgufReader::Pair() {
  HOIST_ASSIGN_OR_RETURN(const absl::string_view key,
                         String("a metadata key", kMaxGgufKeyBytes));
  if (!keys_.insert(key).second) return BadPair(key, "it is there twice");
  uint32_t type = 0;
  HOIST_RETURN_IF_ERROR(Number("a metadata type", type));
  return Value(key, type, 0);
}

absl::Status GgufReader::Value(absl::string_view key, uint32_t type,
                               int depth) {
  if (type == kArray) return Array(key, depth);
  if (type == kString) {
    return String("a metadata string", kMaxGgufHeaderBytes).status();
  }
  const uint64_t bytes = ScalarBytes(type);
  if (bytes == 0) {
    return BadPair(key, absl::StrCat("unknown type ", type, " of metadata"));
  }
  HOIST_ASSIGN_OR_RETURN(const absl::string_view value,
                         Take(bytes, "a metadata value"));
  return depth == 0 ? Keep(key, type, value) : absl::OkStatus();
}

absl::Status GgufReader::Array(absl::string_view key, int depth) {
  if (depth == kMaxGgufNesting) {
    return BadPair(key, absl::StrCat("arrays are nested more than ",
                                     kMaxGgufNesting, " deep"));
  }
  uint32_t type = 0;
  uint64_t count = 0;
  HOIST_RETURN_IF_ERROR(Number("a metadata type", type));
  HOIST_RETURN_IF_ERROR(Number("an array's length", count));
  if (const uint64_t each = ScalarBytes(type); each > 0) {
    if (count > file_bytes_ / each) {
      return BadPair(key, absl::StrCat("its array has ", count,
                                       " elements, more than the file"));
    }
    return Take(count * each, "an array").status();
  }
  if (type != kString && type != kArray) {
    return BadPair(key, absl::StrCat("unknown type ", type, " of metadata"));
  }
  // Each takes bytes of the file, so that a count that lies ends soon.
  for (uint64_t i = 0; i < count; ++i) {
    HOIST_RETURN_IF_ERROR(Value(key, type, depth + 1));
  }
  return absl::OkStatus();
}

absl::Status GgufReader::Keep(absl::string_view key, uint32_t type,
                              absl::string_view bytes) {
  constexpr uint32_t kUint16 = 2, kUint32 = 4;
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  }
  if (key == "general.alignment") {
    if (type != kUint32) return BadPair(key, "it is no uint32");
    if (value == 0 || (value & (value - 1)) != 0) {
      return BadPair(key, absl::StrCat(value, " is no power of two"));
    }
    alignment_ = value;
  }
  if (key != "split.no" && key != "split.count") return absl::OkStatus();
  if (type != kUint16) return BadPair(key, "it is no uint16");
  (key == "split.no" ? header_.part : header_.parts) =
      static_cast<uint32_t>(value);
  return absl::OkStatus();
}

absl::StatusOr<GgmlType> GgufReader::Type(absl::string_view tensor,
                                          uint64_t row) {
  uint32_t number = 0;
  HOIST_RETURN_IF_ERROR(Number("a tensor's type", number));
  if (number >= kTypeCount) {
    return BadTensor(tensor,
                     absl::StrCat("unknown type ", number,
                                  " of ggml's; update hoistd, or quantise "
                                  "the file to another type"));
  }
  const GgmlType& type = kTypes[number];
  if (type.name.empty()) {
    return BadTensor(tensor, absl::StrCat("ggml removed its type ", number,
                                          "; quantise the file anew"));
  }
  if (row % type.elements != 0) {
    return BadTensor(
        tensor,
        absl::StrCat("its rows have ", row, " elements, and ", type.name,
                     " has blocks of ", type.elements, ": quantise it anew"));
  }
  return type;
}

absl::Status GgufReader::Tensor() {
  FileTensor tensor;
  HOIST_ASSIGN_OR_RETURN(const absl::string_view name,
                         String("a tensor's name", kLongestTensorName));
  HOIST_RETURN_IF_ERROR(ValidateTensorName(name));
  if (!names_.insert(name).second)
    return BadTensor(name, "the name is there twice");
  tensor.name = std::string(name);
  uint32_t rank = 0;
  HOIST_RETURN_IF_ERROR(Number("a tensor's dimensions", rank));
  if (rank > kMaxDimensions) {
    return BadTensor(name,
                     absl::StrCat("it has ", rank, " dimensions; at most ",
                                  kMaxDimensions, " are allowed"));
  }
  for (uint32_t i = 0; i < rank; ++i) {
    uint64_t dimension = 0;
    HOIST_RETURN_IF_ERROR(Number("a tensor's dimensions", dimension));
    if (dimension >
        static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return BadTensor(name, "a dimension is larger than 2^63 - 1");
    }
    tensor.shape.push_back(static_cast<int64_t>(dimension));
  }
  // ggml's order is the fastest first.
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  const uint64_t row =
      rank == 0 ? 1 : static_cast<uint64_t>(tensor.shape.back());
  HOIST_ASSIGN_OR_RETURN(const GgmlType type, Type(name, row));
  HOIST_RETURN_IF_ERROR(Number("a tensor's offset", tensor.file_offset));
  tensor.dtype = type.dtype;
  if (type.elements > 1) {
    tensor.block_type = std::string(type.name);
    int64_t& last = tensor.shape.back();
    if (__builtin_mul_overflow(static_cast<int64_t>(row / type.elements),
                               static_cast<int64_t>(type.bytes), &last)) {
      return BadTensor(name, "its shape overflows");
    }
  }
  const auto bytes = hoist::ContiguousBytes(tensor.dtype, tensor.shape);
  if (!bytes.has_value()) return BadTensor(name, "its shape overflows");
  tensor.bytes = *bytes;
  header_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status GgufReader::Place() {
  std::vector<FileTensor>& tensors = header_.tensors;
  std::sort(tensors.begin(), tensors.end(),
            [](const FileTensor& a, const FileTensor& b) {
              return std::tie(a.file_offset, a.bytes, a.name) <
                     std::tie(b.file_offset, b.bytes, b.name);
            });
  // Neither sum overflows: at_ is below 2^27, the alignment below 2^32.
  const uint64_t begin = *hoist::AlignUp(at_, alignment_);
  uint64_t end = 0;  // Of the last tensor and its padding, from `begin` on.
  for (FileTensor& tensor : tensors) {
    const uint64_t offset = tensor.file_offset;
    if (offset % alignment_ != 0) {
      return BadTensor(
          tensor.name,
          absl::StrCat("its offset ", offset, " is no multiple of ", alignment_,
                       ", the file's alignment"));
    }
    if (begin > file_bytes_ || offset > file_bytes_ - begin ||
        tensor.bytes > file_bytes_ - begin - offset) {
      return BadTensor(
          tensor.name,
          absl::StrCat("its bytes end past the file's end (", file_bytes_,
                       " bytes): fetch the file again"));
    }
    if (offset < end) {
      return BadTensor(tensor.name, "its bytes overlap another tensor's");
    }
    if (offset > end) {
      return BadTensor(tensor.name,
                       absl::StrCat("there is a hole of ", offset - end,
                                    " bytes before it"));
    }
    end = *hoist::AlignUp(offset + tensor.bytes, alignment_);
    tensor.file_offset += begin;
  }
  return absl::OkStatus();
}

absl::StatusOr<FileHeader> GgufReader::Read() {
  uint64_t tensors = 0, pairs = 0;
  HOIST_RETURN_IF_ERROR(Start(tensors, pairs));
  for (uint64_t i = 0; i < pairs; ++i) HOIST_RETURN_IF_ERROR(Pair());
  if (header_.parts > 0 && header_.part >= header_.parts) {
    return BadPair("split.no", absl::StrCat(header_.part, " is not below ",
                                            header_.parts, ", split.count"));
  }
  for (uint64_t i = 0; i < tensors; ++i) HOIST_RETURN_IF_ERROR(Tensor());
  HOIST_RETURN_IF_ERROR(Place());
  return std::move(header_);
}

}  // namespace

bool IsGguf(absl::string_view first_bytes) {
  return absl::StartsWith(first_bytes, kGgufMagic);
}

absl::StatusOr<GgufHeader> ParseGgufHeader(absl::string_view prefix,
                                           uint64_t file_bytes) {
  GgufReader reader(prefix.substr(0, file_bytes), file_bytes);
  absl::StatusOr<FileHeader> header = reader.Read();
  GgufHeader parsed;
  if (absl::IsOutOfRange(header.status())) {
    parsed.bytes = reader.wanted();
    return parsed;
  }
  if (!header.ok()) return header.status();
  parsed.bytes = reader.at();
  parsed.header = *std::move(header);
  return parsed;
}

}  // namespace hoistd
