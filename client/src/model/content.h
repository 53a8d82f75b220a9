// What published groups and models are, as hoistd computes it
// (daemon/model/published_group.h defines it).
#ifndef HOIST_CLIENT_SRC_MODEL_CONTENT_H_
#define HOIST_CLIENT_SRC_MODEL_CONTENT_H_

#include <span>
#include <string_view>
#include <vector>

#include "client/src/base/sha256.h"
#include "client/src/model/published_image.h"
#include "hoist/shared/status.h"

namespace hoist {

// Of a group with these tensors, whose data the CPU can read: by up to 16
// threads, pieces of 16 MiB. hoistd computes another one for tensors that
// overlap so much that their bytes are more than twice the image's.
// InvalidArgument: a tensor without data, or a negative shape or stride.
Result<Sha256Digest> GroupContent(std::string_view name,
                                  std::span<const SourceTensor> tensors);

// Of a model with these groups.
Sha256Digest ModelContent(std::vector<Sha256Digest> groups);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_MODEL_CONTENT_H_
