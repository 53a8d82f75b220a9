// A session ends with its connection or its process, wherever it stood.
#include <signal.h>
#include <sys/wait.h>

#include <atomic>

#include "tests/component/session/session_fixture.h"

namespace hoistd::testing::session_death_test {

using ::hoist::v1::ClientMessage;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

LeaseGrant GrantWithSlab(int fd) {
  LeaseGrant grant;
  grant.id = LeaseId(1);
  SlabUse use;
  use.share.fd = fd;
  grant.new_slabs.push_back(use);
  return grant;
}

TEST_F(SessionFixture, ClosingTheConnectionClosesTheSession) {
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  client.Close();
  engine().WaitUntilClosed(SessionId(1));
}

TEST_F(SessionFixture, HalfAConnectionIsNone) {
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  ASSERT_EQ(shutdown(client.socket(), SHUT_WR), 0);
  engine().WaitUntilClosed(SessionId(1));
  EXPECT_EQ(client.Receive(), std::nullopt);
}

TEST_F(SessionFixture, AConnectionWithoutASessionLeavesNothing) {
  { RawSession client(path()); }
  Settle();
  engine().WaitUntilClosed(1);  // Settle's own.
  EXPECT_THAT(engine().closed(), ElementsAre(SessionId(1)));
}

TEST_F(SessionFixture, DyingWhileTheSessionOpensClosesItOnceItIsKnown) {
  engine().verb<OpenSessionArgs>().Answer(nullptr);
  RawSession client(path());
  ClientMessage open;
  open.mutable_open_session();
  ASSERT_TRUE(client.Send(open));
  auto call = engine().verb<OpenSessionArgs>().Next();
  client.Close();
  engine().verb<OpenSessionArgs>().Answer(
      [&](auto other) { other.done(engine().NewSession()); });
  Settle();
  call.done(SessionId(99));
  engine().WaitUntilClosed(SessionId(99));
}

// What it was given it may still compute with, and hoistd lives: nobody else is
// to have it before the client has let go.
TEST_F(SessionFixture, OneThatIsToldToEndLivesUntilItsClientHangsUp) {
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  engine().Say(absl::UnavailableError("an admin has ended this session"));
  const auto word = client.Receive();
  ASSERT_TRUE(word.has_value());
  EXPECT_EQ(word->message.request_id(), 0u);
  EXPECT_EQ(word->message.code(),
            static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(client.Receive(), std::nullopt);  // Nothing follows.
  RawSession other(path());
  ASSERT_EQ(other.Open().message.code(), 0);
  ASSERT_TRUE(client.Send(StageMessage(2)));  // Nor is anything served.
  Barrier(other);
  EXPECT_EQ(engine().verb<StageArgs>().calls(), 0u);
  EXPECT_THAT(engine().closed(), IsEmpty());
  client.Close();
  engine().WaitUntilClosed(SessionId(1));
}

// Stopping hoistd asks nobody.
TEST_F(SessionFixture, OneThatWasToldToEndEndsWithHoistd) {
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  engine().Say(absl::UnavailableError("an admin has ended this session"));
  ASSERT_TRUE(client.Receive().has_value());
  server_->Shutdown();
  engine().WaitUntilClosed(SessionId(1));
}

TEST_F(SessionFixture, ALeaseGrantedToADeadSessionLeaksNoDescriptor) {
  const hoist::UniqueFd slab = SealedMemfd(4096);
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  RawSession other(path());
  ASSERT_EQ(other.Open().message.code(), 0);
  ASSERT_TRUE(client.Send(StageMessage(2)));
  auto call = engine().verb<StageArgs>().Next();
  client.Close();
  // At once, though a request is pending.
  engine().WaitUntilClosed(SessionId(1));
  Barrier(other);
  // What the dead session had may still be on its way out.
  const size_t before = OpenFdCount();
  call.done(GrantWithSlab(slab.get()));
  Barrier(other);
  EXPECT_LE(OpenFdCount(), before);
}

TEST_F(SessionFixture, ALeaseGrantedAfterShutdownLeaksNoDescriptor) {
  const hoist::UniqueFd slab = SealedMemfd(4096);
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  ASSERT_TRUE(client.Send(StageMessage(2)));
  auto call = engine().verb<StageArgs>().Next();
  server_->Shutdown();
  EXPECT_THAT(engine().closed(), ElementsAre(SessionId(1)));
  const size_t before = OpenFdCount();
  call.done(GrantWithSlab(slab.get()));
  EXPECT_EQ(OpenFdCount(), before);
}

// A worker process. It does one thing per byte it is told, and is forked before
// the server starts its threads.
class Worker {
 public:
  // 'o': connects, opens a session, and says what code it got. 's': sends a
  // Stage. 'p': passes its connection on over the pair it was given.
  explicit Worker(std::string path) {
    HOIST_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_) ==
                0);
    pid_ = fork();
    HOIST_CHECK(pid_ >= 0);
    if (pid_ == 0) Live(path);
    close(ends_[1]);
  }
  ~Worker() {
    Kill();
    close(ends_[0]);
  }

