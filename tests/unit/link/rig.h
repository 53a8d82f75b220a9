// The fixture of the link's tests: an emulated device, images in host memory,
// and customers that copy at full speed.
#ifndef HOIST_TESTS_UNIT_LINK_RIG_H_
#define HOIST_TESTS_UNIT_LINK_RIG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "daemon/device/emulated_device.h"
#include "daemon/link/link.h"
#include "gtest/gtest.h"
#include "tests/support/faulty_device.h"
#include "tests/support/until.h"

namespace hoistd::testing {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kSmall = Link::kSmallPieceBytes;

// Time that advances at the test's command.
class StepClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() + absl::Hours(1) +
           absl::Nanoseconds(nanoseconds_.load());
  }
  void Advance(absl::Duration by) {
    nanoseconds_ += absl::ToInt64Nanoseconds(by);
  }

 private:
  std::atomic<int64_t> nanoseconds_ = 0;
};

// A plan from the link's view: `pieces` pieces of `bytes`, each available once
// fewer than `at_once` of them are in flight. One takes `takes` of the clock's
// time.
class Repeater final : public LinkCustomer {
 public:
  struct Options {
    uint64_t to_offset = 0;
    std::span<const std::byte> from;  // The same bytes, over and over.
    int pieces = 0;
    int at_once = Link::kPiecesUnderWay;
    StepClock* clock = nullptr;
    absl::Duration takes = absl::ZeroDuration();
  };
  explicit Repeater(const Options& options) : options_(options) {}

  bool Look(absl::Time) override { return false; }
  bool HasPiece() override {
    return taken_ < options_.pieces && taken_ - ended_ < options_.at_once;
  }
  LinkPiece TakePiece(uint64_t) override;
  void Refused(const absl::Status&) override { ADD_FAILURE(); }
  void Ended(const absl::Status&, absl::Time) override { ++ended_; }
  void Fail(absl::Status) override { options_.pieces = 0; }
  bool quiet(bool) const override { return ended_ == options_.pieces; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  TraceWhy why_idle() const override { return TraceWhy::kNotDue; }
  void SetSleeping(bool) override {}

  int ended() const { return ended_; }

 private:
  Options options_;
  int taken_ = 0;
  std::atomic<int> ended_ = 0;
};

class LinkRig {
 public:
  static constexpr uint64_t kBytes = 128 * kMiB;  // Host and device.

  explicit LinkRig(LinkOptions options = {});
  ~LinkRig();

  // Queues nothing more until Go(), so that all parties to be compared are
  // there. Pieces in flight end.
  void Wait();
  void Go() { go_->Notify(); }
  // Waits until all posts, and a look after them, have run.
  void Settle();

  // A plan whose ring is [offset, offset + bytes); gone when the rig is.
  Repeater& AddPlan(PlanId plan, uint64_t offset, uint64_t bytes,
                    Repeater::Options options, const ShareOptions& share = {});
  // Copies [offset, offset + bytes) of the host to the same place on the
  // device; and behind it more rows of as many bytes, `pitch` apart.
  TransferId Copy(uint64_t offset, uint64_t bytes, bool urgent,
                  uint64_t rows = 1, uint64_t pitch = 0);
  // The status given to its `done`; nullopt: none yet.
  std::optional<absl::Status> end(TransferId id) const;
  // Waits for its status.
  absl::Status WaitFor(TransferId id) const;
  // True: the device has the image.
  bool Right(uint64_t offset, uint64_t bytes) const;

  // Bytes within [offset, offset + bytes) in the first `copies` queued copies.
  uint64_t BytesTo(uint64_t offset, uint64_t bytes, size_t copies) const;

  Link& link() { return *link_; }
  FaultyDevice& faulty() { return *faulty_; }
  StepClock& clock() { return clock_; }
  TraceRecorder& recorder() { return recorder_; }
  std::span<const std::byte> host() const { return host_; }
  void EndLink() { link_.reset(); }

 private:
  StepClock clock_;
  TraceRecorder recorder_{clock_};
  std::unique_ptr<EmulatedDevice> device_;
  std::unique_ptr<FaultyDevice> faulty_;
  hoist::Mapping memory_;  // The device's, as a worker sees it.
  std::vector<std::byte> host_;
  std::vector<std::unique_ptr<Repeater>> plans_;
  std::unique_ptr<absl::Notification> go_;
  mutable absl::Mutex mu_;
  std::vector<std::optional<absl::Status>> ends_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Link> link_;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_UNIT_LINK_RIG_H_
