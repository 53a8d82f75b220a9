// What a client must not say, and what it is told.
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/component/session/session_fixture.h"

namespace hoistd::testing::session_hostile_test {

using ::hoist::v1::ClientMessage;
using ::testing::HasSubstr;

constexpr int kInvalid = static_cast<int>(absl::StatusCode::kInvalidArgument);
constexpr int kPrecondition =
    static_cast<int>(absl::StatusCode::kFailedPrecondition);
constexpr int kExhausted =
    static_cast<int>(absl::StatusCode::kResourceExhausted);

std::string Frame(std::string_view body, uint32_t magic = hoist::kFrameMagic,
                  uint32_t version = hoist::kProtocolVersion,
                  uint16_t flags = 0) {
  const hoist::FrameHeader header = {magic, static_cast<uint16_t>(version),
                                     flags, body.size()};
  std::string packet(sizeof(header), '\0');
  std::memcpy(packet.data(), &header, sizeof(header));
  return packet.append(body);
}

ClientMessage RegisterMessage() {
  ClientMessage message;
  message.set_request_id(9);
  message.mutable_register_model()->set_name("m");
  message.mutable_register_model()->add_shards()->set_name("a.safetensors");
  return message;
}

ClientMessage PublishMessage(uint64_t image_bytes) {
  ClientMessage message;
  message.set_request_id(9);
  message.mutable_publish()->set_model("m");
  message.mutable_publish()->mutable_group()->set_name("g");
  message.mutable_publish()->mutable_group()->set_image_bytes(image_bytes);
  auto* tensor = message.mutable_publish()->mutable_group()->add_tensors();
  tensor->set_name("t");
  tensor->set_dtype(hoist::v1::DTYPE_U8);
  tensor->add_shape(1);
  tensor->set_size_bytes(1);
  return message;
}

ClientMessage SetPlanMessage() {
  ClientMessage message;
  message.mutable_set_plan()->set_model_id(3);
  message.mutable_set_plan()->set_replaces(8);
  message.mutable_set_plan()->mutable_share()->set_weight(2);
  for (uint32_t group : {0u, 1u, 0u}) {
    message.mutable_set_plan()->add_order(group);
  }
  return message;
}

// Packets that are no messages: told so, then the connection is closed.
struct Garbage {
  const char* name;
  std::string packet;
  int code;
};

class GarbagePackets : public SessionFixture,
                       public ::testing::WithParamInterface<Garbage> {};

TEST_P(GarbagePackets, GetATypedErrorAndTheConnectionEnds) {
  for (const bool opened : {false, true}) {
    RawSession client(path());
    if (opened) {
      ASSERT_EQ(client.Open().message.code(), 0);
    }
    const hoist::UniqueFd a = DevNull(), b = DevNull();
    ASSERT_TRUE(client.SendPacketBytes(GetParam().packet,
                                       std::vector<int>{a.get(), b.get()}));
    const auto reply = client.Receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->message.code(), GetParam().code);
    EXPECT_EQ(reply->message.request_id(), 0u);
    EXPECT_EQ(client.Receive(), std::nullopt);
  }
  engine().WaitUntilClosed(1);
  Settle();
}

INSTANTIATE_TEST_SUITE_P(
    All, GarbagePackets,
    ::testing::Values(
        Garbage{"OneByte", "x", kInvalid},
        Garbage{"HalfAHeader", std::string(8, '\0'), kInvalid},
        Garbage{"WrongMagic", Frame("", 0x12345678), kInvalid},
        Garbage{"UnknownFlags", Frame("", hoist::kFrameMagic, 1, 0x8000),
                kInvalid},
        Garbage{"LengthOfMore", Frame("abc") + "d", kInvalid},
        Garbage{"LengthOfLess", Frame("abc").substr(0, 18), kInvalid},
        Garbage{"TooLong", std::string(hoist::kMaxPacket + 1, 'x'), kInvalid},
        Garbage{"BodyInWhatIsNoMemfd", Frame("", hoist::kFrameMagic, 1, 1),
                kInvalid},
        Garbage{"NoProtobuf", Frame("\xff\xff\xff\xff garbage"), kInvalid},
        Garbage{"TruncatedProtobuf",
                Frame(RegisterMessage().SerializeAsString().substr(0, 7)),
                kInvalid},
        Garbage{"NoUtf8", Frame(std::string("\x42\x03\x0a\x01\xff", 5)),
                kInvalid},
        Garbage{"OtherVersion", Frame("", hoist::kFrameMagic, 99),
                kPrecondition}),
    [](const auto& param) { return std::string(param.param.name); });

