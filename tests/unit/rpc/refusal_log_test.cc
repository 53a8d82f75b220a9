// Each call that is refused is one line of the log, at the level that fits.
#include "daemon/rpc/refusal_log.h"

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/captured_log.h"
#include "tests/unit/rpc/rpc_fixture.h"

namespace hoistd::refusal_log_test {

using ::hoistd::testing::CapturedLog;
using ::hoistd::testing::RpcTest;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
namespace v1 = hoist::v1;

class RefusalLogTest : public RpcTest {
 protected:
  void SetUp() override {
    RpcTest::SetUp();
    spdlog::set_level(spdlog::level::debug);
  }
  void TearDown() override {
    spdlog::set_level(spdlog::level::info);
    RpcTest::TearDown();
  }
  // That the engine refuses so.
  grpc::Status Describe(const absl::Status& why) {
    engine_.verb<DescribeModelArgs>().Answer(
        [why](auto call) { call.done(why); });
    v1::WorkerDescribeModelRequest request;
    request.set_name("m");
    v1::Model model;
    grpc::ClientContext context;
    return worker_->DescribeModel(&context, request, &model);
  }
  std::string Me() const {
    return absl::StrCat("pid ", getpid(), " uid ", geteuid(), ": ");
  }

  CapturedLog log_;
};

TEST_F(RefusalLogTest, SaysWhoWasRefusedWhatAndWhy) {
  EXPECT_FALSE(Describe(absl::PermissionDeniedError("not\nyours \"x\"")).ok());
  EXPECT_THAT(
      log_.lines("pid "),
      ElementsAre(absl::StrCat(Me(),
                               "DescribeModel is refused: PERMISSION_DENIED: "
                               "not\\nyours \\\"x\\\"")));
}

TEST_F(RefusalLogTest, WhatAWorkerMayCountOnIsForWhoDebugs) {
  spdlog::set_level(spdlog::level::info);
  EXPECT_FALSE(Describe(absl::NotFoundError("no model m")).ok());
  EXPECT_THAT(log_.lines(""), IsEmpty());
  spdlog::set_level(spdlog::level::debug);
  EXPECT_FALSE(Describe(absl::NotFoundError("no model m")).ok());
  EXPECT_THAT(log_.lines("pid "),
              ElementsAre(absl::StrCat(
                  Me(), "DescribeModel is refused: NOT_FOUND: no model m")));
}

TEST_F(RefusalLogTest, OfAnActOfAnAdminTheAuditTells) {
  spdlog::set_level(spdlog::level::info);
  v1::SetShareResponse response;
  grpc::ClientContext context;
  EXPECT_FALSE(
      admin_->SetShare(&context, v1::SetShareRequest(), &response).ok());
  EXPECT_EQ(log_.lines("audit: ").size(), 1u);
  EXPECT_EQ(log_.lines("").size(), 1u);
}

}  // namespace hoistd::refusal_log_test
