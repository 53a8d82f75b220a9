#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/convert/types_convert.h"
#include "hoist/shared/dtype.h"
#include "hoist/shared/image_layout.h"
#include "hoist/shared/printable.h"

namespace hoistd {
namespace {

absl::Status Invalid(absl::string_view what, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(what, " ", why));
}

// True: `text` is well-formed UTF-8. Protobuf C++ checks this in its parser;
// this check is for other callers, and cheap.
bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t bytes =
        hoist::FirstCodePoint({text.data(), text.size()}).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

absl::Status CheckText(absl::string_view what, absl::string_view text,
                       size_t max_bytes) {
  if (text.size() > max_bytes) {
    return Invalid(what, absl::StrCat("is ", text.size(), " bytes; at most ",
                                      max_bytes, " are allowed"));
  }
  if (text.find('\0') != absl::string_view::npos) {
    return Invalid(what, "holds a NUL byte");
  }
  if (!IsUtf8(text)) return Invalid(what, "is not valid UTF-8");
  return absl::OkStatus();
}

absl::Status CheckShape(absl::string_view what,
                        const google::protobuf::RepeatedField<int64_t>& shape) {
  if (shape.size() > kMaxRank) {
    return Invalid(what, absl::StrCat("has ", shape.size(),
                                      " dimensions; at most ", kMaxRank));
  }
  for (int64_t size : shape) {
    if (size < 0) return Invalid(what, "has a negative dimension");
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> TensorFromProto(const pb::Tensor& in,
                                       uint64_t image_bytes) {
  HOIST_RETURN_IF_ERROR(
      CheckText("a tensor's name", in.name(), kMaxTensorNameBytes));
  const std::string what = absl::StrCat("tensor \"", in.name(), "\"");
  Tensor tensor;
  tensor.name = in.name();
  const auto dtype = hoist::DTypeFromNumber(in.dtype());
  if (!dtype.has_value()) {
    return Invalid(what, absl::StrCat("has no known dtype (", in.dtype(), ")"));
  }
  tensor.dtype = *dtype;
  HOIST_RETURN_IF_ERROR(CheckShape(what, in.shape()));
  if (in.strides_size() != 0 && in.strides_size() != in.shape_size()) {
    return Invalid(
        what, absl::StrCat("has ", in.strides_size(), " strides for ",
                           in.shape_size(), " dimensions; give all or none"));
  }
  for (int64_t stride : in.strides()) {
    if (stride < 0) return Invalid(what, "has a negative stride");
  }
  // No sum below can overflow: the size is compared with the remaining bytes.
  if (in.offset_bytes() > image_bytes ||
      in.size_bytes() > image_bytes - in.offset_bytes()) {
    return Invalid(what, absl::StrCat("lies outside the image of ", image_bytes,
                                      " bytes: ", in.size_bytes(),
                                      " bytes at offset ", in.offset_bytes()));
  }
  tensor.shape.assign(in.shape().begin(), in.shape().end());
  tensor.strides.assign(in.strides().begin(), in.strides().end());
  tensor.offset = in.offset_bytes();
  tensor.bytes = in.size_bytes();
  return tensor;
}

absl::StatusOr<GroupingSpec> ExplicitGroups(const pb::Grouping& grouping,
                                            GroupingSpec spec) {
  if (grouping.groups().empty() ||
      grouping.groups_size() > kMaxGroupsPerModel) {
    return Invalid(
        "grouping.groups",
        absl::StrCat("has ", grouping.groups_size(),
                     " groups; RULE_EXPLICIT needs 1 to ", kMaxGroupsPerModel));
  }
  int64_t tensors = 0;
  absl::flat_hash_set<std::string> seen;
  for (const pb::Grouping::Named& named : grouping.groups()) {
    NamedGroup group;
    HOIST_ASSIGN_OR_RETURN(
        group.name,
        NameFromProto("a group's name", named.name(), kMaxGroupNameBytes));
    if (!seen.insert(group.name).second) {
      return Invalid("grouping.groups",
                     absl::StrCat("names group \"", group.name, "\" twice"));
    }
    tensors += named.tensors_size();
    if (tensors > kMaxTensorsPerModel) {
      return Invalid(
          "grouping.groups",
          absl::StrCat("names more than ", kMaxTensorsPerModel, " tensors"));
    }
    for (const std::string& tensor : named.tensors()) {
      HOIST_RETURN_IF_ERROR(
          CheckText("a tensor's name", tensor, kMaxTensorNameBytes));
      group.tensors.push_back(tensor);
    }
    spec.groups.push_back(std::move(group));
  }
  return spec;
}

}  // namespace

absl::StatusOr<Content> ContentFromProto(absl::string_view content) {
  Content out;
  if (content.size() != out.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("content has ", content.size(),
                     " bytes; it is a SHA-256, of ", out.size()));
  }
  std::copy(content.begin(), content.end(), out.begin());
  return out;
}

absl::StatusOr<std::string> NameFromProto(absl::string_view what,
                                          absl::string_view name,
                                          size_t max_bytes) {
  if (name.empty()) return Invalid(what, "is empty");
  HOIST_RETURN_IF_ERROR(CheckText(what, name, max_bytes));
  return std::string(name);
}

absl::StatusOr<std::optional<Readers>> ReadersFromProto(pb::Readers readers) {
  switch (static_cast<int>(readers)) {
    case pb::READERS_UNSPECIFIED:
      return std::optional<Readers>();
    case pb::READERS_OWNER:
      return std::optional<Readers>(Readers::kOwner);
    case pb::READERS_EVERYONE:
      return std::optional<Readers>(Readers::kEveryone);
  }
  return Invalid("readers", absl::StrCat("is ", static_cast<int>(readers),
                                         "; use READERS_OWNER or "
                                         "READERS_EVERYONE"));
}

absl::StatusOr<TierAt> TierFromProto(pb::Tier tier, uint32_t device,
                                     std::optional<TierAt> fallback) {
  switch (static_cast<int>(tier)) {
    case pb::TIER_UNSPECIFIED:
      if (fallback.has_value()) return *fallback;
      return Invalid("tier", "is not set; use TIER_DEVICE or TIER_HOST");
    case pb::TIER_DEVICE:
      return OnDevice(DeviceIndex(device));
    case pb::TIER_HOST:
      return OnHost();
    case pb::TIER_DISK:
      return OnDisk();
  }
  return Invalid("tier", absl::StrCat("is ", static_cast<int>(tier),
                                      "; use TIER_DEVICE or TIER_HOST"));
}

absl::StatusOr<Group> GroupFromProto(const pb::Group& in) {
  Group group;
  HOIST_ASSIGN_OR_RETURN(
      group.name,
      NameFromProto("the group's name", in.name(), kMaxGroupNameBytes));
  const std::string what = absl::StrCat("group \"", group.name, "\"");
  if (in.tensors_size() > kMaxTensorsPerModel) {
    return Invalid(what,
                   absl::StrCat("has ", in.tensors_size(), " tensors; at most ",
                                kMaxTensorsPerModel));
  }
  if (in.image_bytes() > hoist::kMaxImageBytes ||
      in.image_bytes() % hoist::kImageAlignment != 0) {
    return Invalid(what, absl::StrCat("has an image of ", in.image_bytes(),
                                      " bytes; it must be a multiple of ",
                                      hoist::kImageAlignment, ", at most ",
                                      hoist::kMaxImageBytes));
  }
  group.image_bytes = in.image_bytes();
  group.tensors.reserve(in.tensors_size());
  absl::flat_hash_set<std::string> seen;
  for (const pb::Tensor& tensor : in.tensors()) {
    absl::StatusOr<Tensor> made = TensorFromProto(tensor, group.image_bytes);
    if (!made.ok()) return Annotate(made.status(), what);
    if (!seen.insert(made->name).second) {
      return Invalid(what,
                     absl::StrCat("names tensor \"", made->name, "\" twice"));
    }
    group.tensors.push_back(*std::move(made));
  }
  return group;
}

absl::StatusOr<GroupingSpec> GroupingFromProto(const pb::Grouping& grouping) {
  GroupingSpec spec;
  switch (static_cast<int>(grouping.rule())) {
    case pb::Grouping::RULE_UNSPECIFIED:
    case pb::Grouping::RULE_BLOCK:
      spec.rule = GroupingRule::kBlock;
      break;
    case pb::Grouping::RULE_MODULE:
      spec.rule = GroupingRule::kModule;
      break;
    case pb::Grouping::RULE_WHOLE:
      spec.rule = GroupingRule::kWhole;
      break;
    case pb::Grouping::RULE_EXPLICIT:
      spec.rule = GroupingRule::kExplicit;
      return ExplicitGroups(grouping, std::move(spec));
    default:
      return Invalid("grouping.rule",
                     absl::StrCat("is ", static_cast<int>(grouping.rule()),
                                  "; use RULE_BLOCK, RULE_MODULE, RULE_WHOLE "
                                  "or RULE_EXPLICIT"));
  }
  if (grouping.groups_size() != 0) {
    return Invalid("grouping.groups", "is set; only RULE_EXPLICIT takes it");
  }
  return spec;
}

absl::StatusOr<std::vector<JoinedTensor>> JoinedFromProto(
    const google::protobuf::RepeatedPtrField<pb::JoinedTensor>& joined) {
  std::vector<JoinedTensor> all;
  int64_t parts = 0;
  for (const pb::JoinedTensor& in : joined) {
    JoinedTensor tensor;
    HOIST_ASSIGN_OR_RETURN(tensor.name,
                           NameFromProto("a joined tensor's name", in.name(),
                                         kMaxTensorNameBytes));
    const std::string what = absl::StrCat("joined tensor \"", in.name(), "\"");
    HOIST_RETURN_IF_ERROR(CheckShape(what, in.shape()));
    tensor.shape.assign(in.shape().begin(), in.shape().end());
    parts += in.parts_size();
    if (parts > kMaxTensorsPerModel) {
      return Invalid("joined", absl::StrCat("has more than ",
                                            kMaxTensorsPerModel, " parts"));
    }
    for (const pb::JoinedTensor::Part& part : in.parts()) {
      HOIST_RETURN_IF_ERROR(
          CheckText("a part's name", part.tensor(), kMaxTensorNameBytes));
      tensor.parts.push_back({part.tensor(), part.offset_bytes(),
                              part.size_bytes(), part.count(),
                              part.stride_bytes()});
    }
    all.push_back(std::move(tensor));
  }
  return all;
}

absl::StatusOr<ShareOptions> ShareFromProto(const pb::Share& share) {
  ShareOptions options;
  if (share.weight() > 0) options.weight = share.weight();
  options.priority = share.priority();
  options.max_bytes_per_second = share.max_bytes_per_second();
  HOIST_RETURN_IF_ERROR(CheckShare(options));
  return options;
}

absl::Status CheckShare(const ShareOptions& share) {
  if (share.weight < 1 || share.weight > ShareOptions::kMaxWeight) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight is ", share.weight, "; 1 to ",
                     ShareOptions::kMaxWeight, " are allowed"));
  }
  if (share.priority > ShareOptions::kMaxPriority ||
      share.priority < -ShareOptions::kMaxPriority) {
    return absl::InvalidArgumentError(absl::StrCat(
        "priority is ", share.priority, "; ", -ShareOptions::kMaxPriority,
        " to ", ShareOptions::kMaxPriority, " are allowed"));
  }
  return absl::OkStatus();
}

absl::Duration DeadlineFromProto(uint64_t deadline_ms) {
  const int64_t most = absl::ToInt64Milliseconds(kMaxDeadline);
  if (deadline_ms >= static_cast<uint64_t>(most)) return kMaxDeadline;
  return absl::Milliseconds(static_cast<int64_t>(deadline_ms));
}

}  // namespace hoistd
