// A device that fails, and completes copies, at the test's command.
#ifndef HOIST_TESTS_SUPPORT_FAULTY_DEVICE_H_
#define HOIST_TESTS_SUPPORT_FAULTY_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "daemon/types/device.h"

namespace hoistd::testing {

enum class DeviceCall {
  kCreateSlab,
  kDestroySlab,
  kZeroSlab,
  kShare,
  kRegisterHost,
  kUnregisterHost,
  kCreateStream,
  kCopyIn,
  kCopyOut,
  kThen,  // Its callback gets the error; everything else goes on.
  kWriteWords,
  kHealth,
};

// Wraps any device. Faults count each kind of call separately, over all
// streams.
//
// Threads:  thread-safe.
// Owns:     nothing; borrows the device, which outlives it.
class FaultyDevice final : public Device {
 public:
  explicit FaultyDevice(Device& device) : device_(device) {}

  // The n-th call of this kind from now on (1: the next) fails with `error`.
  void FailNth(DeviceCall call, int n, absl::Status error)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Every call of this kind fails with `error`, until FailNth(call, 0, Ok).
  void FailAll(DeviceCall call, absl::Status error) ABSL_LOCKS_EXCLUDED(mu_);
  // The number of calls, failed ones included.
  int calls(DeviceCall call) const ABSL_LOCKS_EXCLUDED(mu_);

  // From now on copies queued to the device stay in flight, and all work queued
  // behind them waits. Over an EmulatedDevice only.
  void HoldCopies() ABSL_LOCKS_EXCLUDED(mu_);
  void LetCopiesGo() ABSL_LOCKS_EXCLUDED(mu_);
  // From now on CreateSlab waits, until LetSlabsGo.
  void HoldSlabs() ABSL_LOCKS_EXCLUDED(mu_);
  void LetSlabsGo() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until CopyIn was called `count` times in all.
  void WaitForCopies(int count) const ABSL_LOCKS_EXCLUDED(mu_);
  // The arguments of CopyIn's calls so far, in order, without failed ones.
  struct Copy {
    uint64_t to_offset = 0;
    uint64_t bytes = 0;
  };
  std::vector<Copy> copies() const ABSL_LOCKS_EXCLUDED(mu_);

  const DeviceInfo& info() const override { return device_.info(); }
  absl::Status CreateSlab(const SlabSpec& spec) override;
  absl::Status AdoptSlab(const SlabSpec& spec, hoist::UniqueFd fd) override {
    return device_.AdoptSlab(spec, std::move(fd));
  }
  absl::Status DestroySlab(SlabId id) override;
  absl::Status ZeroSlab(SlabId id) override;
  absl::StatusOr<SlabShare> Share(SlabId id) const override;
  absl::Status RegisterHost(std::span<std::byte> memory) override;
  absl::Status UnregisterHost(std::span<std::byte> memory) override;
  absl::StatusOr<std::unique_ptr<CopyStream>> CreateStream() override;

 private:
  friend class FaultyStream;

  struct Fault {
    int calls = 0;
    int fail_at = 0;  // In `calls`; 0: none, -1: all.
    absl::Status error;
  };

  // Counts the call; the error to fail with, or Ok.
  absl::Status Count(DeviceCall call) const ABSL_LOCKS_EXCLUDED(mu_);
  void GateCopies(CopyStream& stream) ABSL_LOCKS_EXCLUDED(mu_);
  void Note(const Copy& copy) ABSL_LOCKS_EXCLUDED(mu_);

  Device& device_;
  mutable absl::Mutex mu_;
  mutable std::map<DeviceCall, Fault> faults_ ABSL_GUARDED_BY(mu_);
  bool gated_ ABSL_GUARDED_BY(mu_) = false;
  bool slabs_go_ ABSL_GUARDED_BY(mu_) = true;
  std::vector<Copy> copies_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_FAULTY_DEVICE_H_
