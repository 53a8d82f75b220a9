#include "hoist/shared/packet_socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "hoist/shared/wire.h"

namespace hoist::packet_socket_test {

int OpenFds() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return -1;
  int count = 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

ino_t InodeOf(int fd) {
  struct stat info = {};
  EXPECT_EQ(fstat(fd, &info), 0);
  return info.st_ino;
}

// A connected pair. Every test ends with as many descriptors as it began with.
class PacketSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = OpenFds();
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    a_ = UniqueFd(fds[0]);
    b_ = UniqueFd(fds[1]);
  }
  void TearDown() override {
    a_.reset();
    b_.reset();
    EXPECT_EQ(OpenFds(), before_) << "a descriptor leaked";
  }

  // Sends bytes and descriptors as they are, past SendPacket's care.
  void SendRaw(std::string bytes, const std::vector<int>& fds = {}) {
    iovec part = {bytes.data(), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
    }
    ASSERT_EQ(sendmsg(a_.get(), &message, MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  Code ReceiveCode() {
    const auto packet = ReceivePacket(b_.get());
    return packet.status().code();
  }

  static std::string Header(FrameHeader header) {
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
  }
  static FrameHeader Good(uint64_t body_bytes) {
    return {kFrameMagic, kProtocolVersion, 0, body_bytes};
  }

  int before_ = 0;
  UniqueFd a_;
  UniqueFd b_;
};

TEST_F(PacketSocketTest, BodiesOfAnySizeArriveWhole) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}, kMaxInlineBody,
                            kMaxInlineBody + 1, size_t{5} << 20}) {
    std::string body(size, '\0');
    for (size_t i = 0; i < size; ++i) body[i] = static_cast<char>(i * 31 >> 3);
    ASSERT_TRUE(SendPacket(a_.get(), body, {}).ok());
    auto packet = ReceivePacket(b_.get());
    ASSERT_TRUE(packet.ok()) << packet.status().ToString();
    ASSERT_TRUE(packet.value().has_value());
    EXPECT_TRUE((*packet.value()).body == body) << size;
    EXPECT_TRUE((*packet.value()).fds.empty());
  }
}

TEST_F(PacketSocketTest, DescriptorsArriveInOrderBesideSmallAndLargeBodies) {
  const UniqueFd x = std::move(CreateMemfd("x", 1)).value();
  const UniqueFd y = std::move(CreateMemfd("y", 2)).value();
  const std::vector<int> fds = {x.get(), y.get(), x.get()};
  for (const size_t size : {size_t{3}, kMaxInlineBody + 9}) {
    ASSERT_TRUE(SendPacket(a_.get(), std::string(size, 'b'), fds).ok());
    auto packet = ReceivePacket(b_.get());
    ASSERT_TRUE(packet.ok());
    ASSERT_EQ((*packet.value()).fds.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      const int fd = (*packet.value()).fds[i].get();
      EXPECT_EQ(InodeOf(fd), InodeOf(fds[i]));
      EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    }
  }
}

TEST_F(PacketSocketTest, AsManyDescriptorsAsAllowedAndNoMore) {
  const UniqueFd x = std::move(CreateMemfd("x", 1)).value();
  std::vector<int> fds(kMaxFdsPerMessage - 1, x.get());
  ASSERT_TRUE(
      SendPacket(a_.get(), std::string(kMaxInlineBody + 1, 'b'), fds).ok());
  auto packet = ReceivePacket(b_.get());
  ASSERT_TRUE(packet.ok());
  EXPECT_EQ((*packet.value()).fds.size(), fds.size());
  fds.push_back(x.get());
  EXPECT_EQ(SendPacket(a_.get(), "b", fds).code(), Code::kResourceExhausted);
}

TEST_F(PacketSocketTest, TheEndOfTheStreamIsNoPacket) {
  a_.reset();
  auto packet = ReceivePacket(b_.get());
  ASSERT_TRUE(packet.ok());
  EXPECT_FALSE(packet.value().has_value());
  EXPECT_EQ(SendPacket(b_.get(), "x", {}).code(), Code::kUnavailable);
}

