#include "daemon/metrics/metrics_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/until.h"

namespace hoistd::metrics_server_test {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::StatusIs;
using testing::Until;

constexpr char kGet[] = "GET /metrics HTTP/1.1\r\n\r\n";

// A server whose engine answers when the test says so.
class MetricsServerTest : public ::testing::Test {
 protected:
  void Start(MetricsLimits limits = {}) {
    server_.reset();
    MetricsOptions options;
    options.socket = SocketFileOptions{.path = path_, .mode = 0640};
    options.limits = limits;
    options.measure = [this](Done<NodeMeasure> done) {
      const absl::MutexLock lock(&mu_);
      ++asked_;
      if (!holds_) return done(Picture());
      held_.push_back(std::move(done));
    };
    options.render = [](const NodeMeasure& node, MetricsFormat) {
      return absl::StrCat("sessions ", node.sessions, "\n",
                          std::string(node.leases, 'x'));
    };
    ASSERT_OK_AND_ASSIGN(server_,
                         MetricsServer::Create(std::move(options), clock_));
  }
  NodeMeasure Picture() {
    NodeMeasure node;
    node.sessions = 7;
    node.leases = bulk_;
    return node;
  }
  int asked() {
    const absl::MutexLock lock(&mu_);
    return asked_;
  }
  void Release(absl::StatusOr<NodeMeasure> picture) {
    std::vector<Done<NodeMeasure>> held;
    {
      const absl::MutexLock lock(&mu_);
      held.swap(held_);
    }
    for (auto& done : held) done(picture);
  }

