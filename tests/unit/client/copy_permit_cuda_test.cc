// Copy permits on a GPU's streams; the test plays hoistd. Runs over the fake
// driver where there is no GPU.
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/src/device/cuda_context.h"
#include "client/src/permit/copy_permit.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_permit.h"

namespace hoist_test::copy_permit_cuda_test {

using hoist::Code;
using hoist::CopyPermit;
using hoist::Status;
namespace cuda = hoist::cuda;

constexpr uint32_t kPiece = hoist::permit::kPieceBytes;
constexpr uint64_t kBytes = 2 * uint64_t{kPiece} + 7;

// Each test with stream memory operations, and with host functions.
class CudaPermit : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    hoist::Result<cuda::Driver> driver = cuda::Driver::Load();
    if (!driver.ok()) GTEST_SKIP() << driver.status().ToString();
    driver_ = *driver;
    cuda::DeviceId device = 0;
    ASSERT_EQ(driver_.device_get(&device, 0), cuda::kSuccess);
    ASSERT_EQ(driver_.device_uuid(&uuid_, device), cuda::kSuccess);
    auto context = hoist::CudaContext::Open(uuid_.bytes);
    ASSERT_TRUE(context.ok()) << context.status().ToString();
    context_ = std::move(context).value();
    ASSERT_EQ(driver_.push_context(context_->context()), cuda::kSuccess);
    for (cuda::Stream& stream : streams_) {
      ASSERT_EQ(driver_.stream_create(&stream, cuda::kStreamNonBlocking),
                cuda::kSuccess);
    }
    ASSERT_EQ(driver_.alloc(&to_, kBytes), cuda::kSuccess);
    // A copy of memory that is not pinned waits for its grant in the call.
    ASSERT_EQ(driver_.host_register(
                  from_.data(), from_.size(),
                  cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap),
              cuda::kSuccess);
    for (size_t i = 0; i < from_.size(); ++i) from_[i] = char(i * 7 + i / 4096);
    daemon_ = std::make_unique<FakeDaemon>(
        [this](Peer& peer, const pb::ClientMessage& message,
               const std::vector<int>& fds) {
          if (!message.has_open_session()) {
            return script_.script()(peer, message, fds);
          }
          pb::DaemonMessage reply = daemon_->OpenReply(message.request_id());
          pb::Device& gpu = *reply.mutable_open_session()->mutable_devices(0);
          gpu.set_kind(pb::DEVICE_KIND_CUDA);
          gpu.set_uuid(uuid_.bytes.data(), uuid_.bytes.size());
          peer.Send(reply);
          return true;
        });
    hoist_connect_options options = {};
    options.socket_path = daemon_->path().c_str();
    options.client_name = "test";
    options.call_deadline_ms = 60'000;
    auto session = hoist::Session::Connect(options);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    session_ = *session;
    setenv("HOIST_STREAM_OPS", GetParam(), 1);
    auto permit = CopyPermit::Open(session_, {});
    unsetenv("HOIST_STREAM_OPS");
    ASSERT_TRUE(permit.ok()) << permit.status().ToString();
    permit_ = std::move(permit).value();
  }

  void TearDown() override {
    permit_.reset();
    session_.reset();
    if (context_ == nullptr) return;
    for (cuda::Stream stream : streams_) driver_.stream_destroy(stream);
    driver_.free(to_);
    driver_.host_unregister(from_.data());
    cuda::Context popped = nullptr;
    driver_.pop_context(&popped);
  }

  FakePage& page() { return script_.page(0); }
  bool Idle(cuda::Stream stream) {
    return driver_.stream_query(stream) == cuda::kSuccess;
  }
  void Copy(cuda::Stream stream) {
    const Status put = permit_->ToDevice(reinterpret_cast<void*>(to_),
                                         from_.data(), kBytes, stream);
    ASSERT_TRUE(put.ok()) << put.ToString();
  }
  // What the device has of the first so many bytes is what was copied.
  bool Right(uint64_t bytes) {
    std::string copied(bytes, 0);
    return driver_.copy_out(copied.data(), to_, bytes) == cuda::kSuccess &&
           from_.compare(0, bytes, copied) == 0;
  }

  cuda::Driver driver_ = {};
  cuda::Uuid uuid_ = {};
  std::unique_ptr<hoist::CudaContext> context_;
  std::array<cuda::Stream, 2> streams_ = {};
  cuda::Address to_ = 0;
  std::string from_ = std::string(kBytes, 0);
  PermitScript script_;
  std::unique_ptr<FakeDaemon> daemon_;
  std::shared_ptr<hoist::Session> session_;
  std::unique_ptr<CopyPermit> permit_;
};

