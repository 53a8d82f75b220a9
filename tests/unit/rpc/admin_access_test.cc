// Who may ask Admin for what.
#include <string>

#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/unit/rpc/lent_books.h"
#include "tests/unit/rpc/strangers_admin.h"

namespace hoistd::admin_access_test {

namespace v1 = hoist::v1;
using ::testing::HasSubstr;
using testing::LentBooks;

// The service behind a server whose peers are no admins.
TEST(AdminAccess, WhoIsNoAdminIsToldWhoIs) {
  testing::StrangersAdmin admin("hoist-admin");
  const auto expect_denied = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(status.error_message(), HasSubstr("hoist-admin"));
    EXPECT_THAT(status.error_message(), HasSubstr("1234"));
  };
  const auto unary = [&](auto method, auto request, auto response) {
    grpc::ClientContext context;
    expect_denied((admin.get()->*method)(&context, request, &response));
  };
  const auto stream = [&](auto method, auto request) {
    grpc::ClientContext context;
    expect_denied((admin.get()->*method)(&context, request)->Finish());
  };
  using Stub = v1::Admin::Stub;
  unary(&Stub::Status, v1::StatusRequest(), v1::NodeStatus());
  unary(&Stub::ListModels, v1::ListModelsRequest(), v1::ListModelsResponse());
  unary(&Stub::ListGroups, v1::ListGroupsRequest(), v1::ListGroupsResponse());
  unary(&Stub::Explain, v1::ExplainRequest(), v1::ExplainResponse());
  // Who is no admin does not learn what a share may be either.
  v1::SetShareRequest bad_share;
  bad_share.mutable_change()->set_change_weight(true);
  bad_share.mutable_change()->set_weight(1001);
  unary(&Stub::SetShare, bad_share, v1::SetShareResponse());
  unary(&Stub::SetShare, v1::SetShareRequest(), v1::SetShareResponse());
  unary(&Stub::Pin, v1::PinRequest(), v1::PinResponse());
  unary(&Stub::Unpin, v1::UnpinRequest(), v1::UnpinResponse());
  unary(&Stub::Evict, v1::EvictRequest(), v1::EvictResponse());
  unary(&Stub::Reload, v1::ReloadRequest(), v1::ReloadResponse());
  unary(&Stub::GetConfig, v1::GetConfigRequest(), v1::GetConfigResponse());
  unary(&Stub::Examine, v1::ExamineRequest(), v1::ExamineResponse());
  unary(&Stub::SetLogLevel, v1::SetLogLevelRequest(),
        v1::SetLogLevelResponse());
  stream(&Stub::Load, v1::LoadRequest());
  stream(&Stub::Check, v1::CheckRequest());
  stream(&Stub::Drain, v1::DrainRequest());
  stream(&Stub::Watch, v1::WatchRequest());
  stream(&Stub::Trace, v1::TraceRequest());
  EXPECT_EQ(admin.engine().verb<LookArgs>().calls(), 0u);
  EXPECT_EQ(admin.engine().verb<SetShareArgs>().calls(), 0u);
  EXPECT_EQ(admin.engine().verb<SetDrainingArgs>().calls(), 0u);
  EXPECT_EQ(admin.engine().verb<CheckArgs>().calls(), 0u);
  EXPECT_EQ(admin.engine().subscribers(), 0u);
  EXPECT_EQ(admin.engine().recorder.number(), 0u);
}

TEST(AdminAccess, EachUserSeesTheirOwnSessionsAndPlans) {
  LentBooks books;
  const SessionId own = books.rig.Open(1234);
  const SessionId others = books.rig.Open(5);
  for (const SessionId session : {own, others}) {
    const ModelId model =
        books.rig.AddModel(session, session == own ? "own" : "another's", {1});
    books.rig.SetPlan(session, model, {0}, 1);
  }
  // Each is asked for the other's sake.
  Tenure& tenure = books.rig.node().tenure();
  for (const auto& [id, plan] : tenure.plans().standing()) {
    const bool mine = plan.session == own;
    tenure.reclaim().loans().Ask(plan, {.why = Loan::Why::kNeed,
                                        .since = books.rig.now,
                                        .to = mine ? others : own,
                                        .to_model = plan.grant.model});
  }
  testing::StrangersAdmin admin;
  books.LendTo(admin.engine());
  grpc::ClientContext of_sessions, of_plans;
  v1::ListSessionsResponse sessions;
  ASSERT_TRUE(admin->ListSessions(&of_sessions, {}, &sessions).ok());
  ASSERT_EQ(sessions.sessions_size(), 1);
  EXPECT_EQ(sessions.sessions(0).id(), own.number());
  v1::ListPlansResponse plans;
  ASSERT_TRUE(admin->ListPlans(&of_plans, {}, &plans).ok());
  ASSERT_EQ(plans.plans_size(), 1);
  EXPECT_EQ(plans.plans(0).model(), "own");
  // And not what another user's session needs.
  ASSERT_EQ(plans.loans_size(), 1);
  EXPECT_EQ(plans.loans(0).session_id(), own.number());
  EXPECT_EQ(plans.loans(0).cause(), v1::Loan::CAUSE_NEED);
  EXPECT_EQ(plans.loans(0).to_session_id(), 0u);
  EXPECT_EQ(plans.loans(0).to_client(), "");
  EXPECT_EQ(plans.loans(0).to_model(), "");
}