TEST_F(SessionFixture, AnotherProtocolVersionHearsBothNumbers) {
  RawSession client(path());
  ASSERT_TRUE(client.SendPacketBytes(Frame("", hoist::kFrameMagic, 99)));
  const auto reply = client.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_THAT(reply->message.message(), HasSubstr("99"));
  EXPECT_THAT(reply->message.message(),
              HasSubstr(absl::StrCat("speaks ", hoist::kProtocolVersion)));
}

TEST_F(SessionFixture, AZeroLengthPacketEndsTheConnection) {
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  const hoist::UniqueFd fd = DevNull();
  ASSERT_TRUE(client.SendPacketBytes("", std::vector<int>{fd.get()}));
  EXPECT_EQ(client.Receive(), std::nullopt);
  engine().WaitUntilClosed(SessionId(1));
}

TEST_F(SessionFixture, GarbageIsAnsweredThoughMoreIsUnderWay) {
  RawSession client(path());
  for (int i = 0; i < 100; ++i) {
    if (!client.SendPacketBytes("garbage")) break;
  }
  const auto reply = client.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->message.code(), kInvalid);
}

TEST_F(SessionFixture, ARequestAboveTheLimitEndsTheConnection) {
  RawSession client(path());
  const std::string body(options_.max_request_bytes + 1, '\0');
  ASSERT_TRUE(client.SendBody(body));
  const auto reply = client.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->message.code(), kInvalid);
  EXPECT_THAT(reply->message.message(),
              HasSubstr(absl::StrCat(options_.max_request_bytes)));
  EXPECT_EQ(client.Receive(), std::nullopt);
}

TEST_F(SessionFixture, ASealedBodyAboveTheLimitIsNotEvenRead) {
  // As its header says, and in a memfd that has no bytes at all: whoever reads
  // it hears another reason.
  const hoist::UniqueFd empty = SealedMemfd(0);
  const hoist::FrameHeader header = {hoist::kFrameMagic,
                                     hoist::kProtocolVersion,
                                     hoist::kBodyInMemfd, hoist::kMaxBody};
  const std::string_view packet(reinterpret_cast<const char*>(&header),
                                sizeof(header));
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  ASSERT_TRUE(client.SendPacketBytes(packet, std::vector<int>{empty.get()}));
  const auto reply = client.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->message.code(), kInvalid);
  EXPECT_THAT(reply->message.message(),
              HasSubstr(absl::StrCat("at most ", options_.max_request_bytes)));
  EXPECT_EQ(client.Receive(), std::nullopt);
}

TEST_F(SessionFixture, AMemfdThatIsLongerThanItsHeaderSaysIsRefused) {
  const hoist::UniqueFd sealed = SealedMemfd(100);
  const hoist::FrameHeader header = {
      hoist::kFrameMagic, hoist::kProtocolVersion, hoist::kBodyInMemfd, 10};
  const std::string_view packet(reinterpret_cast<const char*>(&header),
                                sizeof(header));
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  ASSERT_TRUE(client.SendPacketBytes(packet, std::vector<int>{sealed.get()}));
  const auto reply = client.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->message.code(), kInvalid);
  EXPECT_THAT(reply->message.message(), HasSubstr("as long as its header"));
}

TEST_F(SessionFixture, OpenSessionIsNoLargeRequest) {
  RawSession client(path());
  ClientMessage open;
  open.mutable_open_session()->set_client_name(
      std::string(hoist::kMaxInlineBody + 1, 'x'));
  ASSERT_TRUE(client.Send(open));
  const auto reply = client.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->message.code(), kPrecondition);
  EXPECT_EQ(client.Receive(), std::nullopt);
}

// Messages that are refused; the session goes on.
class RefusedRequests : public SessionFixture {
 protected:
  void SetUp() override {
    SessionFixture::SetUp();
    client_.emplace(path());
  }
  void TearDown() override {
    client_.reset();
    SessionFixture::TearDown();
  }
  RawSession& client() { return *client_; }

  // Sends `message` with `fds` descriptors and wants `code`.
  void ExpectRefused(const ClientMessage& message, size_t fds, int code,
                     const std::string& why) {
    SCOPED_TRACE(message.ShortDebugString());
    // A round trip: the connection is accepted, and its descriptors counted.
    EXPECT_NE(client().Call(ClientMessage()).message.code(), 0);
    const size_t before = OpenFdCount();
    {
      std::vector<hoist::UniqueFd> owned;
      std::vector<int> raw;
      for (size_t i = 0; i < fds; ++i) {
        owned.push_back(DevNull());
        raw.push_back(owned.back().get());
      }
      const auto reply = client().Call(message, raw).message;
      EXPECT_EQ(reply.code(), code);
      EXPECT_EQ(reply.request_id(), message.request_id());
      EXPECT_THAT(reply.message(), HasSubstr(why));
    }
    // The session thread closed what came before it looked at the next one.
    const auto next = client().Call(ClientMessage()).message;
    EXPECT_NE(next.code(), 0);
    EXPECT_EQ(OpenFdCount(), before);
  }

