// Whether hoistd's keeper lives, as hoistd sees it.
#ifndef HOIST_DAEMON_KEEPER_KEEPER_WATCH_H_
#define HOIST_DAEMON_KEEPER_KEEPER_WATCH_H_

#include <string>

#include "hoist/shared/unique_fd.h"

namespace hoistd {

// Tells the program that its keeper is a hoist-keeper, and where.
inline constexpr char kKeeperFolderVariable[] = "HOIST_KEEPER";
// The pid of the one that started it.
inline constexpr char kKeeperPidVariable[] = "HOIST_KEEPER_PID";
// The keeper holds a lock on it, and its pid is in it.
std::string KeeperLock(const std::string& folder);

// Threads: one at a time.
class KeeperWatch {
 public:
  // Of $HOIST_KEEPER; without it, as under systemd, there is none to watch. If
  // there is another keeper by now than the one that started this process,
  // whoever that one was has ended.
  KeeperWatch();

  bool has_keeper() const { return !folder_.empty(); }
  // Whether the one that was looked at last has ended.
  bool Gone() const;
  // Looks for the one that there is now; false: there is none.
  bool Renew();

 private:
  // Of the keeper that there is now; 0: none.
  int Find() const;

  std::string folder_;
  hoist::UniqueFd keeper_;  // Its pidfd.
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_KEEPER_KEEPER_WATCH_H_
