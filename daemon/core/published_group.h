// Groups that clients hand over: what they say is checked here.
#ifndef HOIST_DAEMON_CORE_PUBLISHED_GROUP_H_
#define HOIST_DAEMON_CORE_PUBLISHED_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/core/model.h"
#include "daemon/core/tensor.h"

namespace hoistd {

inline constexpr size_t kMaxTensorsPerGroup = 100'000;

// A published group must have: a name; 1 to kMaxTensorsPerGroup tensors with
// distinct names; an image of whole pages; each tensor's elements, as shape and
// strides place them, within its `bytes`, and those within the image, at a
// multiple of the element's size. Sub-byte tensors are contiguous. Tensors may
// overlap: aliases (tied weights, views) are entries that point at the same
// bytes. Its source runs are dropped. InvalidArgument names the tensor.
absl::StatusOr<std::shared_ptr<const Group>> CheckPublishedGroup(Group group);

// Of the group's table and its image's bytes (XXH3-128 `content`).
Fingerprint PublishedFingerprint(const Group& group,
                                 const Fingerprint& content);

// The model with one more group; its fingerprint is that of its groups' in
// order. AlreadyExists: it has a group of that name. FailedPrecondition: it is
// read from files. ResourceExhausted: over kMaxTensors tensors.
absl::StatusOr<std::shared_ptr<const ModelSpec>> AppendGroup(
    const ModelSpec& model, std::shared_ptr<const Group> group,
    const Fingerprint& fingerprint);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_PUBLISHED_GROUP_H_
