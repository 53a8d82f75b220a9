// The header of a GGUF file, version 2 or 3, little-endian: pairs of metadata,
// then the tensors (ggml's docs/gguf.md).
//
// The rules are those of the reference reader (ggml's gguf.cpp), and stricter
// where it is silent. As it does, this reader refuses a name or key that comes
// twice, and a hole between tensors; bytes behind the last one are fine. Wider
// than it are names, dimensions and nested arrays.
//
// Types: floats and integers are hoist's own. The blocks of quantised types
// stay packed: tensors of U8, whose last dimension is a row's bytes. So does
// ggml's reader for Python show them. `block_type` has the type's name.
//
// Bounds: constants below; tensors and dimensions as file_header.h says.
#ifndef HOIST_DAEMON_MODEL_GGUF_H_
#define HOIST_DAEMON_MODEL_GGUF_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/model/file_header.h"

namespace hoistd {

inline constexpr uint64_t kMaxGgufHeaderBytes = 100'000'000;
inline constexpr uint64_t kMaxGgufPairs = 65'536;  // Of metadata.
inline constexpr uint64_t kMaxGgufKeyBytes = 65'535;
inline constexpr int kMaxGgufNesting = 4;  // Of arrays.

struct GgufHeader {
  // More than there are in the prefix: it ends within the header, which has at
  // least so many, and nothing else is known.
  uint64_t bytes = 0;
  FileHeader header;
};

// No safetensors file begins so: its header would exceed the limit.
bool IsGguf(absl::string_view first_bytes);

// `prefix` is the file's beginning, all of it or not. InvalidArgument names the
// tensor and the rule.
absl::StatusOr<GgufHeader> ParseGgufHeader(absl::string_view prefix,
                                           uint64_t file_bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_GGUF_H_
