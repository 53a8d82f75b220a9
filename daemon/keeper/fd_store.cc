#include "daemon/keeper/fd_store.h"

#include <fcntl.h>
#include <systemd/sd-daemon.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

// Limit of the wait until the holder has received the descriptors. PID 1 may be
// busy for seconds during boot.
constexpr uint64_t kPatienceUs = 10'000'000;

absl::Status Told(int result, absl::string_view what) {
  if (result > 0) return absl::OkStatus();
  if (result == 0) {
    return absl::FailedPreconditionError("$NOTIFY_SOCKET is not set");
  }
  return hoistd::ErrnoToStatus(-result, what);
}

class SdFdStore final : public FdStore {
 public:
  absl::Status Store(const std::string& name,
                     const std::vector<int>& fds) override {
    // FDPOLL=0: keep sockets whose peer has hung up.
    const std::string state =
        absl::StrCat("FDSTORE=1\nFDNAME=", name, "\nFDPOLL=0");
    HOIST_RETURN_IF_ERROR(
        Told(sd_pid_notify_with_fds(0, 0, state.c_str(), fds.data(),
                                    static_cast<unsigned>(fds.size())),
             "store descriptors"));
    return Told(sd_notify_barrier(0, kPatienceUs),
                "wait until descriptors are stored");
  }

  absl::Status Remove(const std::string& name) override {
    return Told(sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name.c_str()),
                "give stored descriptors back");
  }
};

}  // namespace

std::vector<HandedFd> TakeHandedFds() {
  std::vector<HandedFd> handed;
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  for (int i = 0; i < count; ++i) {
    const int fd = SD_LISTEN_FDS_START + i;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    handed.push_back({names[i], hoist::UniqueFd(fd)});
    std::free(names[i]);
  }
  std::free(names);
  return handed;
}

std::unique_ptr<FdStore> NotifyFdStore() {
  if (std::getenv("NOTIFY_SOCKET") == nullptr) return nullptr;
  return std::make_unique<SdFdStore>();
}

}  // namespace hoistd
