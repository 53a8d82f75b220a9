// Workers die at every place, stop, exec, fork and starve: hoistd has all that
// was theirs back, to the byte, and another worker streams on.
//
// HOIST_DEATHS=stress: at every place; else at a part of them.
// HOIST_DEATHS_SEED: of what is drawn; it is printed.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>

#include "gtest/gtest.h"
#include "tests/fault/deaths/death_worker.h"
#include "tests/fault/deaths/ledger.h"
#include "tests/fault/deaths/traced.h"
#include "tests/support/real_hoistd.h"

namespace hoistd::testing::deaths_test {

using std::chrono::steady_clock;

// Five times the second that is stated, on a machine that is busy.
constexpr std::chrono::seconds kBackWithin{5};
constexpr std::chrono::seconds kPatience{60};

bool Every() {
  const char* label = std::getenv("HOIST_DEATHS");
  return label != nullptr && std::string(label) == "stress";
}

// A worker that nobody traces. What it tells comes by a pipe.
class Worker {
 public:
  explicit Worker(std::vector<std::string> command) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    told_ = ends[0];
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[1], 3);
    posix_spawn_file_actions_addclosefrom_np(&files, 4);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    if (posix_spawn(&pid_, argv[0], &files, &attributes, argv.data(),
                    environ) != 0) {
      pid_ = -1;
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    if (pid_ > 0) kill(-pid_, SIGKILL);  // Its children too.
    Wait();
    close(told_);
  }

