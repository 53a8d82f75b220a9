// What is read back from a device, beside what is copied to it.
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/link/rig.h"

namespace hoistd::testing::read_test {

using ::testing::HasSubstr;

const PlanId kPlan(1);
constexpr uint64_t kBehind = kSmall;  // The plan's ring.

// A read of the device, into memory of its own.
class ARead {
 public:
  ARead(LinkRig& rig, uint64_t from, uint64_t bytes) : bytes_(bytes) {
    rig.link().Read({.from_offset = from,
                     .to = bytes_,
                     .done = [this](absl::Status status) {
                       const absl::MutexLock lock(&mu_);
                       ASSERT_FALSE(end_.has_value()) << "told twice";
                       end_ = std::move(status);
                     }});
  }
  std::optional<absl::Status> end() const {
    const absl::MutexLock lock(&mu_);
    return end_;
  }
  absl::Status Wait() const {
    if (!Until([&] { return end().has_value(); })) {
      return absl::DeadlineExceededError("not told in a minute");
    }
    return *end();
  }
  bool Is(std::span<const std::byte> what) const {
    return std::memcmp(bytes_.data(), what.data(), bytes_.size()) == 0;
  }

 private:
  std::vector<std::byte> bytes_;
  mutable absl::Mutex mu_;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

TEST(LinkRead, GivesWhatLiesThereAndIsNoLoad) {
  LinkRig rig({.load_bytes_per_second = 1});
  const uint64_t bytes = 70 * kMiB + 3;
  ASSERT_OK(rig.WaitFor(rig.Copy(4096, bytes, /*urgent=*/true)));
  rig.clock().Advance(absl::Seconds(1));
  const ARead all(rig, 4096, bytes);
  const ARead some(rig, 5 * kMiB, 5);
  ASSERT_OK(all.Wait());
  ASSERT_OK(some.Wait());
  EXPECT_TRUE(all.Is(rig.host().subspan(4096)));
  EXPECT_TRUE(some.Is(rig.host().subspan(5 * kMiB)));
  EXPECT_EQ(rig.faulty().calls(DeviceCall::kCopyOut), 4);  // Three pieces.
  EXPECT_EQ(rig.link().copied_bytes(LinkClass::kBackground), 0u);
}

// As for a load: it has the background's least part, in small pieces.
TEST(LinkRead, APlanThatStreamsIsNotHeldUp) {
  LinkRig rig;
  rig.Wait();
  Repeater& plan = rig.AddPlan(kPlan, 0, kSmall, {.pieces = 98, .at_once = 1});
  const ARead read(rig, kBehind, 10 * kSmall);
  rig.Go();
  ASSERT_TRUE(Until([&] { return plan.ended() == 98; }));
  rig.Settle();
  EXPECT_LE(rig.faulty().calls(DeviceCall::kCopyOut), 3);
  EXPECT_FALSE(read.end().has_value());
  rig.clock().Advance(absl::Seconds(1));
  ASSERT_OK(read.Wait());
}

class LinkReadFaults : public ::testing::TestWithParam<DeviceCall> {};

TEST_P(LinkReadFaults, AreToldToTheReadThatMetThemAndToNoOther) {
  LinkRig rig;
  ASSERT_OK(rig.WaitFor(rig.Copy(0, 80 * kMiB, true)));
  rig.clock().Advance(absl::Seconds(1));
  rig.faulty().FailNth(GetParam(), 1, absl::DataLossError("as told"));
  const ARead bad(rig, 0, 40 * kMiB);
  EXPECT_THAT(bad.Wait(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("as told")));
  const ARead good(rig, 40 * kMiB, 40 * kMiB);
  ASSERT_OK(good.Wait());
  EXPECT_TRUE(good.Is(rig.host().subspan(40 * kMiB)));
}

INSTANTIATE_TEST_SUITE_P(, LinkReadFaults,
                         ::testing::Values(DeviceCall::kCopyOut,
                                           DeviceCall::kWriteWords),
                         [](const auto& tried) {
                           return tried.param == DeviceCall::kCopyOut ? "Copy"
                                                                      : "Words";
                         });

TEST(LinkRead, IsToldOfABrokenDevice) {
  LinkRig rig;
  rig.faulty().HoldCopies();
  const TransferId image = rig.Copy(0, kMiB, true);
  rig.faulty().WaitForCopies(1);
  const ARead read(rig, 0, kMiB);  // Behind it.
  rig.faulty().FailAll(DeviceCall::kHealth, absl::InternalError("sticky"));
  EXPECT_THAT(read.Wait(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("sticky")));
  rig.faulty().LetCopiesGo();
  EXPECT_THAT(rig.WaitFor(image), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(ARead(rig, 0, kMiB).Wait(),
              StatusIs(absl::StatusCode::kInternal));
  // A device that is only said to be broken copies on, into `read`.
  rig.EndLink();
}

TEST(LinkRead, IsGivenUpWithImages) {
  LinkRig rig;
  rig.link().GiveUpImages();
  EXPECT_THAT(ARead(rig, 0, kMiB).Wait(),
              StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace hoistd::testing::read_test
