// The fixture of the streamer's tests: an emulated device, a host pool with an
// image for each group, and clients that check every staged byte.
#ifndef HOIST_TESTS_UNIT_STREAM_RIG_H_
#define HOIST_TESTS_UNIT_STREAM_RIG_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "daemon/device/emulated_device.h"
#include "daemon/stream/streamer.h"
#include "gtest/gtest.h"
#include "tests/support/faulty_device.h"
#include "tests/support/lane_client.h"
#include "tests/support/until.h"

namespace hoistd::testing {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;

// Time that advances at the test's command.
class HandClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::Seconds(seconds_.load());
  }
  void Advance(int64_t seconds) { seconds_ += seconds; }

 private:
  std::atomic<int64_t> seconds_ = 1'000'000;
};

struct RigOptions {
  uint64_t device_bytes = 64 * kMiB;
  uint64_t host_bytes = 64 * kMiB;
  uint64_t link_bytes_per_second = 0;
  const Clock* clock = nullptr;  // nullptr: the true one.
  TraceRecorder* trace = nullptr;
};

// A plan's lane from a test's view.
struct TestLane {
  PlanId plan;
  LaneSpec spec;
  std::vector<uint64_t> host;  // Where each image lies.
  std::unique_ptr<LaneClient> client;
};

class StreamRig {
 public:
  explicit StreamRig(const RigOptions& options = {});
  ~StreamRig();

  // Groups of these `sizes`, in a ring of `slots` equal places in turns; on the
  // host their images are `apart` bytes apart.
  TestLane Make(const std::vector<uint64_t>& sizes, size_t slots,
                std::vector<uint32_t> order = {}, uint64_t apart = 0);
  // Opens the lane; then all groups are ready on the host, if `ready`.
  void Open(TestLane& lane, bool ready = true);
  absl::Status TryOpen(TestLane& lane);
  void HostReady(const TestLane& lane, LaneGroup group, bool once = false);
  void Close(PlanId plan);
  // The streamer ends, and another resumes these lanes. Memory that no word of
  // a lane marks as used becomes garbage, as after half a copy.
  void Succeed(const std::vector<TestLane*>& lanes);
  // The same for a lane that perhaps cannot be resumed.
  absl::Status TrySucceed(TestLane& lane);
  // All lanes are closed: reuse their memory.
  void Reuse() { device_used_ = host_used_ = 0; }

  // True: the group's slot holds its image.
  bool Right(const TestLane& lane, LaneGroup group) const;
  // Stages, checks the bytes, and marks them done.
  absl::Status Step(TestLane& lane, uint64_t position);
  absl::Status StepPlace(TestLane& lane, uint32_t place);
  LaneStats Stats(PlanId plan) const;

  // The streamer's reports.
  int faults(PlanId plan) const;
  std::optional<absl::Status> fault(PlanId plan) const;
  std::vector<LaneGroup> wanted(PlanId plan) const;
  std::vector<LaneGroup> used(PlanId plan) const;
  std::vector<LaneGroup> returned(PlanId plan) const;

  Streamer& streamer() { return *streamer_; }
  Link& link() { return *link_; }
  FaultyDevice& faulty() { return *faulty_; }
  std::span<std::byte> device() const { return memory_.span(); }

 private:
  void Begin();
  absl::Status TryOpen(TestLane& lane, std::optional<LaneShare> found);
  void Scribble(TestLane& lane);

  const MonotonicClock monotonic_;
  const Clock* const clock_;
  TraceRecorder* const trace_;
  std::map<PlanId, LaneShare> kept_;
  std::unique_ptr<EmulatedDevice> device_;
  std::unique_ptr<FaultyDevice> faulty_;
  hoist::Mapping memory_;  // The device's, as a worker sees it.
  std::vector<std::byte> host_;
  uint64_t next_plan_ = 1;
  uint64_t device_used_ = 0;
  uint64_t host_used_ = 0;
  mutable absl::Mutex mu_;
  std::map<PlanId, std::vector<absl::Status>> faults_ ABSL_GUARDED_BY(mu_);
  std::map<PlanId, std::vector<LaneGroup>> wanted_ ABSL_GUARDED_BY(mu_);
  std::map<PlanId, std::vector<LaneGroup>> used_ ABSL_GUARDED_BY(mu_);
  std::map<PlanId, std::vector<LaneGroup>> returned_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Link> link_;
  std::unique_ptr<Streamer> streamer_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_UNIT_STREAM_RIG_H_
