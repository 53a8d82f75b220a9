#include "daemon/device/cuda_stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"

namespace hoistd {

using hoist::cuda::ScopedContext;

namespace {

// Below the driver's limit of 256 per call; these are on the stack.
constexpr size_t kWordsACall = 32;

}  // namespace

CudaStream::CudaStream(CudaDevice& device, hoist::cuda::Stream stream)
    : device_(device), driver_(device.driver_), stream_(stream) {}

absl::Status CudaStream::Start() {
  HOIST_ASSIGN_OR_RETURN(thread_, StartThread([this] { Complete(); }));
  return absl::OkStatus();
}

CudaStream::~CudaStream() {
  {
    const absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
  const ScopedContext current(driver_, device_.context_);
  // Waits for copies without a Then(). An error of theirs is the context's, so
  // every later call reports it.
  driver_.stream_sync(stream_);
  const absl::MutexLock lock(&mu_);
  for (const hoist::cuda::Event event : idle_events_) {
    driver_.event_destroy(event);
  }
  driver_.stream_destroy(stream_);
}

absl::Status CudaStream::CopyIn(uint64_t to_offset,
                                std::span<const std::byte> from) {
  HOIST_ASSIGN_OR_RETURN(const hoist::cuda::Address to,
                         device_.Range(to_offset, from.size()));
  return CopyInPieces(from, "copy in", [&](uint64_t at, uint64_t bytes) {
    return driver_.copy_in_async(to + at, &from[at], bytes, stream_);
  });
}

absl::Status CudaStream::CopyRowsIn(const HostRows& rows) {
  if (rows.count == 1) return CopyIn(rows.to_offset, rows.first);
  const uint64_t width = rows.first.size();
  const auto to = device_.Range(rows.to_offset, rows.bytes());
  // IPC slabs are not side by side: each row is in one of them.
  if (!to.ok()) return CopyStream::CopyRowsIn(rows);
  const ScopedContext current(driver_, device_.context_);
  HOIST_RETURN_IF_ERROR(device_.Check(current.error(), "enter the context"));
  HostRows left = rows;
  while (left.count > 0) {
    const auto prefix = [&] {
      return device_.host_->Prefix(left.first.data(), left.whole().size());
    };
    // Of one copy all rows are in one registered range, or in none.
    const uint64_t bytes = prefix();
    const uint64_t count = bytes < width ? 0 : (bytes - width) / left.pitch + 1;
    if (count == 0) {
      HOIST_RETURN_IF_ERROR(CopyIn(left.to_offset, left.first));
    } else {
      const hoist::cuda::Copy2D copy = {
          .from = {.kind = hoist::cuda::kHostMemory,
                   .host = left.first.data(),
                   .pitch = left.pitch},
          .to = {.kind = hoist::cuda::kDeviceMemory,
                 .device = *to + (left.to_offset - rows.to_offset),
                 .pitch = width},
          .width_bytes = width,
          .rows = count};
      const hoist::cuda::Error error = driver_.copy_2d_async(&copy, stream_);
      if (error == hoist::cuda::kInvalidValue && prefix() != bytes) continue;
      HOIST_RETURN_IF_ERROR(device_.Check(error, "copy rows in"));
    }
    const uint64_t done = std::max<uint64_t>(count, 1);
    left.first = left.row(done);
    left.to_offset += done * width;
    left.count -= done;
  }
  return absl::OkStatus();
}

absl::Status CudaStream::CopyOut(std::span<std::byte> to,
                                 uint64_t from_offset) {
  HOIST_ASSIGN_OR_RETURN(const hoist::cuda::Address from,
                         device_.Range(from_offset, to.size()));
  return CopyInPieces(to, "copy out", [&](uint64_t at, uint64_t bytes) {
    return driver_.copy_out_async(&to[at], from + at, bytes, stream_);
  });
}

absl::Status CudaStream::CopyInPieces(std::span<const std::byte> host,
                                      const char* what, CopyPiece copy) {
  const ScopedContext current(driver_, device_.context_);
  HOIST_RETURN_IF_ERROR(device_.Check(current.error(), "enter the context"));
  uint64_t done = 0;
  while (done < host.size()) {
    const auto prefix = [&] {
      return device_.host_->Prefix(&host[done], host.size() - done);
    };
    const uint64_t bytes = prefix();
    const hoist::cuda::Error error = copy(done, bytes);
    // Part of it was registered after the last Prefix call.
    if (error == hoist::cuda::kInvalidValue && prefix() != bytes) continue;
    HOIST_RETURN_IF_ERROR(device_.Check(error, what));
    done += bytes;
  }
  return absl::OkStatus();
}

absl::Status CudaStream::WriteWords(std::span<const WordWrite> words) {
  if (words.empty()) return absl::OkStatus();
  if (!device_.info_.stream_words) {
    Waiter waiter;
    HOIST_ASSIGN_OR_RETURN(waiter.event, Record());
    waiter.done = [this,
                   copy = std::vector<WordWrite>(words.begin(), words.end())](
                      const absl::Status& status) {
      if (!status.ok()) {
        const absl::MutexLock lock(&mu_);
        words_.Update(status);
        return;
      }
      for (const WordWrite& write : copy) {
        write.word->store(write.value, std::memory_order_release);
      }
    };
    Push(std::move(waiter));
    return absl::OkStatus();
  }
  const ScopedContext current(driver_, device_.context_);
  HOIST_RETURN_IF_ERROR(device_.Check(current.error(), "enter the context"));
  while (!words.empty()) {
    const size_t count = std::min(words.size(), kWordsACall);
    std::array<hoist::cuda::MemOp, kWordsACall> ops;
    for (size_t i = 0; i < count; ++i) {
      ops[i].operation = hoist::cuda::kMemOpWrite32;
      ops[i].address = reinterpret_cast<uintptr_t>(words[i].word);
      ops[i].value = words[i].value;
      ops[i].flags = hoist::cuda::kWriteBehindAll;
    }
    HOIST_RETURN_IF_ERROR(
        device_.Check(driver_.stream_mem_ops(
                          stream_, static_cast<unsigned>(count), ops.data(), 0),
                      "write words"));
    words = words.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status CudaStream::Health() {
  {
    const absl::MutexLock lock(&mu_);
    if (!words_.ok()) return words_;
  }
  const ScopedContext current(driver_, device_.context_);
  HOIST_RETURN_IF_ERROR(device_.Check(current.error(), "enter the context"));
  const hoist::cuda::Error error = driver_.stream_query(stream_);
  if (error == hoist::cuda::kNotReady) return absl::OkStatus();
  return device_.Check(error, "copy");
}

void CudaStream::Then(Done done) {
  Waiter waiter;
  if (absl::StatusOr<hoist::cuda::Event> event = Record(); event.ok()) {
    waiter.event = *event;
  } else {
    waiter.error = event.status();
  }
  waiter.done = std::move(done);
  Push(std::move(waiter));
}

void CudaStream::Push(Waiter waiter) {
  const absl::MutexLock lock(&mu_);
  waiters_.push_back(std::move(waiter));
  changed_.SignalAll();
}

absl::StatusOr<hoist::cuda::Event> CudaStream::Record() {
  const ScopedContext current(driver_, device_.context_);
  HOIST_RETURN_IF_ERROR(device_.Check(current.error(), "enter the context"));
  hoist::cuda::Event event = nullptr;
  {
    const absl::MutexLock lock(&mu_);
    if (!idle_events_.empty()) {
      event = idle_events_.back();
      idle_events_.pop_back();
    }
  }
  if (event == nullptr) {
    HOIST_RETURN_IF_ERROR(device_.Check(
        driver_.event_create(&event, hoist::cuda::kEventBlockingSync |
                                         hoist::cuda::kEventDisableTiming),
        "create an event"));
  }
  const absl::Status status =
      device_.Check(driver_.event_record(event, stream_), "record an event");
  if (status.ok()) return event;
  const absl::MutexLock lock(&mu_);
  idle_events_.push_back(event);
  return status;
}

void CudaStream::Complete() {
  const ScopedContext current(driver_, device_.context_);
  while (true) {
    Waiter waiter;
    {
      const absl::MutexLock lock(&mu_);
      while (waiters_.empty() && !stopping_) changed_.Wait(&mu_);
      if (waiters_.empty()) return;  // Stops after all waiters were called.
      waiter = std::move(waiters_.front());
      waiters_.pop_front();
    }
    if (waiter.event == nullptr) {
      std::move(waiter.done)(waiter.error);
      continue;
    }
    const absl::Status status =
        device_.Check(driver_.event_sync(waiter.event), "copy");
    {
      const absl::MutexLock lock(&mu_);
      idle_events_.push_back(waiter.event);
    }
    std::move(waiter.done)(status);
  }
}

}  // namespace hoistd
