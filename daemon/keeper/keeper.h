// hoist-keeper: keeps one program running, and holds the descriptors that it
// stored.
//
// It does what systemd does for a unit with Restart=always and
// FileDescriptorStoreMax, by the same protocol (sd_notify(3),
// sd_listen_fds(3)), where there is no systemd: in containers, for one user, in
// tests. So hoistd needs only one protocol.
//
// It also ends a program that hangs (WatchdogSec): see KeeperOptions.
#ifndef HOIST_DAEMON_KEEPER_KEEPER_H_
#define HOIST_DAEMON_KEEPER_KEEPER_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/keeper/fd_store.h"
#include "daemon/keeper/notify_socket.h"
#include "daemon/keeper/watchdog.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct KeeperOptions {
  std::string dir;                   // Its socket and locks; it is there.
  std::vector<std::string> command;  // The program, and its arguments.
  // One that was ready, and ran for so long, is started again at once.
  absl::Duration steady = absl::Seconds(1);
  // Until another is: at first, and at the most; twice as long each time that
  // it ends before it is ready.
  absl::Duration first_pause = absl::Milliseconds(100);
  absl::Duration longest_pause = absl::Seconds(10);
  // For the program to end after SIGTERM, before it is killed; it may ask for
  // more (EXTEND_TIMEOUT_USEC).
  absl::Duration stop_patience = absl::Seconds(30);
  // A program that was ready and has said WATCHDOG=1 no more for so long is
  // ended, and started again with what it stored. Zero: it is not watched.
  absl::Duration watchdog = absl::Minutes(1);
  // For it to end by SIGABRT then, and leave a core, before it is killed.
  absl::Duration abort_patience = absl::Seconds(5);
};

// Threads:  one, which has no other: it forks. It takes SIGCHLD, and what
//           AwaitedSignals() has.
// Owns:     what the program stored, and the folder's lock.
// Bounds:   what the program stores; only from it is anything taken.
// Restart:  the program lives on when its keeper dies, and goes on being kept
//           by the next one in this folder, which it stores everything with
//           again; watched as it was told to be when it was started.
class Keeper {
 public:
  // FailedPrecondition: the folder has a keeper.
  static absl::StatusOr<std::unique_ptr<Keeper>> Create(
      const KeeperOptions& options, std::vector<HandedFd> handed);
  ~Keeper();

  // Until it is told to stop by SIGTERM, SIGINT or SIGQUIT, which the program
  // gets too, once it is ready; one that has left something is started for
  // that. Returns the program's exit status, 128 + N for signal N. A program
  // that ends before it was ever ready, with nothing stored, is not started
  // again: the caller repairs it.
  int Run();

 private:
  Keeper(const KeeperOptions& options, NotifySocket socket,
         hoist::UniqueFd lock, hoist::UniqueFd signals,
         std::vector<HandedFd> handed);

  // The program that a former keeper started, if it still runs.
  std::optional<pid_t> FindOrphan() const;
  absl::Status Watch(pid_t program);
  absl::Status Start();
  [[noreturn]] void BecomeProgram(pid_t keeper) const;
  void SetEnvironment(pid_t keeper) const;
  void Await();
  void Ended(std::optional<int> waited);
  void OnSignal();
  void AskToStop(int signal);
  void TellToStop();
  void OnNotice();
  void Hear(const Notice& notice);
  void EndHungProgram();
  void Kill();
  void SignalProgram(int signal) const;
  void Reap();
  // There never was a program that served, and nothing is held.
  bool NothingToLose() const;
  absl::Duration UntilDue() const;

  const KeeperOptions options_;
  NotifySocket socket_;
  const hoist::UniqueFd lock_;
  const hoist::UniqueFd signals_;
  const MonotonicClock clock_;
  FdShelf shelf_;
  Watchdog watchdog_;
  pid_t program_ = 0;  // 0: it does not run.
  bool child_ = false;
  hoist::UniqueFd program_fd_;  // Its pidfd.
  absl::Time started_at_ = absl::InfinitePast();
  absl::Time start_at_ = absl::InfinitePast();  // Not before.
  absl::Time kill_at_ = absl::InfiniteFuture();
  bool killed_ = false;   // Already.
  bool leaving_ = false;  // It was told to end, or does so by itself.
  absl::Duration pause_;
  bool ready_ = false;       // It is, or was before it ended.
  bool ever_ready_ = false;  // Or one before it was.
  bool stopping_ = false;
  // What is to tell the program so, and has not yet. One that cannot take it
  // before it is ready would lose what it stored; nobody waits beyond tell_at_.
  std::optional<int> stop_;
  absl::Time tell_at_ = absl::InfiniteFuture();
  std::optional<int> exit_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_KEEPER_KEEPER_H_
