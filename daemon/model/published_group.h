// Groups that clients hand over: what they say is checked here.
#ifndef HOIST_DAEMON_MODEL_PUBLISHED_GROUP_H_
#define HOIST_DAEMON_MODEL_PUBLISHED_GROUP_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/model/model.h"
#include "daemon/model/tensor.h"
#include "daemon/types/ranges.h"

namespace hoistd {

inline constexpr size_t kMaxTensorsPerGroup = 100'000;

// A published group must have: a name; 1 to kMaxTensorsPerGroup tensors with
// distinct names; an image of whole pages; each tensor's elements, as shape and
// strides place them, within its `bytes`, and those within the image, at a
// multiple of the element's size. Sub-byte tensors are contiguous. Tensors may
// overlap: aliases (tied weights, views) are entries that point at the same
// bytes. Its source runs are dropped. InvalidArgument names the tensor.
absl::StatusOr<std::shared_ptr<const Group>> CheckPublishedGroup(Group group);

inline constexpr uint64_t kContentPieceBytes = uint64_t{16} << 20;

// What of a group's image is to be hashed: each tensor's bytes, once where
// several tensors are the same bytes. So the image's layout does not matter,
// and whoever has the tensors can know the content without it. Where tensors
// overlap so much that this is more than twice the image, it is the image, as
// one range, and the content is one that nobody else can know.
struct ContentPlan {
  std::vector<ByteRange> ranges;
  std::vector<uint32_t> range_of;  // Of each tensor; empty: the whole image.
  // The ranges in order, each cut from its first byte on into parts of
  // kContentPieceBytes, which different threads can hash.
  std::vector<ByteRange> pieces;
  std::vector<uint32_t> range_of_piece;
};
ContentPlan PlanContent(const Group& group);

// What a published group is: SHA-256 of the fields
//   "hoist group 2", name, number of tensors;
//   of each: name, safetensors' name of its type, number of dimensions, the
//   dimensions, the strides (in elements), the bytes that its elements span,
//   and the SHA-256 of its pieces' SHA-256s.
// Numbers and strings go in as Sha256 puts them. `digests`: of plan.pieces.
// Python computes the same (client/python/hoist/nn/_store/hand_over.py).
Content GroupContent(const Group& group, const ContentPlan& plan,
                     std::span<const Content> digests);

// What a published model is: SHA-256 of "hoist model 2", the number of groups
// and their contents in ascending order.
Content ModelContent(std::vector<Content> groups);

// Two models of one content have the same weights in the same groups. Of a
// published model: ModelContent, in a time as it has groups. Its first half is
// the model's fingerprint, for people and logs; nothing is found by it.
Content ContentOf(const ModelSpec& model);

// Keeps the place of a published group that no tier had when hoistd began, so
// that the others have the indexes that workers know. It has no name, no
// tensors and no bytes; its owner's quota pays for the place.
inline bool IsMissing(const Group& group) { return group.name.empty(); }

// The model with missing groups at its end, until it has so many.
std::shared_ptr<const ModelSpec> WithPlaces(const ModelSpec& model,
                                            uint32_t groups);

// The model with the group, of a new name, at `place`. AlreadyExists: it has a
// group there. OutOfRange: the place is beyond its end. FailedPrecondition: it
// is read from files. ResourceExhausted: over kMaxTensors tensors.
absl::StatusOr<std::shared_ptr<const ModelSpec>> WithGroup(
    const ModelSpec& model, GroupIndex place,
    std::shared_ptr<const Group> group, const Content& content);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_PUBLISHED_GROUP_H_