TEST_F(PacketSocketTest, SocketsThatDoNotBlockSaySo) {
  ASSERT_EQ(fcntl(a_.get(), F_SETFL, O_NONBLOCK), 0);
  ASSERT_EQ(fcntl(b_.get(), F_SETFL, O_NONBLOCK), 0);
  bool would_block = false;
  auto packet = ReceivePacket(b_.get(), &would_block);
  ASSERT_TRUE(packet.ok());
  EXPECT_FALSE(packet.value().has_value());
  EXPECT_TRUE(would_block);
  would_block = false;
  Status status;
  int sent = 0;
  for (; status.ok() && sent < 100'000; ++sent) {
    status = SendPacket(a_.get(), std::string(40'000, 'x'), {}, &would_block);
  }
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_TRUE(would_block);
}

TEST_F(PacketSocketTest, GarbageIsRefusedAndItsDescriptorsClosed) {
  const UniqueFd x = std::move(CreateMemfd("x", 1)).value();
  FrameHeader magic = Good(0);
  magic.magic ^= 1;
  FrameHeader flags = Good(0);
  flags.flags = 0x80;
  FrameHeader large = Good(kMaxBody + 1);
  FrameHeader large_memfd = large;
  large_memfd.flags = kBodyInMemfd;
  for (const std::string& bytes :
       {std::string("x"), std::string(15, 'x'), std::string(16, '\0'),
        std::string(1000, 'x'), Header(magic), Header(flags), Header(large),
        Header(large_memfd), Header(Good(5)), Header(Good(0)) + "x",
        Header(Good(UINT64_MAX)) + "x"}) {
    SendRaw(bytes, {x.get(), x.get()});
    EXPECT_EQ(ReceiveCode(), Code::kInvalidArgument);
  }
  // The stream goes on behind it.
  ASSERT_TRUE(SendPacket(a_.get(), "fine", {}).ok());
  auto packet = ReceivePacket(b_.get());
  ASSERT_TRUE(packet.ok());
  EXPECT_EQ((*packet.value()).body, "fine");
}

TEST_F(PacketSocketTest, AnotherVersionIsNamedWithOurs) {
  FrameHeader header = Good(0);
  header.version = 77;
  SendRaw(Header(header));
  const auto packet = ReceivePacket(b_.get());
  EXPECT_EQ(packet.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(packet.status().message().find("77"), std::string::npos);
  EXPECT_NE(packet.status().message().find(std::to_string(kProtocolVersion)),
            std::string::npos);
}

TEST_F(PacketSocketTest, HoistdSaysWhichVersionsItServes) {
  for (const uint32_t version : {0u, kProtocolVersion + 1, 77u}) {
    EXPECT_EQ(ServiceFor(version), Service::kNone);
    FrameHeader header = Good(0);
    header.version = static_cast<uint16_t>(version);
    SendRaw(Header(header));
    bool would_block = false;
    const auto packet =
        ReceivePacket(b_.get(), &would_block, {.as_hoistd = true});
    EXPECT_EQ(packet.status().code(), Code::kFailedPrecondition);
    const std::string& why = packet.status().message();
    EXPECT_NE(why.find("protocol " + std::to_string(version) + ","),
              std::string::npos);
    EXPECT_NE(why.find(ServedVersions()), std::string::npos);
  }
  EXPECT_EQ(ServiceFor(kProtocolVersion), Service::kGoesOn);
}

TEST_F(PacketSocketTest, WhatIsSentInAnotherVersionIsOfThat) {
  ASSERT_TRUE(SendPacket(a_.get(), "x", {}, nullptr, Sending::kNow,
                         kProtocolVersion + 1)
                  .ok());
  EXPECT_EQ(ReceiveCode(), Code::kFailedPrecondition);
  ASSERT_TRUE(
      SendPacket(a_.get(), "x", {}, nullptr, Sending::kNow, kProtocolVersion)
          .ok());
  const auto packet = ReceivePacket(b_.get());
  ASSERT_TRUE(packet.ok());
  EXPECT_EQ((*packet.value()).version, kProtocolVersion);
}

TEST_F(PacketSocketTest, OverlongPacketsAreRefused) {
  SendRaw(Header(Good(kMaxInlineBody)) + std::string(kMaxInlineBody + 1, 'x'));
  EXPECT_EQ(ReceiveCode(), Code::kInvalidArgument);
}

TEST_F(PacketSocketTest, ABodyInAMemfdMustBeSealedAndAsLongAsItSays) {
  constexpr uint64_t kSize = 100;
  FrameHeader header = Good(kSize);
  header.flags = kBodyInMemfd;
  SendRaw(Header(header));
  EXPECT_EQ(ReceiveCode(), Code::kInvalidArgument) << "no descriptor";

  const UniqueFd open = std::move(CreateMemfd("open", kSize)).value();
  SendRaw(Header(header), {open.get()});
  EXPECT_EQ(ReceiveCode(), Code::kInvalidArgument) << "not sealed";

  ASSERT_EQ(fcntl(open.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  SendRaw(Header(header), {open.get()});
  EXPECT_EQ(ReceiveCode(), Code::kInvalidArgument) << "may be written";

  for (const uint64_t size : {kSize - 1, kSize + 1}) {
    const UniqueFd other = std::move(CreateMemfd("other", size)).value();
    ASSERT_TRUE(SealMemfd(other.get()).ok());
    SendRaw(Header(header), {other.get()});
    EXPECT_EQ(ReceiveCode(), Code::kInvalidArgument) << "length";
  }
  SendRaw(Header(header), {a_.get()});
  EXPECT_EQ(ReceiveCode(), Code::kInvalidArgument) << "a socket";

  const UniqueFd good = std::move(CreateMemfd("good", kSize)).value();
  ASSERT_TRUE(SealMemfd(good.get()).ok());
  SendRaw(Header(header), {good.get()});
  EXPECT_EQ(ReceiveCode(), Code::kOk);
  SendRaw(Header(header) + "x", {good.get()});
  EXPECT_EQ(ReceiveCode(), Code::kInvalidArgument) << "two bodies";
}

TEST_F(PacketSocketTest, DescriptorsOfUnreadPacketsDieWithTheSocket) {
  const UniqueFd x = std::move(CreateMemfd("x", 1)).value();
  const std::vector<int> fds = {x.get()};
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(SendPacket(a_.get(), "unread", fds).ok());
  }
}

TEST(Memfd, SealsForbidEveryChange) {
  const UniqueFd fd = std::move(CreateMemfd("m", 4096)).value();
  EXPECT_EQ(pwrite(fd.get(), "x", 1, 0), 1);
  ASSERT_TRUE(SealMemfd(fd.get()).ok());
  EXPECT_EQ(pwrite(fd.get(), "y", 1, 0), -1);
  EXPECT_EQ(ftruncate(fd.get(), 1), -1);
  EXPECT_EQ(ftruncate(fd.get(), 8192), -1);
}

}  // namespace hoist::packet_socket_test
