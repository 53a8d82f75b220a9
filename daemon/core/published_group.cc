#include "daemon/core/published_group.h"

#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/hash.h"
#include "daemon/base/status.h"
#include "daemon/core/model_name.h"
#include "daemon/core/safetensors.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

// Bytes from a tensor's first element to the end of its last one.
std::optional<uint64_t> SpannedBytes(const Tensor& tensor) {
  if (tensor.strides.empty()) {
    return hoist::ContiguousBytes(tensor.dtype, tensor.shape);
  }
  if (tensor.strides.size() != tensor.shape.size()) return std::nullopt;
  // No view can be taken of parts of bytes.
  if (hoist::BitsOf(tensor.dtype) % 8 != 0) return std::nullopt;
  uint64_t last = 0;  // Index of the last element.
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] < 0 || tensor.strides[i] < 0) return std::nullopt;
    if (tensor.shape[i] == 0) return 0;
    uint64_t reach;
    if (__builtin_mul_overflow(static_cast<uint64_t>(tensor.shape[i] - 1),
                               static_cast<uint64_t>(tensor.strides[i]),
                               &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return std::nullopt;
    }
  }
  if (last >= hoist::kMaxImageBytes) return std::nullopt;
  const int64_t elements[] = {static_cast<int64_t>(last + 1)};
  return hoist::ContiguousBytes(tensor.dtype, elements);
}

absl::Status CheckTensor(const Tensor& tensor, uint64_t image_bytes) {
  const auto bad = [&](absl::string_view rule) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(tensor.name), ": ", rule));
  };
  HOIST_RETURN_IF_ERROR(ValidateTensorName(tensor.name));
  if (!hoist::DTypeFromNumber(static_cast<int64_t>(tensor.dtype))) {
    return bad("it has no known dtype");
  }
  if (tensor.shape.size() > kMaxDimensions) {
    return bad(
        absl::StrCat("it has more than ", kMaxDimensions, " dimensions"));
  }
  const std::optional<uint64_t> spanned = SpannedBytes(tensor);
  if (!spanned.has_value()) {
    return bad(
        "its shape or strides are negative, do not match, overflow, or its "
        "bits do not fill whole bytes (sub-byte types take no strides)");
  }
  if (*spanned > tensor.bytes) {
    return bad(absl::StrCat("its elements span ", *spanned,
                            " bytes, size_bytes says ", tensor.bytes));
  }
  const uint64_t element = static_cast<uint64_t>(hoist::BitsOf(tensor.dtype));
  if (element >= 8 && tensor.offset % (element / 8) != 0) {
    return bad(absl::StrCat("its offset ", tensor.offset,
                            " is no multiple of its element's size"));
  }
  if (tensor.offset > image_bytes ||
      tensor.bytes > image_bytes - tensor.offset) {
    return bad("its bytes end past the image's end");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Group>> CheckPublishedGroup(Group group) {
  HOIST_RETURN_IF_ERROR(ValidateGroupName(group.name));
  if (group.tensors.empty() || group.tensors.size() > kMaxTensorsPerGroup) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group ", Quoted(group.name), " has ", group.tensors.size(),
        " tensors; 1 to ", kMaxTensorsPerGroup, " are allowed"));
  }
  if (group.image_bytes % hoist::kImageAlignment != 0 ||
      group.image_bytes > hoist::kMaxImageBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group ", Quoted(group.name), ": an image of ", group.image_bytes,
        " bytes; it must be a multiple of 4096, at most 2^46"));
  }
  absl::flat_hash_set<absl::string_view> names;
  for (const Tensor& tensor : group.tensors) {
    if (tensor.name.empty() || !names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(tensor.name),
                       tensor.name.empty() ? ": it has no name"
                                           : ": the name is there twice"));
    }
    HOIST_RETURN_IF_ERROR(CheckTensor(tensor, group.image_bytes));
  }
  group.runs.clear();
  return std::make_shared<Group>(std::move(group));
}

Fingerprint PublishedFingerprint(const Group& group,
                                 const Fingerprint& content) {
  Hasher hasher;
  hasher.String("hoist group 1").String(group.name).Number(group.image_bytes);
  hasher.Number(group.tensors.size());
  for (const Tensor& tensor : group.tensors) {
    hasher.String(tensor.name).Number(static_cast<uint64_t>(tensor.dtype));
    hasher.Number(tensor.shape.size());
    for (const int64_t d : tensor.shape) {
      hasher.Number(static_cast<uint64_t>(d));
    }
    hasher.Number(tensor.strides.size());
    for (const int64_t s : tensor.strides) {
      hasher.Number(static_cast<uint64_t>(s));
    }
    hasher.Number(tensor.offset).Number(tensor.bytes);
  }
  hasher.Bytes(std::as_bytes(std::span(content)));
  return hasher.Finish();
}

absl::StatusOr<std::shared_ptr<const ModelSpec>> AppendGroup(
    const ModelSpec& model, std::shared_ptr<const Group> group,
    const Fingerprint& fingerprint) {
  if (FindGroup(model, group->name).has_value()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "model ", model.name, " has a group ", Quoted(group->name)));
  }
  if (!model.published) {
    return absl::FailedPreconditionError(
        absl::StrCat("model ", model.name,
                     " is read from files; publish under another name"));
  }
  auto grown = std::make_shared<ModelSpec>(model);
  if (group->tensors.size() > kMaxTensors - grown->tensors ||
      __builtin_add_overflow(grown->image_bytes, group->image_bytes,
                             &grown->image_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("model ", model.name, " would have more than ",
                     kMaxTensors, " tensors; publish under another name"));
  }
  grown->tensors += static_cast<uint32_t>(group->tensors.size());
  grown->groups.push_back(std::move(group));
  grown->group_fingerprints.push_back(fingerprint);
  Hasher hasher;
  hasher.String("hoist published model 1");
  for (const Fingerprint& f : grown->group_fingerprints) {
    hasher.Bytes(std::as_bytes(std::span(f)));
  }
  grown->fingerprint = hasher.Finish();
  return grown;
}

}  // namespace hoistd
