#include "daemon/device/mapped_stream.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"

namespace hoistd {

absl::Status MappedStream::Start() {
  HOIST_ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
  return absl::OkStatus();
}

MappedStream::~MappedStream() {
  {
    const absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status MappedStream::CopyIn(uint64_t to_offset,
                                  std::span<const std::byte> from) {
  auto to = device_.Range(to_offset, from.size());
  if (!to.ok()) return to.status();
  Push({.link = &device_.in_,
        .to = *to,
        .from = from.data(),
        .bytes = from.size(),
        .queued = device_.clock_.Now()});
  return absl::OkStatus();
}

absl::Status MappedStream::CopyOut(std::span<std::byte> to,
                                   uint64_t from_offset) {
  auto from = device_.Range(from_offset, to.size());
  if (!from.ok()) return from.status();
  Push({.link = &device_.out_,
        .to = to.data(),
        .from = *from,
        .bytes = to.size(),
        .queued = device_.clock_.Now()});
  return absl::OkStatus();
}

absl::Status MappedStream::WriteWords(std::span<const WordWrite> words) {
  if (words.empty()) return absl::OkStatus();
  Push({.queued = device_.clock_.Now(),
        .words = std::vector<WordWrite>(words.begin(), words.end())});
  return absl::OkStatus();
}

void MappedStream::Then(Done done) {
  Push({.queued = device_.clock_.Now(), .done = std::move(done)});
}

void MappedStream::Push(Job job) {
  const absl::MutexLock lock(&mu_);
  jobs_.push_back(std::move(job));
  changed_.SignalAll();
}

void MappedStream::Run() {
  while (true) {
    Job job;
    {
      const absl::MutexLock lock(&mu_);
      while (jobs_.empty() && !stopping_) changed_.Wait(&mu_);
      if (jobs_.empty()) return;  // Stops when all that was queued is done.
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    Do(job);
  }
}

void MappedStream::Do(Job& job) {
  if (job.done) {
    std::move(job.done)(absl::OkStatus());
    return;
  }
  if (!job.words.empty()) {
    for (const WordWrite& write : job.words) {
      write.word->store(write.value, std::memory_order_release);
      // Not FUTEX_PRIVATE: the waiter may be in another process. A failure is
      // harmless, since a waiter that checks the word sees the new value.
      syscall(SYS_futex, write.word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }
    return;
  }
  // A job that was queued behind another is ready when that one is done in the
  // link's time, not when this thread got round to it.
  const absl::Time end =
      job.link->Book(job.bytes, std::max(job.queued, last_done_));
  std::memcpy(job.to, job.from, job.bytes);
  WaitUntil(end);
  last_done_ = end;
}

void MappedStream::WaitUntil(absl::Time time) {
  const absl::MutexLock lock(&mu_);
  while (true) {
    const absl::Duration left = time - device_.clock_.Now();
    if (left <= absl::ZeroDuration()) return;
    changed_.WaitWithTimeout(&mu_, left);
  }
}

}  // namespace hoistd
