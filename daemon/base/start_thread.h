#ifndef HOIST_DAEMON_BASE_START_THREAD_H_
#define HOIST_DAEMON_BASE_START_THREAD_H_

#include <system_error>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hoistd {

// The only place that starts threads: std::thread throws if the system refuses.
// ResourceExhausted: a limit of tasks or memory, and how to raise it.
// PermissionDenied: a seccomp profile.
absl::StatusOr<std::thread> StartThread(absl::AnyInvocable<void()> body);

// The same error if the system has no room for `threads` at once. For libraries
// that start their own threads, and do not report missing ones.
absl::Status TryThreads(int threads);

// The same error, for a library that starts threads itself, and throws.
absl::Status NoThread(const std::system_error& thrown);

// The same error, for fork: `error` is errno, `what` the purpose.
absl::Status NoTask(int error, absl::string_view what);

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_START_THREAD_H_
