#ifndef HOIST_DAEMON_BASE_START_THREAD_H_
#define HOIST_DAEMON_BASE_START_THREAD_H_

#include <system_error>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hoistd {

// The one place where threads begin: std::thread throws where the system has
// none for this process. ResourceExhausted: a limit of tasks or memory, and how
// to raise it. PermissionDenied: a seccomp profile.
absl::StatusOr<std::thread> StartThread(absl::AnyInvocable<void()> body);

// The same error, where there is no room for so many at once: before a library
// starts its own, and says nothing of those that it lacks.
absl::Status TryThreads(int threads);

// The same error, of a library that starts its threads itself, and throws.
absl::Status NoThread(const std::system_error& thrown);

// The same, of fork: `error` is errno, `what` was to be done.
absl::Status NoTask(int error, absl::string_view what);

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_START_THREAD_H_