  hoist::UniqueFd Connect() {
    hoist::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)),
              0);
    return fd;
  }
  static void Send(const hoist::UniqueFd& fd, const std::string& text) {
    EXPECT_EQ(send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  // All that comes until the server closes.
  static std::string Rest(const hoist::UniqueFd& fd) {
    std::string all;
    char buffer[4096];
    while (true) {
      const ssize_t got = recv(fd.get(), buffer, sizeof(buffer), 0);
      if (got <= 0) return all;
      all.append(buffer, static_cast<size_t>(got));
    }
  }
  std::string Get(const std::string& request = kGet) {
    const hoist::UniqueFd fd = Connect();
    Send(fd, request);
    return Rest(fd);
  }

  const testing::TempDir dir_;
  const std::string path_ = dir_ / "m.sock";
  const MonotonicClock clock_ = {};
  absl::Mutex mu_;
  bool holds_ = false;
  size_t bulk_ = 0;
  int asked_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Done<NodeMeasure>> held_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, AScrapeIsAnsweredOverItsSocketsPermissions) {
  Start();
  EXPECT_THAT(Get(), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                           EndsWith("\r\n\r\nsessions 7\n")));
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST_F(MetricsServerTest, ARequestMayComeByteByByte) {
  Start();
  const hoist::UniqueFd fd = Connect();
  for (const char c : std::string(kGet)) Send(fd, std::string(1, c));
  EXPECT_THAT(Rest(fd), EndsWith("sessions 7\n"));
}

TEST_F(MetricsServerTest, ManyWhoAskAtOnceCostTheEngineOnePicture) {
  holds_ = true;
  Start();
  std::vector<hoist::UniqueFd> all;
  for (int i = 0; i < 20; ++i) {
    all.push_back(Connect());
    Send(all.back(), kGet);
  }
  ASSERT_TRUE(Until([&] { return asked() == 1; }));
  // One that is refused shows that the others' requests have been read.
  EXPECT_THAT(Get("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  Release(Picture());
  for (const hoist::UniqueFd& fd : all) {
    EXPECT_THAT(Rest(fd), EndsWith("sessions 7\n"));
  }
  EXPECT_EQ(asked(), 1);
}

TEST_F(MetricsServerTest, AFreshPictureServesAgainAndAnOldOneDoesNot) {
  Start({.fresh = absl::Hours(1)});
  Get();
  Get();
  EXPECT_EQ(asked(), 1);
  Start({.fresh = absl::ZeroDuration()});
  Get();
  Get();
  EXPECT_EQ(asked(), 3);
}

TEST_F(MetricsServerTest, AnEngineThatHangsIsA503AndItsAnswerTheNextOnes) {
  holds_ = true;
  Start({.engine = absl::Milliseconds(1), .fresh = absl::Hours(1)});
  EXPECT_THAT(Get(), AllOf(StartsWith("HTTP/1.1 503 "),
                           HasSubstr("has not answered for 1ms")));
  EXPECT_THAT(Get(), StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(asked(), 1);  // It is not asked again while it hangs.
  Release(Picture());
  EXPECT_TRUE(Until([&] { return Get().substr(9, 3) == "200"; }));
  EXPECT_EQ(asked(), 1);
}

TEST_F(MetricsServerTest, AnEngineThatRefusesIsA503WithItsReason) {
  holds_ = true;
  Start();
  const hoist::UniqueFd fd = Connect();
  Send(fd, kGet);
  ASSERT_TRUE(Until([&] { return asked() == 1; }));
  Release(absl::UnavailableError("hoistd is stopping"));
  EXPECT_THAT(Rest(fd), AllOf(StartsWith("HTTP/1.1 503 "),
                              EndsWith("\r\n\r\nhoistd is stopping\n")));
}

TEST_F(MetricsServerTest, AHeadWithoutAnEndIsRefused) {
  Start({.head_bytes = 1000});
  EXPECT_THAT(Get("GET /metrics HTTP/1.1\r\n" + std::string(2000, 'a')),
              AllOf(StartsWith("HTTP/1.1 431 "), HasSubstr("1000 bytes")));
}

TEST_F(MetricsServerTest, HalfARequestIsClosedInTime) {
  Start({.connection = absl::Milliseconds(1)});
  const hoist::UniqueFd fd = Connect();
  send(fd.get(), "GET /met", 8, MSG_NOSIGNAL);  // It may be closed by now.
  EXPECT_EQ(Rest(fd), "");
}

TEST_F(MetricsServerTest, WhoDoesNotReadIsClosedInTimeAndHoldsUpNobody) {
  bulk_ = 8 << 20;  // More than a socket takes in.
  Start({.connection = absl::Seconds(1)});
  const hoist::UniqueFd idle = Connect();
  Send(idle, kGet);
  ASSERT_TRUE(Until([&] { return asked() == 1; }));
  EXPECT_THAT(Get("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  // It is cut off: less comes than was meant for it.
  ASSERT_TRUE(Until([&] {
    pollfd polled = {idle.get(), POLLIN, 0};
    return poll(&polled, 1, 0) == 1 && (polled.revents & POLLHUP) != 0;
  }));
  EXPECT_LT(Rest(idle).size(), bulk_);
}

TEST_F(MetricsServerTest, ACrowdOfConnectionsGivesWayToWhoComesLast) {
  Start({.connections = 4, .connection = absl::Hours(1)});
  std::vector<hoist::UniqueFd> crowd;
  for (int i = 0; i < 1000; ++i) crowd.push_back(Connect());
  EXPECT_THAT(Get(), EndsWith("sessions 7\n"));
  EXPECT_EQ(Rest(crowd.front()), "");
}

TEST_F(MetricsServerTest, APictureThatComesAfterItsEndGoesNowhere) {
  holds_ = true;
  Start();
  const hoist::UniqueFd fd = Connect();
  Send(fd, kGet);
  ASSERT_TRUE(Until([&] { return asked() == 1; }));
  server_.reset();
  EXPECT_EQ(Rest(fd), "");
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
  Release(Picture());
}

TEST_F(MetricsServerTest, TwoCannotServeOnePath) {
  Start();
  MetricsOptions options;
  options.socket = SocketFileOptions{.path = path_};
  EXPECT_THAT(MetricsServer::Create(std::move(options), clock_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("another hoistd serves")));
}

TEST(Loopback, AddressesOfThisMachineAloneAreTaken) {
  EXPECT_OK(ParseLoopback("127.0.0.1:9464"));
  EXPECT_OK(ParseLoopback("127.1.2.3:1"));
  EXPECT_OK(ParseLoopback("[::1]:65535"));
  for (const char* other :
       {"0.0.0.0:9464", "[::]:9464", "10.0.0.1:9464", "localhost:9464",
        "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:+80",
        "127.0.0.1: 80", ":9464", "[127.0.0.1]:80", "::1:80", "", "[]:80",
        "[::ffff:127.0.0.1]:80"}) {
    EXPECT_THAT(
        ParseLoopback(other),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("put a proxy")))
        << other;
  }
}

}  // namespace hoistd::metrics_server_test
