// A mapped device's copies: one thread runs them in order.
#ifndef HOIST_DAEMON_DEVICE_MAPPED_STREAM_H_
#define HOIST_DAEMON_DEVICE_MAPPED_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/base/timed_cond_var.h"
#include "daemon/device/mapped_device.h"

namespace hoistd {

// Threads:  calls come from one owner thread; `Run` is the stream's own.
class MappedStream final : public CopyStream {
 public:
  // `device` outlives it. Then Start().
  explicit MappedStream(MappedDevice& device) : device_(device) {}
  MappedStream(const MappedStream&) = delete;
  MappedStream& operator=(const MappedStream&) = delete;
  ~MappedStream() override;

  // Once, first of all. StartThread's errors.
  absl::Status Start();
  absl::Status CopyIn(uint64_t to_offset,
                      std::span<const std::byte> from) override;
  absl::Status CopyOut(std::span<std::byte> to, uint64_t from_offset) override;
  absl::Status WriteWords(std::span<const WordWrite> words) override;
  absl::Status Health() override { return absl::OkStatus(); }
  void Then(Done done) override;

 private:
  struct Job {
    EmulatedLink* link = nullptr;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    uint64_t bytes = 0;
    absl::Time queued;
    Done done;  // Set: the job is to call it, and nothing else.
    std::vector<WordWrite> words;  // Not empty: to write them, nothing else.
  };

  void Push(Job job) ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Do(Job& job);
  void WaitUntil(absl::Time time) ABSL_LOCKS_EXCLUDED(mu_);

  MappedDevice& device_;
  absl::Mutex mu_;
  TimedCondVar changed_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time last_done_ = absl::InfinitePast();  // Only Run's thread.
  std::thread thread_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_DEVICE_MAPPED_STREAM_H_
