// Holds hoistd's persisted descriptors between hoistds.
#ifndef HOIST_TESTS_SUPPORT_HOLDING_STORE_H_
#define HOIST_TESTS_SUPPORT_HOLDING_STORE_H_

#include <fcntl.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/check.h"
#include "daemon/keeper/fd_store.h"

namespace hoistd::testing {

// Like systemd's store, but it never dies.
//
// Threads:  one.
class HoldingStore final : public FdStore {
 public:
  absl::Status Store(const std::string& name,
                     const std::vector<int>& fds) override {
    for (const int fd : fds) held_.emplace(name, Again(fd));
    return absl::OkStatus();
  }
  absl::Status Remove(const std::string& name) override {
    held_.erase(name);
    return absl::OkStatus();
  }

  // Copies for the next hoistd; the originals stay held.
  std::vector<HandedFd> Hand() const {
    std::vector<HandedFd> handed;
    for (const auto& [name, fd] : held_) {
      handed.push_back({name, Again(fd.get())});
    }
    return handed;
  }

 private:
  static hoist::UniqueFd Again(int fd) {
    hoist::UniqueFd again(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    HOIST_CHECK(again.valid());
    return again;
  }

  std::multimap<std::string, hoist::UniqueFd> held_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_HOLDING_STORE_H_
