#include "daemon/keeper/keeper_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

namespace hoistd {

std::string KeeperLock(const std::string& folder) {
  return folder + "/keeper.lock";
}

KeeperWatch::KeeperWatch() {
  const char* folder = std::getenv(kKeeperFolderVariable);
  if (folder == nullptr) return;
  folder_ = folder;
  const char* pid = std::getenv(kKeeperPidVariable);
  if (pid != nullptr && std::atoi(pid) == Find()) Renew();
}

bool KeeperWatch::Gone() const {
  pollfd keeper = {keeper_.get(), POLLIN, 0};
  return !keeper_.valid() || poll(&keeper, 1, 0) > 0;
}

int KeeperWatch::Find() const {
  const hoist::UniqueFd lock(
      open(KeeperLock(folder_).c_str(), O_RDONLY | O_CLOEXEC));
  char text[32] = {};
  if (!lock.valid() || read(lock.get(), text, sizeof(text) - 1) <= 0) {
    return 0;
  }
  // Unlocked: the pid is stale, and may be another process's.
  if (flock(lock.get(), LOCK_SH | LOCK_NB) == 0) return 0;
  return std::atoi(text);
}

bool KeeperWatch::Renew() {
  const int pid = Find();
  if (pid == 0) return false;
  keeper_ = hoist::UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  return !Gone();
}

}  // namespace hoistd
