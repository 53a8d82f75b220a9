// Checks of what lies on a device, over its real memory, link and mover.
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_rig.h"

namespace hoistd::engine_check_test {

using ::testing::AllOf;
using testing::Answer;
using testing::DeviceCall;
using testing::EngineRig;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Two pieces of content, and chunks that do not fit.
constexpr uint64_t kBytes = 20 * kMiB + 4096;
const TierAt kDevice = OnDevice(DeviceIndex(0));

class EngineCheck : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(rig_.Start());
    session_ = rig_.Open();
    ASSERT_OK_AND_ASSIGN(
        const ModelPtr model,
        rig_.Ask(session_, EngineRig::Image("m", "g", kBytes)));
    key_ = {model->id, GroupIndex(0)};
    ASSERT_OK_AND_ASSIGN(lease_, rig_.Stage(session_, key_));
  }
  absl::StatusOr<CheckProgress> Check(bool repair) {
    return rig_.Ask(CheckArgs{EngineRig::kAdmin, /*model=*/"", repair,
                              [](const CheckProgress&) {}});
  }
  // One bit, where it lies.
  void FlipOnDevice(uint64_t at) {
    std::string bytes = rig_.BytesOf(lease_).substr(at, 1);
    bytes[0] = static_cast<char>(bytes[0] ^ 4);
    auto stream = *rig_.faulty_device->CreateStream();
    ASSERT_OK(stream->CopyIn(lease_.offset + at,
                             std::as_bytes(std::span(bytes.data(), 1))));
    Answer<absl::Status> answer;
    stream->Then(answer.done());
    ASSERT_OK(answer.Wait());
  }
  bool Right() {
    return rig_.BytesOf(lease_) == EngineRig::PublishedBytes("g", kBytes);
  }

  EngineRig rig_{
      {.host_bytes = 32 * kMiB, .device_bytes = 32 * kMiB, .spills = false}};
  SessionId session_;
  GroupKey key_;
  LeaseGrant lease_;
};

TEST_F(EngineCheck, WhatIsRightIsFoundRight) {
  ASSERT_OK_AND_ASSIGN(const CheckProgress checked, Check(/*repair=*/false));
  EXPECT_THAT(checked.findings, IsEmpty());
  EXPECT_EQ(checked.read_bytes, 2 * kBytes);  // Host and device.
  // A chunk at a time.
  EXPECT_GE(rig_.faulty_device->calls(DeviceCall::kCopyOut), 6);
  EXPECT_TRUE(Right());
}

TEST_F(EngineCheck, ABitThatFlippedAnywhereIsFoundAndRepaired) {
  for (const uint64_t at : {uint64_t{0}, 4 * kMiB - 1, 16 * kMiB, kBytes - 1}) {
    FlipOnDevice(at);
    ASSERT_FALSE(Right());
    ASSERT_OK_AND_ASSIGN(const CheckProgress found, Check(/*repair=*/true));
    ASSERT_THAT(found.findings, SizeIs(1)) << at;
    EXPECT_EQ(found.findings[0].at, kDevice);
    EXPECT_THAT(found.findings[0].what,
                AllOf(HasSubstr("its bytes changed"),
                      HasSubstr("loaded again where it lies, and is right"),
                      HasSubstr("(test)")));
    EXPECT_TRUE(Right()) << "at the same address";
    ASSERT_OK_AND_ASSIGN(const CheckProgress again, Check(/*repair=*/false));
    EXPECT_THAT(again.findings, IsEmpty());
  }
}

TEST_F(EngineCheck, WithoutRepairItIsPutAsideWhenItIsReleased) {
  FlipOnDevice(5);
  ASSERT_OK_AND_ASSIGN(const CheckProgress found, Check(/*repair=*/false));
  ASSERT_THAT(found.findings, SizeIs(1));
  EXPECT_THAT(rig_.Stage(rig_.Open(), key_),
              StatusIs(absl::StatusCode::kDataLoss));
  ASSERT_OK(rig_.Release(session_, lease_.id));
  EXPECT_EQ(rig_.UsedOf(kDevice), 0u);
  ASSERT_OK_AND_ASSIGN(lease_, rig_.Stage(session_, key_));
  EXPECT_TRUE(Right());
}

TEST_F(EngineCheck, WithoutARightCopyNobodyGetsIt) {
  FlipOnDevice(5);
  const std::string bytes = EngineRig::PublishedBytes("g", 4096);
  const std::span<std::byte> host = rig_.host();
  const auto wanted = std::as_bytes(std::span(bytes.data(), bytes.size()));
  const auto at =
      std::search(host.begin(), host.end(), wanted.begin(), wanted.end());
  ASSERT_NE(at, host.end());
  *at ^= std::byte{1};
  ASSERT_OK_AND_ASSIGN(const CheckProgress found, Check(/*repair=*/true));
  ASSERT_THAT(found.findings, SizeIs(2));
  EXPECT_EQ(found.findings[1].at, kDevice);
  EXPECT_THAT(found.findings[1].what,
              HasSubstr("neither the host nor the disk has its bytes"));
  ASSERT_OK(rig_.Release(session_, lease_.id));
  EXPECT_EQ(rig_.UsedOf(kDevice), 0u);
  EXPECT_THAT(rig_.Stage(session_, key_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("is lost")));
}

TEST_F(EngineCheck, ADeviceThatDoesNotAnswerIsNoDamage) {
  for (const DeviceCall call :
       {DeviceCall::kRegisterHost, DeviceCall::kCopyOut}) {
    rig_.faulty_device->FailNth(call, 1, absl::InternalError("as told"));
    ASSERT_OK_AND_ASSIGN(const CheckProgress found, Check(/*repair=*/true));
    ASSERT_THAT(found.findings, SizeIs(1));
    EXPECT_THAT(found.findings[0].what,
                AllOf(HasSubstr("cannot be read"), HasSubstr("as told")));
  }
  ASSERT_OK_AND_ASSIGN(const CheckProgress checked, Check(/*repair=*/false));
  EXPECT_THAT(checked.findings, IsEmpty());
}

}  // namespace hoistd::engine_check_test
