// What a model is made of, as plain values. Immutable once built.
#ifndef HOIST_DAEMON_MODEL_TENSOR_H_
#define HOIST_DAEMON_MODEL_TENSOR_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/base/sha256.h"
#include "daemon/types/ids.h"
#include "daemon/types/ranges.h"
#include "hoist/shared/dtype.h"

namespace hoistd {

struct Tensor {
  std::string name;
  hoist::DType dtype = hoist::DType::kUnspecified;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // In elements; empty: contiguous.
  uint64_t offset = 0;           // Bytes from the image's start.
  uint64_t bytes = 0;            // That its elements span.
  // Of a U8 tensor from GGUF: ggml's type of its packed blocks, "Q4_K".
  std::string block_type;
};

// A run of a source file's sheet and its place in the image.
struct SourceRun {
  SheetRange from;
  uint64_t image_offset = 0;

  uint64_t image_end() const { return image_offset + from.bytes; }
  bool operator==(const SourceRun&) const = default;
};

struct Group {
  std::string name;
  uint64_t image_bytes = 0;  // A multiple of 4 KiB.
  std::vector<Tensor> tensors;
  // Where the bytes come from, in image order; empty for published groups.
  // What lies between two tensors is padding, of any bytes that the group's
  // readers may read.
  std::vector<SourceRun> runs;
  // What lies on the host as a whole, though the runs are a part of it alone:
  // where they are many and short, such as a worker's columns of a matrix of
  // which its neighbours take the others. One by one they would take a page
  // each, and a neighbour's in between another.
  std::vector<SheetRange> reaches;
};

using Fingerprint = std::array<uint8_t, 16>;
// What weights are: a SHA-256, so that nobody can make others that have it.
using Content = Sha256Digest;

// The content's first half.
inline Fingerprint FingerprintOf(const Content& content) {
  Fingerprint fingerprint;
  std::copy_n(content.begin(), fingerprint.size(), fingerprint.begin());
  return fingerprint;
}

// What a file was when the model was registered; compared before its bytes are
// trusted again.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  Fingerprint header_hash = {};  // XXH3-128 of the file's header.

  auto operator<=>(const FileIdentity&) const = default;
};

enum class Readers { kOwner, kEveryone };

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_TENSOR_H_