  std::optional<RawSession> client_;
};

TEST_F(RefusedRequests, BeforeOpenSessionNothingElseIsTaken) {
  ExpectRefused(StageMessage(4), 0, kPrecondition, "OpenSession");
  ExpectRefused(RegisterMessage(), 1, kPrecondition, "OpenSession");
  EXPECT_EQ(client().Open().message.code(), 0);
}

TEST_F(RefusedRequests, NothingElseIsTakenWhileTheSessionIsOpened) {
  engine().verb<OpenSessionArgs>().Answer(nullptr);
  ClientMessage open;
  open.set_request_id(1);
  open.mutable_open_session();
  ASSERT_TRUE(client().Send(open));
  auto call = engine().verb<OpenSessionArgs>().Next();
  ExpectRefused(StageMessage(2), 0, kPrecondition, "wait");
  ExpectRefused(open, 0, kPrecondition, "wait");
  call.done(engine().NewSession());
  EXPECT_EQ(client().Receive()->message.open_session().session_id(), 1u);
}

TEST_F(RefusedRequests, ASecondOpenSessionIsRefused) {
  ASSERT_EQ(client().Open().message.code(), 0);
  ClientMessage open;
  open.set_request_id(3);
  open.mutable_open_session();
  ExpectRefused(open, 0, kPrecondition, "open");
  EXPECT_EQ(engine().verb<OpenSessionArgs>().calls(), 1u);
}

TEST_F(RefusedRequests, OpenSessionIsChecked) {
  ClientMessage open;
  open.mutable_open_session()->set_client_name(std::string(257, 'x'));
  ExpectRefused(open, 0, kInvalid, "256");
  open.mutable_open_session()->set_client_name("x");
  ExpectRefused(open, 1, kInvalid, "descriptors");
  EXPECT_EQ(engine().verb<OpenSessionArgs>().calls(), 0u);
}

TEST_F(RefusedRequests, UnknownVerbsAreRefused) {
  ASSERT_EQ(client().Open().message.code(), 0);
  ExpectRefused(ClientMessage(), 0, kInvalid, "no verb");
  ClientMessage unknown;
  ASSERT_TRUE(unknown.ParseFromString("\xfa\x06\x02hi"));  // Field 111.
  ExpectRefused(unknown, 2, kInvalid, "no verb");
}

TEST_F(RefusedRequests, DescriptorsMustMatchTheirIndexes) {
  ASSERT_EQ(client().Open().message.code(), 0);
  ClientMessage message = RegisterMessage();
  ExpectRefused(message, 0, kInvalid, "descriptor 0");
  ExpectRefused(message, 2, kInvalid, "does not name");
  message.mutable_register_model()->mutable_shards(0)->set_fd_index(1);
  ExpectRefused(message, 1, kInvalid, "descriptor 1");
  message.mutable_register_model()->mutable_shards(0)->set_fd_index(
      0xffffffffu);
  ExpectRefused(message, 1, kInvalid, "descriptor 4294967295");
  message.mutable_register_model()->mutable_shards(0)->set_fd_index(0);
  message.mutable_register_model()->mutable_index()->set_name("index.json");
  ExpectRefused(message, 1, kInvalid, "twice");
  for (ClientMessage takes_none : {StageMessage(2), DescribeMessage(3)}) {
    ExpectRefused(takes_none, 1, kInvalid, "takes none");
  }
  ExpectRefused(PublishMessage(4096), 0, kInvalid, "descriptor 0");
  ExpectRefused(ReadImageMessage(4), 0, kInvalid, "descriptor 0");
  ExpectRefused(ReadImageMessage(5), 1, kInvalid, "memfd");  // /dev/null.
  ExpectRefused(ReadImageMessage(6), 2, kInvalid, "does not name");
  EXPECT_EQ(engine().verb<RegisterModelArgs>().calls() +
                engine().verb<StageArgs>().calls() +
                engine().verb<PublishArgs>().calls() +
                engine().verb<DescribeModelArgs>().calls() +
                engine().verb<ReadImageArgs>().calls(),
            0u);
}

