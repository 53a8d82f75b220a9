#include "daemon/keeper/notify_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/keeper/fd_store.h"
#include "hoist/shared/packet_socket.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd::notify_socket_test {

using ::hoistd::testing::StatusIs;
using ::testing::ElementsAre;

hoist::UniqueFd NewFile() {
  auto memfd = hoist::CreateMemfd("stored", 1);
  EXPECT_TRUE(memfd.ok());
  return std::move(*memfd);
}

std::vector<std::string> NamesOf(const FdShelf& shelf) {
  std::vector<std::string> names;
  for (const FdShelf::Held& one : shelf.held()) names.push_back(one.name);
  return names;
}

// libsystemd on one side, ours on the other.
class NotifySocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<NotifySocket> socket = NotifySocket::Listen(path_);
    ASSERT_OK(socket);
    socket_.emplace(*std::move(socket));
    setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  }
  void TearDown() override { unsetenv("NOTIFY_SOCKET"); }

  testing::TempDir dir_;
  const std::string path_ = dir_.path() + "/notify.sock";
  std::optional<NotifySocket> socket_;
};

TEST_F(NotifySocketTest, TellsWhoSaidWhat) {
  ASSERT_GT(sd_notify(0, "READY=1\nSTATUS=fine = good"), 0);
  std::optional<Notice> notice = socket_->Receive();
  ASSERT_TRUE(notice.has_value());
  EXPECT_EQ(notice->sender, getpid());
  EXPECT_EQ(notice->uid, geteuid());
  EXPECT_EQ(notice->values["READY"], "1");
  EXPECT_EQ(notice->values["STATUS"], "fine = good");
  EXPECT_FALSE(socket_->Receive().has_value());
}

TEST_F(NotifySocketTest, WhatIsStoredIsHeldUntilItIsRemoved) {
  FdShelf shelf;
  const auto store = [&](const char* state, std::vector<int> fds) {
    ASSERT_GT(sd_pid_notify_with_fds(0, 0, state, fds.data(),
                                     static_cast<unsigned>(fds.size())),
              0);
    std::optional<Notice> notice = socket_->Receive();
    ASSERT_TRUE(notice.has_value());
    shelf.Take(*notice);
  };
  const hoist::UniqueFd a = NewFile(), b = NewFile();
  store("FDSTORE=1\nFDNAME=a", {a.get(), b.get()});
  store("FDSTORE=1\nFDNAME=b", {b.get()});
  store("FDSTORE=1\nFDNAME=a", {a.get()});  // It has that.
  store("FDSTORE=1", {a.get()});
  store("FDNAME=c", {a.get()});
  EXPECT_THAT(NamesOf(shelf), ElementsAre("a", "a", "b", "stored"));
  store("FDSTOREREMOVE=1\nFDNAME=a", {});
  store("FDSTOREREMOVE=1\nFDNAME=none", {});
  EXPECT_THAT(NamesOf(shelf), ElementsAre("b", "stored"));
}

TEST_F(NotifySocketTest, ABarrierIsPassedOnceAllBeforeItWasTakenIn) {
  // What sd_notify_barrier sends, and waits for.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const hoist::UniqueFd reader(ends[0]);
  {
    const hoist::UniqueFd writer(ends[1]);
    const int fd = writer.get();
    ASSERT_GT(sd_pid_notify_with_fds(0, 0, "BARRIER=1", &fd, 1), 0);
  }
  char byte;
  EXPECT_EQ(read(reader.get(), &byte, 1), -1);
  ASSERT_TRUE(socket_->Receive().has_value());
  EXPECT_EQ(read(reader.get(), &byte, 1), 0);
}

TEST_F(NotifySocketTest, TakesThePlaceOfOneThatWasLeft) {
  EXPECT_OK(NotifySocket::Listen(path_));
  EXPECT_THAT(NotifySocket::Listen(std::string(200, 'x')).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(NotifyFdStore, IsNoneWithoutASocket) {
  unsetenv("NOTIFY_SOCKET");
  EXPECT_EQ(NotifyFdStore(), nullptr);
  EXPECT_TRUE(TakeHandedFds().empty());
}

}  // namespace hoistd::notify_socket_test
