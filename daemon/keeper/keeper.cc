#include "daemon/keeper/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/inherited.h"
#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/keeper/keeper_watch.h"

namespace hoistd {
namespace {

constexpr int kCannotExec = 127;
// Later than this, the keeper itself was not scheduled, so its program may not
// have been either.
constexpr absl::Duration kLate = absl::Seconds(1);

absl::StatusOr<hoist::UniqueFd> OpenLock(const std::string& path) {
  hoist::UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoToStatus(errno, path);
  return fd;
}

struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

// Locked by the program: a POSIX lock survives exec, and fork does not share
// it.
std::string ProgramLock(const std::string& dir) {
  return absl::StrCat(dir, "/program.lock");
}

hoist::UniqueFd TakeSignals() {
  sigset_t taken = AwaitedSignals();
  sigaddset(&taken, SIGCHLD);
  sigprocmask(SIG_BLOCK, &taken, nullptr);
  return hoist::UniqueFd(signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
}

// `waited`: waitpid's status; nullopt: not a child of this keeper.
std::string HowItEnded(std::optional<int> waited) {
  if (!waited.has_value()) return "somehow";
  const int status = *waited;
  if (WIFSIGNALED(status)) return absl::StrCat("signal ", WTERMSIG(status));
  return absl::StrCat("exit status ", WEXITSTATUS(status));
}

// nullopt: its environment is unreadable.
std::optional<absl::Duration> IntervalOf(pid_t program) {
  std::ifstream file(absl::StrCat("/proc/", program, "/environ"));
  const std::string environment{std::istreambuf_iterator<char>(file), {}};
  if (!file.good() || environment.empty()) return std::nullopt;
  return ToldInterval(environment, program);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Create(
    const KeeperOptions& options, std::vector<HandedFd> handed) {
  HOIST_ASSIGN_OR_RETURN(hoist::UniqueFd lock,
                         OpenLock(KeeperLock(options.dir)));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        options.dir, " has a keeper; end it, or give --dir another folder"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(lock.get(), 0) != 0 ||
      pwrite(lock.get(), pid.data(), pid.size(), 0) !=
          static_cast<ssize_t>(pid.size())) {
    return ErrnoToStatus(errno, options.dir);
  }
  hoist::UniqueFd signals = TakeSignals();
  if (!signals.valid()) return ErrnoToStatus(errno, "take signals");
  HOIST_ASSIGN_OR_RETURN(
      NotifySocket socket,
      NotifySocket::Listen(absl::StrCat(options.dir, "/keeper.sock")));
  return absl::WrapUnique(new Keeper(options, std::move(socket),
                                     std::move(lock), std::move(signals),
                                     std::move(handed)));
}

Keeper::Keeper(const KeeperOptions& options, NotifySocket socket,
               hoist::UniqueFd lock, hoist::UniqueFd signals,
               std::vector<HandedFd> handed)
    : options_(options),
      socket_(std::move(socket)),
      lock_(std::move(lock)),
      signals_(std::move(signals)),
      watchdog_(options.watchdog),
      pause_(options.first_pause) {
  for (HandedFd& one : handed) {
    shelf_.Add(std::move(one.name), std::move(one.fd));
  }
}

Keeper::~Keeper() = default;

int Keeper::Run() {
  if (const std::optional<pid_t> orphan = FindOrphan()) {
    const absl::Status watched = Watch(*orphan);
    if (watched.ok()) {
      spdlog::info("pid {} runs on, and is kept again", *orphan);
      ready_ = ever_ready_ = true;
      watchdog_.TakeOver(IntervalOf(*orphan), clock_.Now());
    }
  }
  while (!exit_.has_value()) {
    if (program_ == 0 && clock_.Now() >= start_at_) {
      const absl::Status started = Start();
      if (!started.ok()) {
        spdlog::error("{}", std::string(started.message()));
        start_at_ = clock_.Now() + pause_;
        if (NothingToLose() || clock_.Now() >= tell_at_) exit_ = 1;
      }
    }
    if (program_ != 0 && stop_.has_value()) TellToStop();
    if (program_ != 0 && clock_.Now() >= watchdog_.due()) EndHungProgram();
    if (program_ != 0 && clock_.Now() >= kill_at_) Kill();
    Await();
  }
  return *exit_;
}

void Keeper::Await() {
  pollfd ready[] = {{signals_.get(), POLLIN, 0},
                    {socket_.fd(), POLLIN, 0},
                    {program_fd_.get(), POLLIN, 0}};
  // Clamped before the addition: infinity plus 1 ms overflows.
  const absl::Duration wait =
      std::clamp(UntilDue(), absl::ZeroDuration(), absl::Minutes(1));
  const absl::Time due = clock_.Now() + wait;
  const int64_t ms = absl::ToInt64Milliseconds(wait) + 1;
  if (poll(ready, 3, static_cast<int>(ms)) < 0 && errno != EINTR) {
    spdlog::error("{}", std::string(ErrnoToStatus(errno, "poll").message()));
    exit_ = 1;
    return;
  }
  if (clock_.Now() > due + kLate) watchdog_.Overslept(clock_.Now());
  OnNotice();  // Before the end: its last notices.
  if (ready[0].revents != 0) OnSignal();
  if (!child_ && program_ != 0 && ready[2].revents != 0) {
    Ended(std::nullopt);
  }
}

std::optional<pid_t> Keeper::FindOrphan() const {
  const auto lock = OpenLock(ProgramLock(options_.dir));
  struct flock whole = WholeFile();
  if (!lock.ok() || fcntl(lock->get(), F_GETLK, &whole) != 0 ||
      whole.l_type == F_UNLCK || whole.l_pid <= 0) {
    return std::nullopt;
  }
  return whole.l_pid;
}

absl::Status Keeper::Watch(pid_t program) {
  program_fd_ =
      hoist::UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, program, 0)));
  if (!program_fd_.valid()) return ErrnoToStatus(errno, "pidfd_open");
  program_ = program;
  return absl::OkStatus();
}