  char Do(char what) {
    HOIST_CHECK(send(ends_[0], &what, 1, MSG_NOSIGNAL) == 1);
    hoist::Result<std::optional<hoist::Packet>> answer =
        hoist::ReceivePacket(ends_[0]);
    HOIST_CHECK(answer.ok() && answer->has_value());
    if (!(**answer).fds.empty()) passed_ = std::move((**answer).fds[0]);
    return (**answer).body[0];
  }
  void Signal(int signal) { HOIST_CHECK(kill(pid_, signal) == 0); }
  void Kill() {
    if (pid_ <= 0) return;
    Signal(SIGKILL);
    HOIST_CHECK(waitpid(pid_, nullptr, 0) == pid_);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }
  hoist::UniqueFd TakePassed() { return std::move(passed_); }

 private:
  [[noreturn]] void Live(const std::string& path) {
    std::optional<RawSession> session;
    char what;
    while (recv(ends_[1], &what, 1, 0) == 1) {
      std::string answer = "k";
      std::vector<int> fds;
      if (what == 'o') {
        session.emplace(path);
        answer[0] = static_cast<char>(session->Open().message.code());
      } else if (what == 's') {
        session->Send(StageMessage(2));
      } else if (what == 'p') {
        fds.push_back(session->socket());
      }
      if (!hoist::SendPacket(ends_[1], answer, fds).ok()) break;
    }
    _exit(0);
  }

  int ends_[2] = {-1, -1};
  pid_t pid_ = 0;
  hoist::UniqueFd passed_;
};

class WorkerDeath : public SessionFixture {
 protected:
  void SetUp() override {
    worker_.emplace(dir_ / "hoistd.sock");
    SessionFixture::SetUp();
  }
  void TearDown() override {
    SessionFixture::TearDown();
    worker_.reset();
  }

  // The engine of the fixture runs a thread already; the worker never touches
  // it.
  std::optional<Worker> worker_;
};

TEST_F(WorkerDeath, AKilledWorkersSessionIsClosed) {
  std::atomic<int32_t> pid = 0;
  engine().verb<OpenSessionArgs>().Answer([&](auto call) {
    pid = call.args.peer.pid;
    call.done(engine().NewSession());
  });
  ASSERT_EQ(worker_->Do('o'), 0);
  EXPECT_EQ(pid, worker_->pid());
  worker_->Kill();
  engine().WaitUntilClosed(SessionId(1));
}

TEST_F(WorkerDeath, AWorkerKilledInARequestIsClosedBeforeTheReply) {
  ASSERT_EQ(worker_->Do('o'), 0);
  worker_->Do('s');
  auto call = engine().verb<StageArgs>().Next();
  worker_->Kill();
  engine().WaitUntilClosed(SessionId(1));
  call.done(absl::NotFoundError("too late"));
  Settle();
}

TEST_F(WorkerDeath, AConnectionPassedOnDoesNotOutliveItsProcess) {
  ASSERT_EQ(worker_->Do('o'), 0);
  worker_->Do('p');
  const hoist::UniqueFd passed = worker_->TakePassed();
  ASSERT_TRUE(passed.valid());
  EXPECT_THAT(engine().closed(), IsEmpty());
  worker_->Kill();
  engine().WaitUntilClosed(SessionId(1));
  char byte;
  EXPECT_EQ(recv(passed.get(), &byte, 1, 0), 0);
}

TEST_F(WorkerDeath, AStoppedWorkerDisturbsNobody) {
  ASSERT_EQ(worker_->Do('o'), 0);
  worker_->Do('s');
  worker_->Signal(SIGSTOP);
  engine().verb<StageArgs>().Answer(
      [](auto call) { call.done(absl::NotFoundError("no model")); });
  RawSession other(path());
  ASSERT_EQ(other.Open().message.code(), 0);
  for (uint64_t i = 1; i <= 100; ++i) {
    EXPECT_EQ(other.Call(StageMessage(i)).message.request_id(), i);
  }
  EXPECT_THAT(engine().closed(), IsEmpty());
  worker_->Kill();
  engine().WaitUntilClosed(SessionId(1));
}

}  // namespace hoistd::testing::session_death_test
