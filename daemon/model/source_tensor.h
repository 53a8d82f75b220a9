// Where a model's tensors lie in its files.
//
// Most are a file's own. A joined tensor is made of several of them, or of
// parts of them, end to end: experts that are stored one by one and computed
// with as one, fused projections, or the parts of one that was stored fused.
#ifndef HOIST_DAEMON_MODEL_SOURCE_TENSOR_H_
#define HOIST_DAEMON_MODEL_SOURCE_TENSOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/model/tensor.h"
#include "hoist/shared/dtype.h"

namespace hoistd {

// Bytes of a file's tensor: a run of them, or `count` runs that are as long and
// lie `stride` apart, from first byte to first byte.
struct JoinedPart {
  std::string tensor;
  uint64_t offset = 0;
  uint64_t bytes = 0;  // Of a run. 0: up to the tensor's end.
  uint64_t count = 0;  // 0: one run.
  uint64_t stride = 0;
};

// Of all joined tensors of a model: 32 bytes each in the books.
inline constexpr uint64_t kMaxJoinedRuns = uint64_t{1} << 22;

struct JoinedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<JoinedPart> parts;
};

struct SourceTensor {
  std::string name;
  hoist::DType dtype = hoist::DType::kUnspecified;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  std::string block_type;  // As Tensor's; of a joined one: all its parts'.
  bool joined = false;
  // Of the files' sheets; image_offset is from the tensor's first byte. Runs
  // that touch in sheet and tensor are one; none of them is empty.
  std::vector<SourceRun> runs;
  std::vector<SheetRange> reaches;  // Of parts with several runs, one each.
};

// Adds a run behind the others, or to the last if in sheet and image only
// padding lies between them. Empty ones are left out.
void AppendRun(const SourceRun& run, std::vector<SourceRun>& runs);

// The files' `tensors` (names, each once, in file order) with the joined ones
// in the place of the first of their parts, and without the parts.
//
// InvalidArgument: a part of no tensor, or outside of its tensor; parts of
// different types, or that cut an element; runs that overlap; together not as
// many bytes as the shape says; a name that is taken; more than kMaxJoinedRuns.
absl::StatusOr<std::vector<SourceTensor>> JoinTensors(
    std::vector<SourceTensor> tensors, const std::vector<JoinedTensor>& joined);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_SOURCE_TENSOR_H_
