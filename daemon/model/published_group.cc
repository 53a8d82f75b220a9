#include "daemon/model/published_group.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/sha256.h"
#include "daemon/base/status.h"
#include "daemon/model/file_header.h"
#include "daemon/model/model_name.h"
#include "hoist/shared/image_layout.h"

namespace hoistd {
namespace {

// Bytes from a tensor's first element to the end of its last one.
std::optional<uint64_t> SpannedBytes(const Tensor& tensor) {
  if (tensor.strides.empty()) {
    return hoist::ContiguousBytes(tensor.dtype, tensor.shape);
  }
  // No view can be taken of parts of bytes.
  if (hoist::BitsOf(tensor.dtype) % 8 != 0) return std::nullopt;
  return hoist::SpanBytes(tensor.dtype, tensor.shape, tensor.strides);
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

ContentPlan PlanContent(const Group& group) {
  ContentPlan plan;
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, uint32_t> known;
  uint64_t bytes = 0;
  for (const Tensor& tensor : group.tensors) {
    const auto [at, is_new] =
        known.try_emplace({tensor.offset, tensor.bytes},
                          static_cast<uint32_t>(plan.ranges.size()));
    plan.range_of.push_back(at->second);
    if (!is_new) continue;
    plan.ranges.push_back({tensor.offset, tensor.bytes});
    bytes += tensor.bytes;
    // Views of one range are usual; more than this is somebody's joke, which
    // must not cost more than its bytes.
    if (bytes > 2 * group.image_bytes) break;
  }
  if (bytes > 2 * group.image_bytes) {
    plan.range_of.clear();
    plan.ranges = {{0, group.image_bytes}};
  }
  for (uint32_t range = 0; range < plan.ranges.size(); ++range) {
    for (uint64_t at = 0; at < plan.ranges[range].bytes;
         at += kContentPieceBytes) {
      plan.pieces.push_back(
          {plan.ranges[range].offset + at,
           std::min(kContentPieceBytes, plan.ranges[range].bytes - at)});
      plan.range_of_piece.push_back(range);
    }
  }
  return plan;
}

Content GroupContent(const Group& group, const ContentPlan& plan,
                     std::span<const Content> digests) {
  std::vector<Content> ranges;
  size_t piece = 0;
  for (uint32_t range = 0; range < plan.ranges.size(); ++range) {
    Sha256 hasher;
    for (; piece < digests.size() && plan.range_of_piece[piece] == range;
         ++piece) {
      hasher.Bytes(std::as_bytes(std::span(digests[piece])));
    }
    ranges.push_back(hasher.Finish());
  }
  const bool whole = plan.range_of.empty();
  Sha256 hasher;
  hasher.String(whole ? "hoist group image 2" : "hoist group 2");
  hasher.String(group.name).Number(group.tensors.size());
  for (size_t i = 0; i < group.tensors.size(); ++i) {
    const Tensor& tensor = group.tensors[i];
    const std::string_view dtype = hoist::NameOf(tensor.dtype);
    hasher.String(tensor.name).String({dtype.data(), dtype.size()});
    hasher.Number(tensor.shape.size());
    for (const int64_t d : tensor.shape) {
      hasher.Number(static_cast<uint64_t>(d));
    }
    // A checked tensor's contiguous strides do not overflow.
    for (const int64_t s : tensor.strides.empty()
                               ? *hoist::ContiguousStrides(tensor.shape)
                               : tensor.strides) {
      hasher.Number(static_cast<uint64_t>(s));
    }
    hasher.Number(tensor.bytes);
    if (whole) hasher.Number(tensor.offset);
    hasher.Bytes(
        std::as_bytes(std::span(ranges[whole ? 0 : plan.range_of[i]])));
  }
  return hasher.Finish();
}

Content ModelContent(std::vector<Content> groups) {
  std::sort(groups.begin(), groups.end());
  Sha256 hasher;
  hasher.String("hoist model 2").Number(groups.size());
  for (const Content& group : groups) {
    hasher.Bytes(std::as_bytes(std::span(group)));
  }
  return hasher.Finish();
}

Content ContentOf(const ModelSpec& model) {
  return model.published ? ModelContent(model.group_contents) : model.content;
}

std::shared_ptr<const ModelSpec> WithPlaces(const ModelSpec& model,
                                            uint32_t groups) {
  auto padded = std::make_shared<ModelSpec>(model);
  if (groups <= model.groups.size()) return padded;
  const auto missing = std::make_shared<const Group>();
  padded->book_bytes +=
      (groups - padded->groups.size()) * BookBytesOf(*missing);
  padded->groups.resize(groups, missing);
  padded->group_contents.resize(groups);
  return padded;
}

absl::StatusOr<std::shared_ptr<const ModelSpec>> WithGroup(
    const ModelSpec& model, GroupIndex place,
    std::shared_ptr<const Group> group, const Content& content) {
  const size_t at = place.number();
  if (at > model.groups.size()) {
    return absl::OutOfRangeError(absl::StrCat("model ", model.name, " has ",
                                              model.groups.size(),
                                              " groups and no place ", at));
  }
  if (at < model.groups.size() && !IsMissing(*model.groups[at])) {
    return absl::AlreadyExistsError(
        absl::StrCat("model ", model.name, " has a group ",
                     Quoted(model.groups[at]->name), " at ", at, " already"));
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
  grown->book_bytes += BookBytesOf(*group);
  if (at < grown->groups.size()) {
    grown->book_bytes -= BookBytesOf(*grown->groups[at]);
  } else {
    grown->groups.emplace_back();
    grown->group_contents.emplace_back();
  }
  grown->groups[at] = std::move(group);
  grown->group_contents[at] = content;
  return grown;
}

}  // namespace hoistd