TEST_F(RefusedRequests, HugeCountsAreRefused) {
  ASSERT_EQ(client().Open().message.code(), 0);
  ClientMessage release;
  for (int i = 0; i < 65'537; ++i) release.mutable_release()->add_lease_ids(i);
  ExpectRefused(release, 0, kInvalid, "at most 65536");
  ClientMessage order;
  for (int i = 0; i < 1'000'001; ++i) order.mutable_set_order()->add_groups(0);
  ExpectRefused(order, 0, kInvalid, "at most 1000000");
  ClientMessage prefetch;
  *prefetch.mutable_prefetch()->mutable_groups() = order.set_order().groups();
  prefetch.mutable_prefetch()->set_tier(hoist::v1::TIER_HOST);
  ExpectRefused(prefetch, 0, kInvalid, "at most 1000000");
}

TEST_F(RefusedRequests, RequestsBeyondTheInFlightLimitAreRefused) {
  client_.reset();
  server_->Shutdown();
  options_.connection.max_in_flight = 2;
  options_.connection.max_in_flight_fds = 3;
  Start();
  client_.emplace(path());
  ASSERT_EQ(client().Open().message.code(), 0);
  ASSERT_TRUE(client().Send(StageMessage(1)));
  ASSERT_TRUE(client().Send(StageMessage(2)));
  ExpectRefused(StageMessage(3), 0, kExhausted, "wait");
  engine().verb<StageArgs>().Next().done(absl::NotFoundError("no model"));
  EXPECT_EQ(client().Receive()->message.request_id(), 1u);
  ExpectRefused(RegisterMessage(), 4, kExhausted, "limit of 3");
  ASSERT_TRUE(client().Send(StageMessage(4)));
  auto second = engine().verb<StageArgs>().Next();
  engine().verb<StageArgs>().Next().done(absl::NotFoundError("no model"));
  EXPECT_EQ(client().Receive()->message.request_id(), 4u);
}

// 10,000 packets, half of them well framed, most wrong in some way, with and
// without descriptors; then the server serves on as if nothing had been.
TEST_F(SessionFixture, TenThousandRandomPacketsDoNoHarm) {
  engine().verb<RegisterModelArgs>().Answer(
      [](auto call) { call.done(absl::NotFoundError("no")); });
  engine().verb<PublishArgs>().Answer(
      [](auto call) { call.done(absl::NotFoundError("no")); });
  engine().verb<DescribeModelArgs>().Answer(
      [](auto call) { call.done(absl::NotFoundError("no")); });
  engine().verb<StageArgs>().Answer(
      [](auto call) { call.done(absl::NotFoundError("no")); });
  engine().verb<PrefetchArgs>().Answer(
      [](auto call) { call.done(absl::OkStatus()); });
  engine().verb<ReleaseArgs>().Answer(
      [](auto call) { call.done(absl::OkStatus()); });
  engine().verb<SetOrderArgs>().Answer(
      [](auto call) { call.done(absl::OkStatus()); });
  engine().verb<SetPlanArgs>().Answer(
      [](auto call) { call.done(absl::NotFoundError("no")); });
  engine().verb<ClearPlanArgs>().Answer(
      [](auto call) { call.done(absl::OkStatus()); });
  ClientMessage open;
  open.mutable_open_session()->set_client_name("fuzz");
  const std::vector<std::string> seeds = {
      open.SerializeAsString(),
      RegisterMessage().SerializeAsString(),
      PublishMessage(4096).SerializeAsString(),
      StageMessage(1).SerializeAsString(),
      ReadImageMessage(1).SerializeAsString(),
      DescribeMessage(2).SerializeAsString(),
      SetPlanMessage().SerializeAsString()};
  constexpr uint32_t kSeed = 20240607;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937 random(kSeed);
  const auto below = [&random](size_t n) { return random() % n; };
  const hoist::UniqueFd null_fd = DevNull();
  std::optional<RawSession> client;
  size_t connections = 0;
  for (int i = 0; i < 10'000; ++i) {
    // It reads nothing more there, and a send would wait for ever.
    if (client.has_value() && client->DaemonHungUp()) client.reset();
    if (!client.has_value()) {
      client.emplace(path());
      ASSERT_TRUE(client->valid());
      ++connections;
      if (below(4) != 0) client->Send(open);
    }
    std::string bytes;
    if (below(8) == 0) {
      bytes.resize(below(200));
      for (char& c : bytes) c = static_cast<char>(random());
    } else {
      bytes = seeds[below(seeds.size())];
      for (size_t flips = below(4); flips > 0 && !bytes.empty(); --flips) {
        bytes[below(bytes.size())] ^= static_cast<char>(1u << below(8));
      }
      if (below(16) == 0) bytes.resize(below(bytes.size() + 1));
    }
    if (below(8) != 0) bytes = Frame(bytes);
    const std::vector<int> fds(below(4), null_fd.get());
    const bool sent = client->SendPacketBytes(bytes, fds);
    client->Drain();
    if (!sent || below(100) == 0) client.reset();
  }
  client.reset();
  // One packet in a hundred ends its connection from this side alone; how many
  // more hoistd ends before they are all sent is a matter of timing.
  EXPECT_GT(connections, 50u);
  Settle();
  server_->Shutdown();
  EXPECT_EQ(engine().open_sessions(), 0u);
}

}  // namespace hoistd::testing::session_hostile_test
