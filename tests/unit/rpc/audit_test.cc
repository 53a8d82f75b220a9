// Every act of an admin is one line in the log, however it ends.
#include "daemon/rpc/audit.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/captured_log.h"
#include "tests/unit/rpc/lent_books.h"
#include "tests/unit/rpc/rpc_fixture.h"
#include "tests/unit/rpc/strangers_admin.h"

namespace hoistd::audit_test {

using ::hoistd::testing::CapturedLog;
using ::hoistd::testing::MakeModel;
using ::hoistd::testing::RpcTest;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;
namespace v1 = hoist::v1;

class AuditTest : public RpcTest {
 protected:
  void SetUp() override {
    std::ofstream(dir_.path() + "/tiny.safetensors") << "bytes";
    RpcOptions options;
    options.model_roots = {dir_.path()};
    Serve(options);
  }

  static v1::CopySelector Copies() {
    v1::CopySelector copies;
    copies.set_model("m");
    copies.set_group("g");
    copies.set_tier(v1::TIER_DEVICE);
    copies.set_device(1);
    return copies;
  }
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (v1::Admin::Stub::*verb)(grpc::ClientContext*,
                                                          const Request&,
                                                          Response*),
                    const Request& request) {
    grpc::ClientContext context;
    Response response;
    return (admin_.get()->*verb)(&context, request, &response);
  }
  template <typename Message>
  static grpc::Status End(grpc::ClientReader<Message>& stream) {
    Message message;
    while (stream.Read(&message)) {
    }
    return stream.Finish();
  }
  // What the one new line says after who it was.
  std::string Told() {
    const std::string who =
        absl::StrCat(" uid=", geteuid(), " pid=", getpid(), " on=");
    const std::vector<std::string> lines = log_.lines("audit: ");
    EXPECT_THAT(lines, SizeIs(++told_));
    EXPECT_THAT(lines.back(), HasSubstr(who));
    return lines.back();
  }

  CapturedLog log_;

 private:
  size_t told_ = 0;
};

TEST_F(AuditTest, CopiesThatArePinnedUnpinnedAndEvicted) {
  const auto answer = [](auto call) {
    CopyTotals totals;
    totals.groups = 2;
    totals.bytes = 8192;
    call.done(totals);
  };
  engine_.verb<PinArgs>().Answer(answer);
  engine_.verb<UnpinArgs>().Answer(answer);
  engine_.verb<EvictArgs>().Answer(answer);
  const std::string end =
      "on=\"m/g on device 1\" result=OK groups=2 bytes=8192";
  v1::PinRequest pin;
  *pin.mutable_copies() = Copies();
  EXPECT_TRUE(Call(&v1::Admin::Stub::Pin, pin).ok());
  EXPECT_THAT(Told(), AllOf(HasSubstr("act=pin "), EndsWith(end)));
  v1::UnpinRequest unpin;
  *unpin.mutable_copies() = Copies();
  EXPECT_TRUE(Call(&v1::Admin::Stub::Unpin, unpin).ok());
  EXPECT_THAT(Told(), AllOf(HasSubstr("act=unpin "), EndsWith(end)));
  v1::EvictRequest evict;
  *evict.mutable_copies() = Copies();
  EXPECT_TRUE(Call(&v1::Admin::Stub::Evict, evict).ok());
  EXPECT_THAT(Told(), AllOf(HasSubstr("act=evict "), EndsWith(end)));
  v1::EvictRequest forget;
  forget.mutable_copies()->set_model("m");
  forget.set_forget(true);
  EXPECT_TRUE(Call(&v1::Admin::Stub::Evict, forget).ok());
  EXPECT_THAT(Told(), AllOf(HasSubstr("act=forget "),
                            HasSubstr("on=\"m\" result=OK groups=2")));
}

TEST_F(AuditTest, ASharesOldAndNewNumbers) {
  engine_.verb<SetShareArgs>().Answer([](auto call) {
    ShareChanged changed;
    changed.before.weight = 4;
    changed.after = call.args.change.AppliedTo(changed.before);
    call.done(changed);
  });
  v1::SetShareRequest request;
  request.set_plan_id(31);
  request.mutable_change()->set_change_priority(true);
  request.mutable_change()->set_priority(-5);
  EXPECT_TRUE(Call(&v1::Admin::Stub::SetShare, request).ok());
  EXPECT_THAT(Told(), AllOf(HasSubstr("act=share "),
                            EndsWith("on=\"plan 31\" result=OK weight=4->4 "
                                     "priority=0->-5 "
                                     "max_bytes_per_second=0->0")));
}

