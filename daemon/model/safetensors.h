// The header of a safetensors file: 8 bytes of length, then JSON.
//
// The rules are those of the reference reader (safetensors/src/tensor.rs), and
// stricter where it is silent: a name or field that comes twice, a field that
// it would ignore and a name with a NUL byte are refused.
//
// Bounds:   the header is at most 100,000,000 bytes (the reference's limit),
//           1,000,000 tensors, 64 dimensions.
#ifndef HOIST_DAEMON_MODEL_SAFETENSORS_H_
#define HOIST_DAEMON_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "hoist/shared/dtype.h"

namespace hoistd {

inline constexpr uint64_t kSafetensorsLengthBytes = 8;
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr size_t kMaxTensors = 1'000'000;  // Of a file, and of a model.
inline constexpr size_t kMaxDimensions = 64;

struct SafetensorsTensor {
  std::string name;
  hoist::DType dtype = hoist::DType::kUnspecified;
  std::vector<int64_t> shape;
  uint64_t file_offset = 0;  // From the file's start, not the data's.
  uint64_t bytes = 0;
};

struct SafetensorsHeader {
  // By file offset. They cover the file from the header's end to its own end
  // without gap or overlap.
  std::vector<SafetensorsTensor> tensors;
  std::map<std::string, std::string> metadata;  // "__metadata__".
};

// How many bytes of JSON follow the file's first eight. InvalidArgument: the
// file is too short, or the length lies.
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::string_view first_bytes,
                                                uint64_t file_bytes);

// `json` is all of the header behind its length. InvalidArgument names the
// tensor and the rule.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         uint64_t file_bytes);

// `hostile` in quotes, escaped to printable ASCII, cut after 64 bytes: for
// errors and logs.
std::string Quoted(absl::string_view hostile);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_SAFETENSORS_H_
