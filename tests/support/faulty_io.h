// Decorators of an IoEngine: one that fails calls, one that holds them.
#ifndef HOIST_TESTS_SUPPORT_FAULTY_IO_H_
#define HOIST_TESTS_SUPPORT_FAULTY_IO_H_

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/types/io_engine.h"

namespace hoistd::testing {

// The effect of a failed write.
enum class Damage {
  kNothing,    // The call does not reach the engine.
  kHalf,       // The first half (whole 4 KiB) is written or read.
  kEverything  // All is done, and the answer is lost.
};

// Fails the n-th call; reads and writes are counted together, from 1.
//
// Threads:  thread-safe. `done` is called from a thread of the engine below.
// Owns:     nothing; the engine must outlive it.
class FaultyIo final : public IoEngine {
 public:
  explicit FaultyIo(IoEngine& base) : base_(base) {}

  void FailCall(uint64_t n, absl::Status status,
                Damage damage = Damage::kNothing) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls so far, failed ones included.
  uint64_t calls() const ABSL_LOCKS_EXCLUDED(mu_);

  void Read(ReadRequest request, Done done) override;
  void Write(WriteRequest request, Done done) override;
  IoInfo info() const override { return base_.info(); }

 private:
  struct Fault {
    bool fails = false;
    absl::Status status;
    Damage damage = Damage::kNothing;
  };
  // Counts a call.
  Fault NextCall() ABSL_LOCKS_EXCLUDED(mu_);

  IoEngine& base_;
  mutable absl::Mutex mu_;
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t fail_at_ ABSL_GUARDED_BY(mu_) = 0;  // 0: none.
  Fault fault_ ABSL_GUARDED_BY(mu_);
};

// Carries calls out at once and holds their completions until released.
//
// Threads:  thread-safe. Release calls `done` from the calling thread.
// Owns:     nothing; the engine must outlive it. The destructor waits for calls
//           in progress and releases everything.
class HeldIo final : public IoEngine {
 public:
  explicit HeldIo(IoEngine& base) : base_(base) {}
  ~HeldIo() override;

  // Waits until `count` completions are held.
  void WaitHeld(uint64_t count) const ABSL_LOCKS_EXCLUDED(mu_);
  // Releases the oldest `count`; that many must be held.
  void Release(uint64_t count) ABSL_LOCKS_EXCLUDED(mu_);
  // From now on no completion is held.
  void Open() ABSL_LOCKS_EXCLUDED(mu_);

  void Read(ReadRequest request, Done done) override;
  void Write(WriteRequest request, Done done) override;
  IoInfo info() const override { return base_.info(); }

 private:
  Done Hold(Done done) ABSL_LOCKS_EXCLUDED(mu_);

  IoEngine& base_;
  mutable absl::Mutex mu_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<std::pair<Done, absl::Status>> held_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_FAULTY_IO_H_
