// Requests that come in a memfd, take long, and must delay nobody else.
#include <poll.h>

#include <string>
#include <vector>

#include "tests/component/session/session_fixture.h"

namespace hoistd::testing::session_large_test {

using ::hoist::v1::ClientMessage;

constexpr int kInvalid = static_cast<int>(absl::StatusCode::kInvalidArgument);
constexpr int kExhausted =
    static_cast<int>(absl::StatusCode::kResourceExhausted);

// Millions of empty parts: some 0.4 s to parse, then refused for its count.
std::string SlowBody(uint64_t request_id) {
  ClientMessage message;
  message.set_request_id(request_id);
  auto* joined = message.mutable_register_model()->add_joined();
  for (int i = 0; i < 1'000'000; ++i) joined->add_parts();
  message.mutable_register_model()->set_name("m");
  std::string once = message.SerializeAsString();
  std::string body;
  // A message that is said twice is merged.
  for (int i = 0; i < 4; ++i) body += once;
  return body;
}

ClientMessage LargeRelease(uint64_t request_id, int leases) {
  ClientMessage message;
  message.set_request_id(request_id);
  for (int i = 0; i < leases; ++i) {
    message.mutable_release()->add_lease_ids(1'000'000 + i);
  }
  return message;
}

class SessionLarge : public SessionFixture {
 protected:
  void SetUp() override {
    SessionFixture::SetUp();
    engine().verb<ReleaseArgs>().Answer(
        [](auto call) { call.done(absl::OkStatus()); });
    engine().verb<StageArgs>().Answer(
        [](auto call) { call.done(absl::NotFoundError("no model")); });
  }
};

TEST_F(SessionLarge, IsServedAsAnyOther) {
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  const ClientMessage release = LargeRelease(5, 50'000);
  ASSERT_GT(release.ByteSizeLong(), hoist::kMaxInlineBody);
  const auto reply = client.Call(release).message;
  EXPECT_EQ(reply.code(), 0);
  EXPECT_EQ(reply.request_id(), 5u);
  // Small, but in a memfd all the same.
  const hoist::FrameHeader header = {
      hoist::kFrameMagic, hoist::kProtocolVersion, hoist::kBodyInMemfd, 0};
  const hoist::UniqueFd empty = SealedMemfd(0);
  ASSERT_TRUE(client.SendPacketBytes(
      std::string_view(reinterpret_cast<const char*>(&header), sizeof(header)),
      std::vector<int>{empty.get()}));
  EXPECT_EQ(client.Receive()->message.code(), kInvalid);  // No verb.
}

TEST_F(SessionLarge, RequestsOfASessionKeepTheirOrder) {
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(i % 2 == 1 ? client.Send(LargeRelease(i, 50'000))
                           : client.Send(StageMessage(i)));
  }
  for (uint64_t i = 1; i <= 20; ++i) {
    const auto reply = client.Receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->message.request_id(), i);
  }
}

TEST_F(SessionLarge, GarbageEndsTheConnection) {
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  ASSERT_TRUE(client.SendBody(std::string(100'000, '\xff')));
  EXPECT_EQ(client.Receive()->message.code(), kInvalid);
  EXPECT_EQ(client.Receive(), std::nullopt);
  client.Close();
  engine().WaitUntilClosed(SessionId(1));
}

TEST_F(SessionLarge, IsRefusedByItsNumberWhenTooManyAreInFlight) {
  server_->Shutdown();
  options_.connection.max_in_flight = 1;
  Start();
  engine().verb<StageArgs>().Answer(nullptr);
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  ASSERT_TRUE(client.Send(StageMessage(1)));
  auto waiting = engine().verb<StageArgs>().Next();
  const auto refused = client.Call(LargeRelease(2, 50'000)).message;
  EXPECT_EQ(refused.code(), kExhausted);
  EXPECT_EQ(refused.request_id(), 2u);
  waiting.done(absl::NotFoundError("no model"));
  EXPECT_EQ(client.Receive()->message.request_id(), 1u);
  EXPECT_EQ(client.Call(LargeRelease(3, 50'000)).message.code(), 0);
}

// Others' requests are answered while a user's slow ones wait for their turn:
// their count shows it, not a time.
TEST_F(SessionLarge, SlowOnesDelayNoOtherSession) {
  constexpr int kSlow = 16;
  const std::string body = SlowBody(7);
  ASSERT_LT(body.size(), options_.max_request_bytes);
  std::vector<RawSession> slow;
  for (int i = 0; i < kSlow; ++i) {
    slow.emplace_back(path());
    ASSERT_EQ(slow.back().Open().message.code(), 0);
  }
  RawSession quick(path());
  ASSERT_EQ(quick.Open().message.code(), 0);
  for (RawSession& client : slow) ASSERT_TRUE(client.SendBody(body));
  for (uint64_t i = 1; i <= 3; ++i) {
    EXPECT_EQ(quick.Call(StageMessage(i)).message.request_id(), i);
  }
  // One of a user's is taken in at a time, so the last one cannot be through
  // before three small requests are; had it been, it would be readable.
  pollfd last = {slow.back().socket(), POLLIN, 0};
  EXPECT_EQ(poll(&last, 1, 0), 0);
  // In their turns; the others, which a sanitizer takes minutes for, are
  // dropped with their clients.
  for (int i = 0; i < 2; ++i) {
    const auto reply = slow[i].Receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->message.code(), kInvalid);
    EXPECT_EQ(reply->message.request_id(), 7u);
  }
}

TEST_F(SessionLarge, WhatADeadClientSentIsDropped) {
  const std::string body = SlowBody(7);
  RawSession stays(path());
  ASSERT_EQ(stays.Open().message.code(), 0);
  const size_t before = OpenFdCount();
  std::vector<RawSession> leave;
  for (int i = 0; i < 8; ++i) {
    leave.emplace_back(path());
    ASSERT_EQ(leave.back().Open().message.code(), 0);
    ASSERT_TRUE(leave.back().SendBody(body));
  }
  leave.clear();
  engine().WaitUntilClosed(8);
  // The same user's next large one is behind the one that is being taken in.
  EXPECT_EQ(stays.Call(LargeRelease(1, 50'000)).message.code(), 0);
  EXPECT_EQ(OpenFdCount(), before);
}

}  // namespace hoistd::testing::session_large_test