TEST(AdminAccess, WhoEndsASessionIsKnownToTheEngine) {
  LentBooks books;
  const SessionId session = books.rig.Open(1234);
  const ModelId model = books.rig.AddModel(session, "m", {1});
  books.rig.StageNow(session, {model, GroupIndex(0)});
  testing::StrangersAdmin admin;
  books.LendTo(admin.engine());
  admin.engine().verb<EndSessionArgs>().Answer([&](auto call) {
    EXPECT_EQ(call.args.session, session);
    EXPECT_EQ(call.args.asker.uid, User(1234));
    EXPECT_FALSE(call.args.asker.admin);
    call.done(absl::OkStatus());
  });
  grpc::ClientContext context;
  v1::EndSessionRequest request;
  request.set_session_id(session.number());
  request.set_deadline_ms(60000);
  v1::EndSessionResponse ended;
  ASSERT_TRUE(admin->EndSession(&context, request, &ended).ok());
  EXPECT_EQ(ended.session().id(), session.number());
  EXPECT_EQ(ended.session().leases(), 1u);
}

TEST(AdminAccess, WhoHasASessionSleepOrWakeIsKnownToTheEngine) {
  testing::StrangersAdmin admin;
  admin.engine().verb<SleepArgs>().Answer([](auto call) {
    EXPECT_EQ(call.args.session, SessionId(7));
    EXPECT_EQ(call.args.asker.uid, User(1234));
    EXPECT_FALSE(call.args.asker.admin);
    EXPECT_EQ(call.args.idle, absl::Milliseconds(250));
    call.done(
        PlanTotals{.asked = 2, .asked_bytes = 5, .kept = 1, .kept_bytes = 3});
  });
  admin.engine().verb<WakeArgs>().Answer([](auto call) {
    EXPECT_EQ(call.args.session, SessionId(7));
    EXPECT_EQ(call.args.asker.uid, User(1234));
    call.done(absl::NotFoundError("no session"));
  });
  grpc::ClientContext sleeping, waking;
  v1::SleepRequest sleep;
  sleep.set_session_id(7);
  sleep.set_idle_ms(250);
  v1::SleepResponse asleep;
  ASSERT_TRUE(admin->Sleep(&sleeping, sleep, &asleep).ok());
  EXPECT_EQ(asleep.asked_plans(), 2u);
  EXPECT_EQ(asleep.asked_bytes(), 5u);
  EXPECT_EQ(asleep.kept_plans(), 1u);
  EXPECT_EQ(asleep.kept_bytes(), 3u);
  v1::WakeRequest wake;
  wake.set_session_id(7);
  v1::WakeResponse awake;
  EXPECT_EQ(admin->Wake(&waking, wake, &awake).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST(AdminAccess, AnEndThatDoesNotComeIsLateAndSaysWhatWouldDo) {
  testing::StrangersAdmin admin;
  grpc::ClientContext context;
  v1::EndSessionRequest request;
  request.set_session_id(7);
  request.set_deadline_ms(1);
  v1::EndSessionResponse ended;
  const grpc::Status status = admin->EndSession(&context, request, &ended);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("hoistctl end 7 --kill"));
  // It lets go after all, and nobody waits any more.
  auto call = admin.engine().verb<EndSessionArgs>().Next();
  admin.engine().Run(
      [done = std::move(call.done)]() mutable { done(absl::OkStatus()); });
}

}  // namespace hoistd::admin_access_test