TEST_F(AuditTest, ALoadWithWhatItBroughtUp) {
  engine_.verb<RegisterModelArgs>().Answer(
      [](auto call) { call.done(MakeModel("tiny", {"a"})); });
  engine_.verb<LoadArgs>().Answer([](auto call) {
    LoadProgress progress;
    progress.done_groups = 1;
    progress.done_bytes = 4096;
    call.done(progress);
  });
  v1::LoadRequest request;
  request.set_path(dir_.path() + "/tiny.safetensors");
  grpc::ClientContext context;
  EXPECT_TRUE(End<v1::LoadProgress>(*admin_->Load(&context, request)).ok());
  EXPECT_THAT(Told(), AllOf(HasSubstr("act=load "),
                            HasSubstr("/tiny.safetensors\" result=OK groups=1 "
                                      "bytes=4096 left_out_groups=0")));
}

TEST_F(AuditTest, ADrainWhenTheNodeClosesAndOpens) {
  engine_.verb<SetDrainingArgs>().Answer(
      [](auto call) { call.done(absl::OkStatus()); });
  testing::LentBooks books;
  books.LendTo(engine_);
  v1::DrainRequest request;
  for (const bool resume : {false, true}) {
    request.set_resume(resume);
    grpc::ClientContext context;
    EXPECT_TRUE(End<v1::DrainProgress>(*admin_->Drain(&context, request)).ok());
    EXPECT_THAT(Told(), AllOf(HasSubstr(resume ? "act=resume " : "act=drain "),
                              EndsWith("on=\"the node\" result=OK")));
  }
}

TEST_F(AuditTest, WhatFailedWithItsReasonOnOneLine) {
  engine_.verb<EvictArgs>().Answer([](auto call) {
    call.done(absl::NotFoundError("no model\naudit: act=evict uid=0"));
  });
  v1::EvictRequest evict;
  evict.mutable_copies()->set_model("m\naudit: act=pin uid=0\" result=OK");
  EXPECT_FALSE(Call(&v1::Admin::Stub::Evict, evict).ok());
  EXPECT_THAT(Told(), AllOf(HasSubstr("on=\"m\\naudit: act=pin uid=0\\\" "),
                            HasSubstr("\" result=NOT_FOUND why=\"no model\\n"),
                            ::testing::Not(HasSubstr("\n"))));
  // Refused before the engine has seen it.
  EXPECT_FALSE(Call(&v1::Admin::Stub::Pin, v1::PinRequest()).ok());
  EXPECT_THAT(Told(), HasSubstr("result=INVALID_ARGUMENT"));
  EXPECT_FALSE(Call(&v1::Admin::Stub::SetShare, v1::SetShareRequest()).ok());
  EXPECT_THAT(Told(), HasSubstr("result=INVALID_ARGUMENT"));
  v1::LoadRequest outside;
  outside.set_path("/etc");
  grpc::ClientContext context;
  EXPECT_FALSE(admin_->Load(&context, outside)->Finish().ok());
  EXPECT_THAT(Told(), AllOf(HasSubstr("act=load "), HasSubstr("on=\"/etc\""),
                            HasSubstr("result=PERMISSION_DENIED")));
}

TEST(Audit, SaysWhoWasRefusedAndWhat) {
  CapturedLog log;
  testing::StrangersAdmin admin;
  v1::EvictRequest evict;
  evict.mutable_copies()->set_model("m");
  v1::EvictResponse evicted;
  grpc::ClientContext evicting, draining, asking;
  EXPECT_FALSE(admin->Evict(&evicting, evict, &evicted).ok());
  EXPECT_FALSE(admin->Drain(&draining, v1::DrainRequest())->Finish().ok());
  // Who only looks changes nothing, and is not told of.
  v1::NodeStatus status;
  EXPECT_FALSE(admin->Status(&asking, v1::StatusRequest(), &status).ok());
  EXPECT_THAT(
      log.lines("audit: "),
      ElementsAre(HasSubstr("act=evict uid=1234 pid=77 on=\"m\" "
                            "result=PERMISSION_DENIED why=\"Admin is for"),
                  HasSubstr("act=drain uid=1234 pid=77 on=\"the node\" "
                            "result=PERMISSION_DENIED")));
}

}  // namespace hoistd::audit_test
