// What a model file's header says of its tensors, whatever the file's format.
#ifndef HOIST_DAEMON_MODEL_FILE_HEADER_H_
#define HOIST_DAEMON_MODEL_FILE_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "hoist/shared/dtype.h"

namespace hoistd {

inline constexpr size_t kMaxTensors = 1'000'000;  // Of a file, and of a model.
inline constexpr size_t kMaxDimensions = 64;

struct FileTensor {
  std::string name;
  hoist::DType dtype = hoist::DType::kUnspecified;
  std::vector<int64_t> shape;
  uint64_t file_offset = 0;  // From the file's start, not the data's.
  uint64_t bytes = 0;
  std::string block_type;  // As Tensor's.
};

struct FileHeader {
  // By file offset. None overlaps another, and all lie behind the header.
  std::vector<FileTensor> tensors;
  // Where the file is a part of a set, as it says itself: which, of how many.
  uint32_t part = 0;
  uint32_t parts = 0;  // 0: of none.
};

// `hostile` in quotes, escaped to printable ASCII, cut after 64 bytes: for
// errors and logs.
std::string Quoted(absl::string_view hostile);
// InvalidArgument: the tensor breaks a rule.
absl::Status BadTensor(absl::string_view name, absl::string_view rule);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_FILE_HEADER_H_
