// absl::Status, with a few helpers that Debian's Abseil lacks.
#ifndef HOIST_DAEMON_BASE_STATUS_H_
#define HOIST_DAEMON_BASE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "hoist/shared/status.h"

namespace hoistd {

// The only place that converts shared/'s errors to Abseil's.
absl::Status ToAbsl(const hoist::Status& status);

template <typename T>
absl::StatusOr<T> ToAbsl(hoist::Result<T> result) {
  if (!result.ok()) return ToAbsl(result.status());
  return std::move(result).value();
}

// True: this process, or the system, has no descriptors left.
bool OutOfFds(int error);

// errno as a Status; the mapping is shared/'s.
absl::Status ErrnoToStatus(int error, absl::string_view what);

// Prefixes the message with `context`. Added once, where it is known.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace hoistd

#define HOIST_RETURN_IF_ERROR(expr)                               \
  do {                                                            \
    if (absl::Status hoist_status_ = (expr); !hoist_status_.ok()) \
      return hoist_status_;                                       \
  } while (false)

#define HOIST_CONCAT_INNER_(a, b) a##b
#define HOIST_CONCAT_(a, b) HOIST_CONCAT_INNER_(a, b)
#define HOIST_ASSIGN_OR_RETURN(lhs, expr) \
  HOIST_ASSIGN_OR_RETURN_INNER_(HOIST_CONCAT_(hoist_or_, __LINE__), lhs, expr)
#define HOIST_ASSIGN_OR_RETURN_INNER_(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return std::move(tmp).status();      \
  lhs = *std::move(tmp)

#endif  // HOIST_DAEMON_BASE_STATUS_H_
