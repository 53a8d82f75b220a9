#include "daemon/base/status.h"

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace hoistd {

absl::Status ToAbsl(const hoist::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code()),
                      status.message());
}

bool OutOfFds(int error) { return error == EMFILE || error == ENFILE; }

absl::Status ErrnoToStatus(int error, absl::string_view what) {
  return ToAbsl(hoist::ErrnoStatus(error, {what.data(), what.size()}));
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(context, ": ", status.message()));
}

}  // namespace hoistd
