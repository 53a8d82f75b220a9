#include "daemon/base/start_thread.h"

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

ptrdiff_t ThreadsOfThisProcess() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return std::distance(begin(tasks), end(tasks));
}

absl::Status NoThreadOf(int error) {
  return NoTask(
      error, absl::StrCat("start a thread beside the ", ThreadsOfThisProcess(),
                          " of this process"));
}

}  // namespace

absl::Status NoTask(int error, absl::string_view what) {
  const absl::Status why = hoistd::ErrnoToStatus(error, what);
  if (error == EPERM) {
    return Annotate(why, "a seccomp profile must allow clone3 and clone");
  }
  if (error != EAGAIN && error != ENOMEM) return why;
  return absl::ResourceExhaustedError(absl::StrCat(
      why.message(),
      "; raise the limit of tasks (systemd: TasksMax, containers: --pids-limit "
      "or podPidsLimit, ulimit -u) or of memory (ulimit -v)"));
}

absl::Status TryThreads(int threads) {
  absl::Notification over;
  std::vector<std::thread> tried;
  absl::Status status;
  while (status.ok() && std::ssize(tried) < threads) {
    absl::StatusOr<std::thread> one =
        StartThread([&over] { over.WaitForNotification(); });
    status = one.status();
    if (one.ok()) tried.push_back(*std::move(one));
  }
  over.Notify();
  for (std::thread& one : tried) one.join();
  return status;
}

absl::Status NoThread(const std::system_error& thrown) {
  return NoThreadOf(thrown.code().value());
}

absl::StatusOr<std::thread> StartThread(absl::AnyInvocable<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& thrown) {
    return NoThread(thrown);
  } catch (const std::bad_alloc&) {
    return NoThreadOf(ENOMEM);
  }
}

}  // namespace hoistd
