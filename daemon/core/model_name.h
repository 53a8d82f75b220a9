// What models, groups and tensors may be called. Names come from clients and
// files: hostile.
#ifndef HOIST_DAEMON_CORE_MODEL_NAME_H_
#define HOIST_DAEMON_CORE_MODEL_NAME_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace hoistd {

inline constexpr size_t kLongestName = 512;  // Of a model or a group.
inline constexpr size_t kLongestTensorName = 4096;

// All return InvalidArgument with the rule that was broken.

// 1 to 512 bytes of UTF-8 without control characters, since they are printed
// to terminals and logs.
absl::Status ValidateGroupName(absl::string_view name);
// As a group's, and neither '/' nor ' ' at an end: "org/name" is usual, and
// "name/group" is how a group is shown.
absl::Status ValidateModelName(absl::string_view name);
// 0 to 4,096 bytes of UTF-8 without NUL (names are C strings in the client's
// API). safetensors allows all else, the empty name included.
absl::Status ValidateTensorName(absl::string_view name);

// Control characters become "\xNN", so that a name made from tensors' names is
// a valid group's name unless it is too long.
std::string EscapeControl(absl::string_view name);

}  // namespace hoistd

#endif  // HOIST_DAEMON_CORE_MODEL_NAME_H_
