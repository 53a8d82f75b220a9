// The suite's own tool: a fault that is not injected shows nothing.
#include "tests/support/faulty_device.h"

#include <atomic>
#include <future>

#include "daemon/device/emulated_device.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::testing::faulty_device_test {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class FaultyDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(inner_,
                         EmulatedDevice::Create({.total_bytes = 8 * kMiB}));
    faulty_ = std::make_unique<FaultyDevice>(*inner_);
  }

  std::unique_ptr<Device> inner_;
  std::unique_ptr<FaultyDevice> faulty_;
  const absl::Status error_ = absl::DataLossError("as told");
};

TEST_F(FaultyDeviceTest, OnlyTheNthCallOfItsKindFails) {
  faulty_->FailNth(DeviceCall::kCreateSlab, 2, error_);
  EXPECT_OK(faulty_->CreateSlab({SlabId(1), 0, 2 * kMiB}));
  EXPECT_EQ(faulty_->CreateSlab({SlabId(2), 2 * kMiB, 2 * kMiB}), error_);
  EXPECT_OK(faulty_->CreateSlab({SlabId(2), 2 * kMiB, 2 * kMiB}));
  EXPECT_EQ(faulty_->calls(DeviceCall::kCreateSlab), 3);
  faulty_->FailAll(DeviceCall::kDestroySlab, error_);
  EXPECT_EQ(faulty_->DestroySlab(SlabId(1)), error_);
  EXPECT_EQ(faulty_->DestroySlab(SlabId(1)), error_);
  faulty_->FailNth(DeviceCall::kDestroySlab, 0, absl::OkStatus());
  EXPECT_OK(faulty_->DestroySlab(SlabId(1)));
}

TEST_F(FaultyDeviceTest, AFailingThenTellsItsCallback) {
  ASSERT_OK_AND_ASSIGN(const auto stream, faulty_->CreateStream());
  faulty_->FailNth(DeviceCall::kThen, 1, error_);
  std::promise<absl::Status> first, second;
  stream->Then([&](absl::Status s) { first.set_value(std::move(s)); });
  stream->Then([&](absl::Status s) { second.set_value(std::move(s)); });
  EXPECT_EQ(first.get_future().get(), error_);
  EXPECT_OK(second.get_future().get());
}

TEST_F(FaultyDeviceTest, CopiesThatAreHeldKeepBackTheWordsBehindThem) {
  ASSERT_OK(inner_->CreateSlab({SlabId(1), 0, 2 * kMiB}));
  ASSERT_OK_AND_ASSIGN(const auto stream, faulty_->CreateStream());
  const std::vector<std::byte> from(64);
  std::atomic<uint32_t> word = 0;
  const WordWrite write = {&word, 1};
  faulty_->HoldCopies();
  ASSERT_OK(stream->CopyIn(0, from));
  ASSERT_OK(stream->WriteWords({&write, 1}));
  std::promise<uint32_t> seen;
  stream->Then([&](const absl::Status&) { seen.set_value(word); });
  faulty_->WaitForCopies(1);
  EXPECT_EQ(word, 0u);
  faulty_->LetCopiesGo();
  EXPECT_EQ(seen.get_future().get(), 1u);
}

TEST_F(FaultyDeviceTest, WordsAndHealthFailWhenTold) {
  std::atomic<uint32_t> word = 0;  // The stream writes it until it ends.
  ASSERT_OK_AND_ASSIGN(const auto stream, faulty_->CreateStream());
  const WordWrite write = {&word, 1};
  EXPECT_OK(stream->Health());
  faulty_->FailAll(DeviceCall::kHealth, error_);
  faulty_->FailNth(DeviceCall::kWriteWords, 1, error_);
  EXPECT_EQ(stream->Health(), error_);
  EXPECT_EQ(stream->WriteWords({&write, 1}), error_);
  EXPECT_OK(stream->WriteWords({&write, 1}));
}

}  // namespace hoistd::testing::faulty_device_test
