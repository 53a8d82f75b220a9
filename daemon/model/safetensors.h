// The header of a safetensors file: 8 bytes of length, then JSON.
//
// The rules are those of the reference reader (safetensors/src/tensor.rs), and
// stricter where it is silent: a name or field that comes twice, a field that
// it would ignore and a name with a NUL byte are refused.
//
// Bounds:   the header is at most 100,000,000 bytes (the reference's limit);
//           tensors and dimensions as file_header.h says.
#ifndef HOIST_DAEMON_MODEL_SAFETENSORS_H_
#define HOIST_DAEMON_MODEL_SAFETENSORS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/model/file_header.h"

namespace hoistd {

inline constexpr uint64_t kSafetensorsLengthBytes = 8;
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// How many bytes of JSON follow the file's first eight. InvalidArgument: the
// file is too short, or the length lies.
absl::StatusOr<uint64_t> SafetensorsHeaderBytes(absl::string_view first_bytes,
                                                uint64_t file_bytes);

// `json` is all of the header behind its length. Tensors cover the file from
// its end on, without a gap. InvalidArgument names the tensor and the rule.
absl::StatusOr<FileHeader> ParseSafetensorsHeader(absl::string_view json,
                                                  uint64_t file_bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_SAFETENSORS_H_