absl::Status Keeper::Start() {
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child < 0) return NoTask(errno, "fork");
  if (child == 0) BecomeProgram(self);
  child_ = true;
  ready_ = leaving_ = killed_ = false;
  started_at_ = clock_.Now();
  watchdog_.Begin();
  const absl::Status watched = Watch(child);
  // Without a pidfd only SIGCHLD reports its end.
  if (!watched.ok()) program_ = child;
  return absl::OkStatus();
}

void Keeper::BecomeProgram(pid_t keeper) const {
  ResetSignals();
  const int count = static_cast<int>(shelf_.held().size());
  // Above the descriptors that are handed over: a close of any descriptor of
  // this file releases the lock.
  int lock = -1;
  {
    const auto opened = OpenLock(ProgramLock(options_.dir));
    if (opened.ok()) {
      lock = fcntl(opened->get(), F_DUPFD, SD_LISTEN_FDS_START + count);
    }
  }
  struct flock whole = WholeFile();
  // A holder is about to end: FindOrphan found none.
  if (lock < 0 || fcntl(lock, F_SETLKW, &whole) != 0) _exit(kCannotExec);

  std::vector<int> out_of_the_way;
  for (const FdShelf::Held& one : shelf_.held()) {
    out_of_the_way.push_back(
        fcntl(one.fd.get(), F_DUPFD_CLOEXEC, SD_LISTEN_FDS_START + count));
  }
  for (int i = 0; i < count; ++i) {
    if (dup2(out_of_the_way[static_cast<size_t>(i)], SD_LISTEN_FDS_START + i) <
        0) {
      _exit(kCannotExec);
    }
  }
  SetEnvironment(keeper);
  std::vector<char*> arguments;
  for (const std::string& one : options_.command) {
    arguments.push_back(const_cast<char*>(one.c_str()));
  }
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  spdlog::error("{} cannot be run: {}", options_.command[0],
                std::string(ErrnoToStatus(errno, "exec").message()));
  _exit(kCannotExec);
}

void Keeper::SetEnvironment(pid_t keeper) const {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  set("NOTIFY_SOCKET", absl::StrCat(options_.dir, "/keeper.sock"));
  set(kKeeperFolderVariable, options_.dir);
  set(kKeeperPidVariable, absl::StrCat(keeper));
  // These are the keeper's own watchdog.
  unsetenv("WATCHDOG_USEC");
  unsetenv("WATCHDOG_PID");
  if (options_.watchdog > absl::ZeroDuration()) {
    set("WATCHDOG_USEC",
        absl::StrCat(absl::ToInt64Microseconds(options_.watchdog)));
    set("WATCHDOG_PID", absl::StrCat(getpid()));
  }
  if (shelf_.held().empty()) return;
  std::vector<std::string> names;
  for (const FdShelf::Held& one : shelf_.held()) names.push_back(one.name);
  set("LISTEN_PID", absl::StrCat(getpid()));
  set("LISTEN_FDS", absl::StrCat(names.size()));
  set("LISTEN_FDNAMES", absl::StrJoin(names, ":"));
}

void Keeper::Ended(std::optional<int> waited) {
  const int status = waited.value_or(0);
  program_ = 0;
  program_fd_.reset();
  child_ = false;
  kill_at_ = absl::InfiniteFuture();
  watchdog_.Stop();
  const int code =
      WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (stopping_ || NothingToLose()) {
    exit_ = code;
    return;
  }
  const absl::Time now = clock_.Now();
  if (ready_) pause_ = options_.first_pause;
  if (ready_ && now - started_at_ >= options_.steady) {
    pause_ = absl::ZeroDuration();
  }
  spdlog::warn(
      "{} ended ({}); it is started again in {}, with {} descriptors "
      "that it left",
      options_.command[0], HowItEnded(waited), absl::FormatDuration(pause_),
      shelf_.held().size());
  start_at_ = now + pause_;
  pause_ = std::clamp(pause_ * 2, options_.first_pause, options_.longest_pause);
}

