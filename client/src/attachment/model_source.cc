#include "client/src/attachment/model_source.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "client/src/session/model_requests.h"

namespace hoist {
namespace {

constexpr int kMaxRank = 64;  // The request refuses a larger one.

Status OtherWeights(const std::string& what) {
  return Status(Code::kDataLoss,
                "hoistd has ended, and " + what +
                    " has other weights now than this attachment's; put the "
                    "old ones back, or free the attachment and attach anew");
}

bool SameGroup(const GroupEntry& a, const GroupEntry& b) {
  return a.tensors.size() == b.tensors.size() &&
         std::ranges::all_of(a.tensors, [&](const TensorEntry& one) {
           Result<uint32_t> there = b.FindTensor(one.name);
           return there.ok() && SameTensor(one, b.tensors[*there]);
         });
}

}  // namespace

SavedRegistration::SavedRegistration(const hoist_register_options& options)
    : options_(options) {
  options_.name = Keep(options.name);
  std::error_code failed;
  const auto path = std::filesystem::absolute(options.path, failed);
  options_.path = Keep(failed ? options.path : path.c_str());
  if (options.groups != nullptr) {
    groups_.assign(options.groups, options.groups + options.group_count);
    options_.groups = groups_.data();
  }
  for (hoist_group_spec& group : groups_) {
    group.name = Keep(group.name);
    if (group.tensors == nullptr) continue;
    auto& names =
        names_.emplace_back(group.tensors, group.tensors + group.tensor_count);
    for (const char*& name : names) name = Keep(name);
    group.tensors = names.data();
  }
  if (options.joined != nullptr) {
    joined_.assign(options.joined, options.joined + options.joined_count);
    options_.joined = joined_.data();
  }
  for (hoist_joined_tensor& joined : joined_) {
    joined.name = Keep(joined.name);
    if (joined.shape != nullptr && joined.rank > 0 && joined.rank <= kMaxRank) {
      joined.shape =
          shapes_.emplace_back(joined.shape, joined.shape + joined.rank).data();
    }
    if (joined.parts == nullptr) continue;
    auto& parts =
        parts_.emplace_back(joined.parts, joined.parts + joined.part_count);
    for (hoist_joined_part& part : parts) part.tensor = Keep(part.tensor);
    joined.parts = parts.data();
  }
}

const char* SavedRegistration::Keep(const char* text) {
  return text == nullptr ? nullptr : texts_.emplace_back(text).c_str();
}

Result<ModelSource> ModelSource::Create(
    const hoist_attachment_options& options) {
  const int sources = (options.name != nullptr) + (options.files != nullptr) +
                      (options.content != nullptr);
  if (sources != 1) {
    return Status(
        Code::kInvalidArgument,
        "an attachment has just one source, name, files or content; " +
            std::to_string(sources) + " are set");
  }
  ModelSource source;
  if (options.name != nullptr) {
    source.from_ = std::string(options.name);
  } else if (options.files != nullptr) {
    source.from_ = std::make_unique<const SavedRegistration>(*options.files);
  } else {
    std::copy_n(options.content, HOIST_CONTENT_BYTES,
                source.from_.emplace<Content>().begin());
  }
  return source;
}

Result<HeldModel> ModelSource::Ask(Session& session, bool* made) const {
  if (const auto* name = std::get_if<std::string>(&from_)) {
    return Describe(session, name->c_str());
  }
  if (const auto* files = std::get_if<Files>(&from_)) {
    const hoist_register_options& options = (*files)->options();
    if (options.name != nullptr) {  // Else the request is refused.
      const Status there = Describe(session, options.name).status();
      *made = there.code() == Code::kNotFound;
    }
    return Register(session, options);
  }
  return FindByContent(session, std::get<Content>(from_).data());
}

std::string ModelSource::Words() const {
  if (const auto* name = std::get_if<std::string>(&from_)) {
    return "the model \"" + *name + "\"";
  }
  if (const auto* files = std::get_if<Files>(&from_)) {
    return "the folder or file " + std::string((*files)->options().path);
  }
  return "the model of this content";
}

Result<HeldModel> ModelSource::Find(Session& session, const ModelTable* before,
                                    bool* made) const {
  Result<HeldModel> found = Ask(session, made);
  if (before == nullptr) return found;
  const bool files = std::holds_alternative<Files>(from_);
  if (!found.ok()) {
    const Code code = found.status().code();
    if (code == Code::kAlreadyExists && files) return OtherWeights(Words());
    if (code != Code::kNotFound) return found;
    return Status(Code::kNotFound,
                  "hoistd has ended, and its successor lacks the weights of " +
                      Words() +
                      "; publish them, or put the files back, and call again "
                      "(under systemd or hoist-keeper hoistd keeps published "
                      "ones): " +
                      found.status().message());
  }
  const ModelTable& now = *found->table;
  // A content is what was asked for, however its groups are numbered.
  if (std::holds_alternative<Content>(from_) ||
      now.facts().fingerprint == before->facts().fingerprint) {
    return found;
  }
  if (files) (void)session.Forget(now);  // It would block the name.
  return OtherWeights(Words());
}

Result<std::vector<uint32_t>> Renumber(const ModelTable& before,
                                       const ModelTable& now) {
  std::vector<uint32_t> numbers;
  for (const GroupEntry& group : before.groups()) {
    const auto there = now.FindGroup(group.name);
    if (!there.has_value() || !SameGroup(group, now.groups()[*there])) {
      return OtherWeights("group \"" + group.name + "\" of the model \"" +
                          now.facts().name + "\"");
    }
    numbers.push_back(*there);
  }
  return numbers;
}

}  // namespace hoist
