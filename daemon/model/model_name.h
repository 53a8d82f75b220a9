// What models, groups and tensors may be called. Names come from clients and
// files: hostile.
#ifndef HOIST_DAEMON_MODEL_MODEL_NAME_H_
#define HOIST_DAEMON_MODEL_MODEL_NAME_H_

#include <compare>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/types/ids.h"

namespace hoistd {

inline constexpr size_t kLongestName = 512;  // Of a model or a group.
inline constexpr size_t kLongestTensorName = 4096;

// All return InvalidArgument with the rule that was broken.

// 1 to 512 bytes of UTF-8 without control characters, since they are printed
// to terminals and logs.
absl::Status ValidateGroupName(absl::string_view name);
// As a group's, and neither '/' nor ' ' at an end: "org/name" is usual, and
// "name/group" is how a group is shown. Nor digits and ':' at its beginning,
// which say whose another user's model is; nor '@', with which hoistd begins
// the names of what ends with a session.
absl::Status ValidateModelName(absl::string_view name);
// "@42/acts": what session 42 calls "acts", and what ends with it.
std::string NameOfSession(SessionId session, absl::string_view name);
// nullopt: the model outlives who published it.
std::optional<SessionId> EndsWith(absl::string_view name);
// 0 to 4,096 bytes of UTF-8 without NUL (names are C strings in the client's
// API). safetensors allows all else, the empty name included.
absl::Status ValidateTensorName(absl::string_view name);

// A user's model. A user has one of a name.
struct OwnedName {
  User owner;
  std::string name;

  auto operator<=>(const OwnedName&) const = default;
};

// The one rule for which model a name means, in every verb: whose and what it
// may be for `asker`, best first. "1000:llama" is user 1000's; "llama" is one's
// own, or else root's; never anybody else's, who could give it other weights.
// "a:llama" may be called so by oneself or root, and else is tenant a's.
std::vector<OwnedName> MeantBy(User asker, absl::string_view text);
// "1000:llama", or "a:llama" of tenant a.
std::string ToString(const OwnedName& model);

// Control characters become "\xNN", so that a name made from tensors' names is
// a valid group's name unless it is too long.
std::string EscapeControl(absl::string_view name);

}  // namespace hoistd

#endif  // HOIST_DAEMON_MODEL_MODEL_NAME_H_