void Keeper::Reap() {
  int status = 0;
  pid_t child;
  // As a container's first process the keeper reaps orphans too.
  while ((child = waitpid(-1, &status, WNOHANG)) > 0) {
    OnNotice();
    if (child == program_ && child_) Ended(status);
  }
}

void Keeper::OnSignal() {
  signalfd_siginfo got;
  while (read(signals_.get(), &got, sizeof(got)) == sizeof(got)) {
    switch (got.ssi_signo) {
      case SIGCHLD:
        Reap();
        break;
      case SIGHUP:
        SignalProgram(SIGHUP);
        break;
      default:
        AskToStop(static_cast<int>(got.ssi_signo));
    }
  }
}

void Keeper::AskToStop(int signal) {
  sd_notify(0, "STOPPING=1");
  const bool again = std::exchange(stopping_, true);
  if (program_ == 0 && (again || shelf_.held().empty())) {
    exit_ = 0;
    return;
  }
  const absl::Time now = clock_.Now();
  stop_ = signal;
  tell_at_ = again ? now : now + options_.stop_patience;
  // A new program may save the stored images to disk.
  if (program_ == 0) start_at_ = now;
}

void Keeper::TellToStop() {
  const absl::Time now = clock_.Now();
  if (!ready_ && !shelf_.held().empty() && now < tell_at_) return;
  SignalProgram(*std::exchange(stop_, std::nullopt));
  watchdog_.Stop();
  leaving_ = true;
  kill_at_ = std::min(kill_at_, now + options_.stop_patience);
}

void Keeper::OnNotice() {
  while (std::optional<Notice> notice = socket_.Receive()) {
    // Ignores notices of other processes.
    if (program_ == 0 || notice->sender != program_) continue;
    shelf_.Take(*notice);
    Hear(*notice);
  }
}

void Keeper::Hear(const Notice& notice) {
  const auto said = [&](const char* key) -> const std::string* {
    const auto found = notice.values.find(key);
    return found == notice.values.end() ? nullptr : &found->second;
  };
  const auto says = [&](const char* key, const char* value) {
    const std::string* found = said(key);
    return found != nullptr && *found == value;
  };
  const absl::Time now = clock_.Now();
  if (says("READY", "1")) ready_ = ever_ready_ = true;
  watchdog_.Hear(notice.values, now);
  // It stops by itself, or by another's signal: bounds the time to its end.
  if (says("STOPPING", "1") && kill_at_ == absl::InfiniteFuture()) {
    leaving_ = true;
    kill_at_ = now + options_.stop_patience;
  }
  const auto more = MicrosecondsOf(notice.values, "EXTEND_TIMEOUT_USEC");
  if (leaving_ && !killed_ && more.has_value() &&
      *more < absl::InfiniteDuration()) {
    kill_at_ = std::max(kill_at_, now + *more);
  }
  for (const char* key : {"READY", "STATUS"}) {
    const std::string* told = said(key);
    if (told != nullptr) sd_notifyf(0, "%s=%s", key, told->c_str());
  }
}

void Keeper::EndHungProgram() {
  if (watchdog_.triggered()) {
    spdlog::error("pid {} asks to be ended (WATCHDOG=trigger)", program_);
  } else {
    spdlog::error(
        "pid {} has given no sign of life for {} (--watchdog): it is ended, "
        "and started again with what it stored",
        program_, absl::FormatDuration(watchdog_.interval()));
  }
  watchdog_.Stop();
  leaving_ = false;  // EXTEND_TIMEOUT_USEC no longer counts.
  // As systemd does: a stopped process handles SIGABRT only after SIGCONT.
  SignalProgram(SIGABRT);
  SignalProgram(SIGCONT);
  kill_at_ = clock_.Now() + options_.abort_patience;
}

void Keeper::Kill() {
  if (killed_) {
    spdlog::error(
        "pid {} was killed and has not ended: the kernel holds it, in a "
        "driver or a file system; nothing is started before it has",
        program_);
    kill_at_ = absl::InfiniteFuture();
    return;
  }
  spdlog::warn("pid {} has not ended, and is killed", program_);
  SignalProgram(SIGKILL);
  killed_ = true;
  kill_at_ = clock_.Now() + options_.stop_patience;
}

void Keeper::SignalProgram(int signal) const {
  if (program_fd_.valid()) {
    syscall(SYS_pidfd_send_signal, program_fd_.get(), signal, nullptr, 0);
  } else if (program_ != 0) {
    kill(program_, signal);
  }
}

bool Keeper::NothingToLose() const {
  return !ever_ready_ && shelf_.held().empty();
}

absl::Duration Keeper::UntilDue() const {
  const absl::Time tell = stop_.has_value() ? tell_at_ : kill_at_;
  const absl::Time due =
      program_ == 0 ? start_at_ : std::min({tell, kill_at_, watchdog_.due()});
  return std::max(absl::ZeroDuration(), due - clock_.Now());
}

}  // namespace hoistd