  // The next that it told; 0: it has ended.
  char Next() {
    char what = 0;
    return read(told_, &what, 1) == 1 ? what : 0;
  }
  // What it told so far is left out of what it tells next.
  void Skip() {
    char some[4096];
    pollfd looked = {told_, POLLIN, 0};
    while (poll(&looked, 1, 0) > 0 && (looked.revents & POLLIN) != 0 &&
           read(told_, some, sizeof(some)) > 0) {
    }
  }
  void Signal(int signal) { kill(pid_, signal); }
  int Wait() {
    if (pid_ <= 0) return code_;
    int status = 0;
    waitpid(pid_, &status, 0);
    kill(-pid_, SIGKILL);
    pid_ = -1;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return code_;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int told_ = -1;
  int code_ = -1;
};

class Deaths : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* given = std::getenv("HOIST_DEATHS_SEED");
    const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10)
                                           : std::random_device()();
    std::printf("HOIST_DEATHS_SEED=%llu\n",
                static_cast<unsigned long long>(seed));
    random_.seed(seed);
    WriteFile();
    ASSERT_TRUE(hoistd_.Connect().ok()) << hoistd_.Log();
    ledger_.emplace(hoistd_.grpc_socket(), hoistd_.pid());
    living_.emplace(Command("stream"));
    ASSERT_EQ(living_->Next(), 'p') << hoistd_.Log();
    // What a first worker has hoistd make once stays.
    ASSERT_EQ(Worker(Command("script")).Wait(), 0) << hoistd_.Log();
    before_ = Settled();
  }
  void TearDown() override {
    ExpectLives();
    living_->Signal(SIGTERM);
    EXPECT_EQ(living_->Wait(), -SIGTERM);
  }

  void WriteFile() {
    const std::string header =
        "{\"w\":{\"dtype\":\"U8\",\"shape\":[65536],"
        "\"data_offsets\":[0,65536]}}   ";
    const auto size = static_cast<uint64_t>(header.size());
    std::ofstream out(folder_ / "m.safetensors", std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof(size));
    out << header << std::string(65536, 'x');
  }
  std::vector<std::string> Command(const std::string& verb,
                                   const std::string& last = "") {
    return {WORKER_BINARY, verb, hoistd_.socket(), folder_ / "m.safetensors",
            last};
  }

  // The ledger once nothing changes; models that the dead made are dropped.
  std::string Settled() {
    std::string last;
    for (int same = 0; same < 3;) {
      ForgetDying();
      const std::string now = ledger_->Read();
      same = now == last ? same + 1 : 0;
      last = now;
    }
    return last;
  }
  void ForgetDying() {
    ledger_->Forget("pattern-" + std::to_string(kDyingModel));
    ledger_->Forget(kDyingFile);
  }
  // Of whoever died just now.
  void ExpectAllBack(const std::string& what) {
    const steady_clock::time_point end = steady_clock::now() + kBackWithin;
    std::string now;
    do {
      ForgetDying();
      now = ledger_->Read();
    } while (now != before_ && steady_clock::now() < end);
    const std::string log = hoistd_.Log();
    ASSERT_EQ(now, before_)
        << what << '\n'
        << log.substr(log.size() - std::min<size_t>(log.size(), 3'000));
  }
  // The other worker, whose bytes it checks itself.
  void ExpectLives() {
    living_->Skip();
    for (int pass = 0; pass < 3; ++pass) {
      ASSERT_EQ(living_->Next(), 'p') << "it ended with " << living_->Wait();
    }
  }
  uint64_t Draw(uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(1, most)(random_);
  }

  const TempDir folder_;
  RealHoistd hoistd_{HOISTD_BINARY};
  std::mt19937_64 random_;
  std::optional<Ledger> ledger_;
  std::optional<Worker> living_;
  std::string before_;
};

TEST_F(Deaths, AtEachSystemCall) {
  const Death whole = RunTraced(Command("script", "traced"), {});
  ASSERT_EQ(whole.code, 0) << hoistd_.Log();
  ExpectAllBack("it ended by itself");
  ASSERT_GT(whole.stops, 100u);
  const uint64_t step = Every() ? 1 : 3;
  uint64_t died = 0;
  for (uint64_t at = Draw(step); at <= whole.stops; at += step) {
    died += RunTraced(Command("script", "traced"), {at, 0}).killed ? 1 : 0;
    ExpectAllBack("killed at stop " + std::to_string(at));
    if (HasFatalFailure()) return;
  }
  ExpectLives();
  std::printf("%llu stops, killed at %llu of them\n",
              static_cast<unsigned long long>(whole.stops),
              static_cast<unsigned long long>(died));
  EXPECT_GT(died, whole.stops / step / 2);
}

TEST_F(Deaths, AtAnyInstruction) {
  const Death whole = RunTraced(Command("script", "traced"), {});
  ASSERT_EQ(whole.code, 0) << hoistd_.Log();
  const int times = Every() ? 1'000 : 60;
  int died = 0;
  for (int time = 0; time < times; ++time) {
    const DeathPlace place = {Draw(whole.stops), Draw(3'000)};
    died += RunTraced(Command("script", "traced"), place).killed ? 1 : 0;
    ExpectAllBack("killed " + std::to_string(place.instructions) +
                  " instructions behind stop " + std::to_string(place.stop));
    if (HasFatalFailure()) return;
  }
  ExpectLives();
  EXPECT_GT(died, times / 2);
}

TEST_F(Deaths, StoppedItKeepsWhatItHasAndHoldsUpNobody) {
  Worker stopped(Command("hold", "pause"));
  ASSERT_EQ(stopped.Next(), 'h');
  stopped.Signal(SIGSTOP);
  ExpectLives();
  // Others come, work and go.
  const std::string with_it = ledger_->Read();
  EXPECT_EQ(Worker(Command("script")).Wait(), 0) << hoistd_.Log();
  ExpectLives();
  EXPECT_NE(with_it, before_);
  stopped.Signal(SIGKILL);
  stopped.Wait();
  ExpectAllBack("killed while it was stopped");
}

// While others ask as fast as they can, its end is seen before many of their
// requests; how long that took is printed, and depends on the machine.
TEST_F(Deaths, BesideManyWhoAskItsEndIsSeenWithinFewAnswers) {
  constexpr int kBusy = 6;
  constexpr int kMostAnswers = 500;
  {
    Worker first(Command("busy"));
    ASSERT_EQ(first.Next(), 'b') << hoistd_.Log();
  }
  before_ = Settled();  // All that they stage is there, and stays.
  std::vector<std::unique_ptr<Worker>> busy;
  for (int i = 0; i < kBusy; ++i) {
    busy.push_back(std::make_unique<Worker>(Command("busy")));
    ASSERT_EQ(busy.back()->Next(), 'b') << hoistd_.Log();
  }
  int most = 0;
  std::chrono::duration<double, std::milli> longest{0};
  for (int death = 0; death < (Every() ? 200 : 20); ++death) {
    Worker dying(Command("hold", "pause"));
    ASSERT_EQ(dying.Next(), 'h') << hoistd_.Log();
    const pid_t pid = dying.pid();
    dying.Signal(SIGKILL);
    dying.Wait();  // All that it had open is closed.
    const steady_clock::time_point died = steady_clock::now();
    int answers = 0;
    for (bool seen = false; !seen; ++answers) {
      ASSERT_LT(answers, kMostAnswers) << hoistd_.Log();
      const std::vector<uint32_t> pids = ledger_->Pids();
      const auto has = [&](pid_t of) {
        return std::count(pids.begin(), pids.end(), static_cast<uint32_t>(of)) >
               0;
      };
      ASSERT_TRUE(has(living_->pid())) << "no answer";
      seen = !has(pid);
    }
    most = std::max(most, answers);
    longest = std::max<decltype(longest)>(longest, steady_clock::now() - died);
  }
  std::printf("seen by the answer number %d, %.1f ms at most\n", most,
              longest.count());
  for (const auto& worker : busy) worker->Signal(SIGKILL);
  busy.clear();
  ExpectAllBack("killed beside others who ask");
}

TEST_F(Deaths, AnotherProgramInItsPlaceHasNothing) {
  Worker replaced(Command("hold", "exec"));
  ASSERT_EQ(replaced.Next(), 'h');
  // The process lives, and none of its descriptors was inherited.
  ASSERT_EQ(replaced.Next(), 'k');
  ExpectAllBack("it became another program");
}

TEST_F(Deaths, AChildOfAForkIsNoWorkerAndItsDeathNone) {
  Worker parent(Command("hold", "fork"));
  const char first = parent.Next();
  const char second = parent.Next();
  EXPECT_EQ(std::string({std::min(first, second), std::max(first, second)}),
            "fh");
  const std::string with_it = ledger_->Read();
  EXPECT_NE(with_it, before_);
  parent.Signal(SIGKILL);
  // The child lives on, and keeps nothing.
  ExpectAllBack("its child lives");
}

TEST_F(Deaths, ASocketThatAChildKeptOpenKeepsNothing) {
  Worker parent(Command("hold", "raw-fork"));
  ASSERT_EQ(parent.Next(), 'h');
  parent.Signal(SIGKILL);
  siginfo_t info = {};
  ASSERT_EQ(
      waitid(P_PID, static_cast<id_t>(parent.pid()), &info, WEXITED | WNOWAIT),
      0);
  ExpectAllBack("its child has the socket open");
}

// With any number of descriptors it does its work, or is told why not; with
// enough it works in the same process.
TEST_F(Deaths, StarvedOfDescriptorsItIsToldSo) {
  int refused = 0;
  int left = 0;
  for (bool enough = false; !enough; ++left) {
    ASSERT_LT(left, 200);
    const int code = Worker(Command("starve", std::to_string(left))).Wait();
    ASSERT_TRUE(code == 0 || code == kRefused)
        << code << " with " << left << " descriptors left";
    ExpectAllBack(std::to_string(left) + " descriptors left");
    if (HasFatalFailure()) return;
    refused += code == kRefused ? 1 : 0;
    enough = code == 0;
  }
  EXPECT_GE(refused, 3);
  std::printf("it takes %d descriptors\n", left - 1);
}

}  // namespace hoistd::testing::deaths_test
