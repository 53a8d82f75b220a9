// Where an attachment finds its model, at first and after hoistd's end.
#ifndef HOIST_CLIENT_SRC_ATTACHMENT_MODEL_SOURCE_H_
#define HOIST_CLIENT_SRC_ATTACHMENT_MODEL_SOURCE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "client/src/session/session.h"
#include "hoist/c/attachment.h"
#include "hoist/shared/status.h"

namespace hoist {

// A copy of options and all that they point to. Bad ones stay bad, for the
// request to refuse. A relative path becomes absolute: the working directory
// may change.
class SavedRegistration {
 public:
  explicit SavedRegistration(const hoist_register_options& options);
  SavedRegistration(const SavedRegistration&) = delete;
  SavedRegistration& operator=(const SavedRegistration&) = delete;

  const hoist_register_options& options() const { return options_; }

 private:
  const char* Keep(const char* text);

  // Deques: what they hold stays in place.
  std::deque<std::string> texts_;
  std::deque<std::vector<const char*>> names_;
  std::deque<std::vector<int64_t>> shapes_;
  std::deque<std::vector<hoist_joined_part>> parts_;
  std::vector<hoist_group_spec> groups_;
  std::vector<hoist_joined_tensor> joined_;
  hoist_register_options options_;
};

// Threads:  immutable.
class ModelSource {
 public:
  // InvalidArgument: not just one source.
  static Result<ModelSource> Create(const hoist_attachment_options& options);

  // `before`: the model that was found at first; nullptr: none yet. `made`: set
  // if hoistd lacked the model, and has it of the files. DataLoss: it has other
  // weights. NotFound: it is gone.
  Result<HeldModel> Find(Session& session, const ModelTable* before,
                         bool* made) const;

 private:
  using Files = std::unique_ptr<const SavedRegistration>;
  using Content = std::array<uint8_t, HOIST_CONTENT_BYTES>;

  Result<HeldModel> Ask(Session& session, bool* made) const;
  std::string Words() const;

  std::variant<std::string, Files, Content> from_;  // A string: the name.
};

// The numbers of the groups of `before` in `now`. DataLoss: it lacks one, or a
// group has other tensors.
Result<std::vector<uint32_t>> Renumber(const ModelTable& before,
                                       const ModelTable& now);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_ATTACHMENT_MODEL_SOURCE_H_
