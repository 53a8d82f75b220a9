// From the headers of a model's files to a ModelSpec.
#ifndef HOIST_DAEMON_MODEL_MODEL_BUILDER_H_
#define HOIST_DAEMON_MODEL_MODEL_BUILDER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/model/file_header.h"
#include "daemon/model/grouping.h"
#include "daemon/model/model.h"
#include "daemon/model/safetensors_index.h"
#include "daemon/model/source_tensor.h"
#include "daemon/model/tensor.h"

namespace hoistd {

struct ShardHeader {
  std::string name;       // The file's base name.
  FileIdentity identity;  // With the header's hash.
  FileHeader header;
};

struct BuildModelArgs {
  std::string name;
  std::vector<ShardHeader> shards;
  std::optional<SafetensorsIndex> index;
  std::vector<JoinedTensor> joined;
  GroupingSpec grouping;  // Of joined tensors, and of those that are no parts.
};

// The same files, joined tensors and grouping give the same spec and
// fingerprint. Inside a group, tensors lie in file order, so that a group is
// read front to back.
//
// With an index, shards it does not name are left out (folders may hold the
// weights in a second form); of the shards it names, every tensor is taken.
//
// InvalidArgument: no tensors, one name in two shards, or parts of a set
// without the others; index and shards do not agree; joined tensors
// (source_tensor.h) or the grouping do not fit; a name (model_name.h) is none.
// ResourceExhausted: a group is larger than an image may be.
absl::StatusOr<std::shared_ptr<const ModelSpec>> BuildModel(
    BuildModelArgs args);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_MODEL_BUILDER_H_
