// Admin.Trace over a recorder that the test fills.
#include <string>
#include <vector>

#include "daemon/rpc/trace_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/captured_log.h"
#include "tests/support/until.h"
#include "tests/unit/rpc/rpc_fixture.h"

namespace hoistd::trace_test {

using ::hoistd::testing::CapturedLog;
using ::hoistd::testing::RpcTest;
using ::hoistd::testing::Until;
using ::testing::HasSubstr;
namespace v1 = hoist::v1;

class TraceTest : public RpcTest {
 protected:
  static v1::TraceRequest Request(uint64_t duration_ms) {
    v1::TraceRequest request;
    request.set_duration_ms(duration_ms);
    return request;
  }
  TraceRecorder& recorder() { return engine_.recorder; }
  bool EndsSoon() {
    return Until([&] { return !recorder().on(); });
  }
  // Acts that ended so.
  size_t Ended(const std::string& how) {
    size_t count = 0;
    for (const std::string& line : log_.lines("audit: act=trace ")) {
      if (line.find(how) != std::string::npos) ++count;
    }
    return count;
  }
  grpc::Status Refused(uint64_t duration_ms) {
    grpc::ClientContext context;
    v1::TraceChunk chunk;
    const auto stream = admin_->Trace(&context, Request(duration_ms));
    EXPECT_FALSE(stream->Read(&chunk));
    return stream->Finish();
  }

  CapturedLog log_;
};

TEST_F(TraceTest, SendsWhatIsRecordedUntilItsTimeIsOver) {
  grpc::ClientContext context;
  const auto stream = admin_->Trace(&context, Request(200));
  v1::TraceChunk chunk;
  ASSERT_TRUE(stream->Read(&chunk));
  EXPECT_GT(chunk.began_unix_ns(), 0u);
  ASSERT_EQ(chunk.devices_size(), 1);
  EXPECT_EQ(chunk.devices(0), "a device");
  recorder().Name(TraceSession{SessionId(5), "w", "socket", User(7), 71});
  // Names are sent when they come, whatever else does.
  ASSERT_TRUE(stream->Read(&chunk));
  ASSERT_EQ(chunk.sessions_size(), 1);
  v1::TraceChunk all = chunk;
  recorder().Name(TracePlan{PlanId(6), SessionId(5), ModelId(1), {}});
  recorder().Name({ModelId(1), GroupIndex(2)}, "m", "g");
  constexpr uint64_t kEvents = 3 * TraceCall::kEventsAChunk;
  for (uint64_t i = 0; i < kEvents; ++i) {
    TraceEvent event;
    event.kind = TraceKind::kLaneGap;
    event.why = TraceWhy::kTurn;
    event.session = SessionId(5);
    event.plan = PlanId(6);
    event.model = ModelId(1);
    event.group = GroupIndex(2);
    event.bytes = i;
    event.end = recorder().Now();
    event.begin = event.end - absl::Nanoseconds(3);
    recorder().Add(event);
  }
  uint64_t recorded = 0;
  while (stream->Read(&chunk)) {
    all.MergeFrom(chunk);
    EXPECT_LE(chunk.events_size(), int{TraceCall::kEventsAChunk});
    EXPECT_GE(chunk.recorded_ns(), recorded);
    recorded = chunk.recorded_ns();
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_GE(recorded, 200'000'000u);
  EXPECT_EQ(chunk.dropped_events(), 0u);
  ASSERT_EQ(all.sessions_size(), 1);
  EXPECT_EQ(all.sessions(0).client_name(), "w");
  EXPECT_EQ(all.sessions(0).pid(), 71u);
  EXPECT_EQ(all.sessions(0).uid(), 7u);
  EXPECT_EQ(all.plans(0).session_id(), 5u);
  EXPECT_EQ(all.models(0).name(), "m");
  EXPECT_EQ(all.groups(0).name(), "g");
  ASSERT_EQ(all.events_size(), int{kEvents});
  for (int i = 0; i < all.events_size(); ++i) {
    const v1::TraceEvent& event = all.events(i);
    ASSERT_EQ(event.bytes(), static_cast<uint64_t>(i));
    ASSERT_EQ(event.duration_ns(), 3u);
    ASSERT_LE(event.begin_ns() + event.duration_ns(), recorded);
  }
  EXPECT_EQ(all.events(0).kind(), v1::TraceEvent::KIND_LANE_GAP);
  EXPECT_EQ(all.events(0).why(), v1::TraceEvent::WHY_TURN);
  EXPECT_EQ(all.events(0).plan_id(), 6u);
  ASSERT_TRUE(EndsSoon());
  ASSERT_TRUE(Until([&] { return log_.lines("audit: ").size() == 1; }));
  EXPECT_THAT(log_.lines("audit: ")[0],
              HasSubstr("act=trace uid=" + std::to_string(geteuid())));
  EXPECT_THAT(log_.lines("audit: ")[0],
              HasSubstr("on=\"200ms\" result=OK events=12288 dropped=0"));
}

TEST_F(TraceTest, ItsTimeIsBounded) {
  for (const uint64_t ms : {uint64_t{0}, uint64_t{600'001}, UINT64_MAX}) {
    const grpc::Status status = Refused(ms);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("1 to 600000"));
  }
  EXPECT_EQ(recorder().number(), 0u);
  EXPECT_EQ(Ended("result=INVALID_ARGUMENT"), 3u);
}

TEST_F(TraceTest, ASecondIsRefusedUntilTheFirstHasGone) {
  v1::TraceChunk chunk;
  {
    grpc::ClientContext context;
    const auto first = admin_->Trace(&context, Request(600'000));
    ASSERT_TRUE(first->Read(&chunk));
    const grpc::Status second = Refused(1000);
    EXPECT_EQ(second.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(second.error_message(), HasSubstr("another"));
    context.TryCancel();
    EXPECT_EQ(first->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  ASSERT_TRUE(EndsSoon());
  EXPECT_TRUE(Until([&] { return Ended("result=CANCELLED") == 1; }));
  grpc::ClientContext context;
  const auto third = admin_->Trace(&context, Request(1));
  EXPECT_TRUE(third->Read(&chunk));
}

TEST_F(TraceTest, ItEndsWithTheConnection) {
  const auto channel = NewChannel();
  auto admin = v1::Admin::NewStub(channel);
  auto context = std::make_unique<grpc::ClientContext>();
  auto stream = admin->Trace(context.get(), Request(600'000));
  v1::TraceChunk chunk;
  ASSERT_TRUE(stream->Read(&chunk));
  EXPECT_TRUE(recorder().on());
  stream.reset();
  context.reset();
  EXPECT_TRUE(EndsSoon());
}

TEST_F(TraceTest, ItEndsWithTheServer) {
  grpc::ClientContext context;
  const auto stream = admin_->Trace(&context, Request(600'000));
  v1::TraceChunk chunk;
  ASSERT_TRUE(stream->Read(&chunk));
  server_.reset();
  EXPECT_FALSE(recorder().on());
}

}  // namespace hoistd::trace_test
