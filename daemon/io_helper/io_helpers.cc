#include "daemon/io_helper/io_helpers.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

constexpr absl::Duration kIdle = absl::Seconds(10);

absl::Status Stopping() { return absl::UnavailableError("hoistd is stopping"); }

// A killed process ends only when its system call returns.
bool HasEnded(const HelperProcess& process) {
  pollfd gone = {
      process.pidfd.valid() ? process.pidfd.get() : process.line.get(),
      static_cast<short>(process.pidfd.valid() ? POLLIN : 0), 0};
  return poll(&gone, 1, 0) > 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoHelpers>> IoHelpers::Create(
    HelperSpawner& spawner, IoHelperOptions options) {
  hoist::UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return ErrnoToStatus(errno, "make eventfd");
  return std::unique_ptr<IoHelpers>(
      new IoHelpers(spawner, std::move(stop), std::move(options)));
}

IoHelpers::IoHelpers(HelperSpawner& spawner, hoist::UniqueFd stop,
                     IoHelperOptions options)
    : spawner_(spawner), stop_(std::move(stop)), options_(std::move(options)) {}

IoHelpers::~IoHelpers() { Stop(); }

void IoHelpers::Post(User owner, HelperCallKind kind, Task task) {
  std::vector<std::thread> ended;
  absl::Status refused = Stopping();
  {
    absl::MutexLock lock(&mu_);
    if (!stopping_) {
      ended.swap(ended_);
      ForgetEnded();
      Line& line = owners_[owner].lines[static_cast<size_t>(kind)];
      line.waiting.push_back(std::move(task));
      changed_.SignalAll();
      if (line.waiting.size() > line.idle &&
          line.threads < kWidth[static_cast<size_t>(kind)]) {
        refused = AddThread(owner, kind, line);
      }
      if (line.threads == 0) {  // No thread would run it.
        task = std::move(line.waiting.back());
        line.waiting.pop_back();
      }
    }
  }
  for (std::thread& thread : ended) thread.join();
  if (task != nullptr) task(std::move(refused));
}

absl::Status IoHelpers::AddThread(User owner, HelperCallKind kind, Line& line) {
  HOIST_ASSIGN_OR_RETURN(std::thread thread, StartThread([this, owner, kind] {
                           Run(owner, kind);
                         }));
  ++line.threads;
  const std::thread::id id = thread.get_id();
  threads_.emplace(id, std::move(thread));
  return absl::OkStatus();
}

void IoHelpers::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
    eventfd_write(stop_.get(), 1);
    mu_.Await(absl::Condition(
        +[](std::map<std::thread::id, std::thread>* left) {
          return left->empty();
        },
        &threads_));
  }
  std::vector<std::thread> ended;
  {
    absl::MutexLock lock(&mu_);
    ended.swap(ended_);
    ForgetEnded();
  }
  for (std::thread& thread : ended) thread.join();
}

void IoHelpers::Run(User uid, HelperCallKind kind) {
  std::unique_ptr<IoHelper> run;
  Task task;
  while (Take(uid, kind, task)) {
    absl::Status there;
    if (run == nullptr) {
      absl::StatusOr<std::unique_ptr<IoHelper>> begun = Begin(uid);
      there = begun.status();
      if (begun.ok()) run = *std::move(begun);
    }
    if (there.ok()) {
      task(run.get());
    } else {
      task(there);
    }
    task = nullptr;
    if (run != nullptr && !run->Rest()) End(uid, std::move(run));
  }
  if (run != nullptr) End(uid, std::move(run));
  absl::MutexLock lock(&mu_);
  auto self = threads_.extract(std::this_thread::get_id());
  ended_.push_back(std::move(self.mapped()));
}

bool IoHelpers::Take(User uid, HelperCallKind kind, Task& task) {
  absl::MutexLock lock(&mu_);
  Line& line = owners_[uid].lines[static_cast<size_t>(kind)];
  ++line.idle;
  const MonotonicClock clock;
  const absl::Time end = clock.Now() + kIdle;
  while (!stopping_ && line.waiting.empty() && clock.Now() < end) {
    changed_.WaitWithTimeout(&mu_, end - clock.Now());
  }
  --line.idle;
  if (line.waiting.empty()) {
    --line.threads;
    return false;
  }
  task = std::move(line.waiting.front());
  line.waiting.pop_front();
  return true;
}

absl::Status IoHelpers::Admit(User uid) {
  if (stopping_) return Stopping();
  ForgetEnded();
  Owner& owner = owners_[uid];
  if (owner.lost.size() >= kMostLost) {
    return absl::UnavailableError(absl::StrCat(
        ToString(uid), " has ", owner.lost.size(),
        " calls on files that hang, as many as are allowed; repair or unmount "
        "their file system, or end the process that serves it, and try again"));
  }
  size_t all = 0;
  for (const auto& [id, other] : owners_) {
    all += other.processes + other.lost.size();
  }
  if (all >= kMostInAll) {
    return absl::ResourceExhaustedError(
        absl::StrCat("hoistd has ", kMostInAll,
                     " processes at work on files of its users, its limit; try "
                     "again later"));
  }
  ++owner.processes;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<IoHelper>> IoHelpers::Begin(User uid) {
  {
    absl::MutexLock lock(&mu_);
    HOIST_RETURN_IF_ERROR(Admit(uid));
  }
  absl::StatusOr<HelperProcess> process = spawner_.Spawn();
  if (process.ok()) {
    SPDLOG_DEBUG("a process is made for files of {}", ToString(uid));
    return std::make_unique<IoHelper>(*std::move(process), stop_.get(),
                                      options_.deadline);
  }
  absl::MutexLock lock(&mu_);
  --owners_[uid].processes;
  return process.status();
}

void IoHelpers::End(User uid, std::unique_ptr<IoHelper> run) {
  SPDLOG_DEBUG("a process for files of {} {}", ToString(uid),
               run->lost() ? "hangs, and is left behind" : "ends");
  {
    absl::MutexLock lock(&mu_);
    Owner& owner = owners_[uid];
    --owner.processes;
    if (!run->lost()) return;
    owner.lost.push_back(run->Kill());
  }
  // Only deaths: not processes that hoistd ended, and not other errors.
  if (!absl::IsDeadlineExceeded(run->why())) return;
  // The file's name is a client's.
  const std::string note = absl::StrCat(
      ToString(uid), ": ", absl::CHexEscape(std::string(run->why().message())));
  SPDLOG_WARN("{}", note);
  options_.on_lost(note);
}

void IoHelpers::ForgetEnded() {
  for (auto it = owners_.begin(); it != owners_.end();) {
    Owner& owner = it->second;
    std::erase_if(owner.lost, HasEnded);
    bool used = owner.processes > 0 || !owner.lost.empty();
    for (const Line& line : owner.lines) {
      used = used || line.threads > 0 || !line.waiting.empty();
    }
    it = used ? std::next(it) : owners_.erase(it);
  }
}

}  // namespace hoistd