TEST_P(CudaPermit, AsksForAllAtOnceAndWaitsForEachPieceOnTheStream) {
  Copy(streams_[0]);
  ASSERT_TRUE(page().AwaitAsked(static_cast<uint32_t>(kBytes)));
  EXPECT_FALSE(Idle(streams_[0]));
  EXPECT_EQ(page().page().done.load(), 0u);
  page().Grant(kPiece);
  ASSERT_TRUE(page().AwaitDone(kPiece));
  EXPECT_TRUE(Right(kPiece));
  page().Grant(static_cast<uint32_t>(kBytes));
  ASSERT_TRUE(page().AwaitDone(static_cast<uint32_t>(kBytes)));
  ASSERT_EQ(driver_.stream_sync(streams_[0]), cuda::kSuccess);
  EXPECT_TRUE(Right(kBytes));
  EXPECT_EQ(permit_->stats().granted_bytes, kBytes);
}

// An ask that waits for kernels would hold a place of everybody's link.
TEST_P(CudaPermit, AsksOnlyOnceTheStreamHasComeSoFar) {
  ASSERT_TRUE(permit_->Begin(1000, streams_[0]).ok());
  ASSERT_TRUE(permit_->End(1000, streams_[0]).ok());
  ASSERT_TRUE(permit_->Begin(500, streams_[0]).ok());
  ASSERT_TRUE(permit_->End(500, streams_[0]).ok());
  ASSERT_TRUE(page().AwaitAsked(1000));
  EXPECT_EQ(page().page().put.load(), 1500u);
  EXPECT_EQ(page().page().asked.load(), 1000u);
  page().Grant(1000);
  ASSERT_TRUE(page().AwaitAsked(1500));
  EXPECT_EQ(page().page().done.load(), 1000u);
  page().Grant(1500);
  ASSERT_TRUE(page().AwaitDone(1500));
}

TEST_P(CudaPermit, StreamsAskInTheOrderOfTheCalls) {
  ASSERT_TRUE(permit_->Begin(10, streams_[0]).ok());
  ASSERT_TRUE(permit_->End(10, streams_[0]).ok());
  ASSERT_TRUE(permit_->Begin(20, streams_[1]).ok());
  ASSERT_TRUE(permit_->End(20, streams_[1]).ok());
  ASSERT_TRUE(page().AwaitAsked(10));
  EXPECT_FALSE(Idle(streams_[1]));
  EXPECT_EQ(page().page().asked.load(), 10u);
  page().Grant(10);
  ASSERT_TRUE(page().AwaitAsked(30));
  page().Grant(30);
  ASSERT_TRUE(page().AwaitDone(30));
}

TEST_P(CudaPermit, ItsEndLetsThroughWhatWaits) {
  Copy(streams_[0]);
  ASSERT_TRUE(page().AwaitAsked(static_cast<uint32_t>(kBytes)));
  permit_.reset();
  EXPECT_TRUE(Idle(streams_[0]));
  EXPECT_TRUE(Right(kBytes));
  EXPECT_EQ(script_.closed().size(), 1u);
}

TEST_P(CudaPermit, TheSessionsEndLetsThroughWhatWaits) {
  Copy(streams_[0]);
  ASSERT_TRUE(page().AwaitAsked(static_cast<uint32_t>(kBytes)));
  session_->Close();
  ASSERT_EQ(driver_.stream_sync(streams_[0]), cuda::kSuccess);
  EXPECT_TRUE(Right(kBytes));
  Copy(streams_[0]);
  ASSERT_EQ(driver_.stream_sync(streams_[0]), cuda::kSuccess);
  EXPECT_EQ(permit_->stats().ungranted_bytes, kBytes);
}

TEST_P(CudaPermit, WhatComesFromTheDeviceIsCountedAsItIsPut) {
  ASSERT_EQ(driver_.copy_in(to_, from_.data(), kBytes), cuda::kSuccess);
  std::string copied(kBytes, 0);
  ASSERT_TRUE(permit_
                  ->ToHost(copied.data(), reinterpret_cast<void*>(to_), kBytes,
                           streams_[1])
                  .ok());
  EXPECT_EQ(page().page().read.load(), kBytes);
  ASSERT_EQ(driver_.stream_sync(streams_[1]), cuda::kSuccess);
  EXPECT_TRUE(copied == from_);
}

INSTANTIATE_TEST_SUITE_P(
    Both, CudaPermit, ::testing::Values("1", "0"),
    [](const ::testing::TestParamInfo<const char*>& which) {
      return std::string(which.param[0] == '1' ? "MemOps" : "HostFunctions");
    });

}  // namespace hoist_test::copy_permit_cuda_test
