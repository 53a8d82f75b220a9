// Host images through hoist.h: what is asked of the daemon, and what becomes of
// its answers.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/unit/client/fake_daemon.h"

namespace hoist_test::host_image_test {

using Code = hoist::Code;
using Fds = std::vector<int>;
using ::testing::HasSubstr;

constexpr uint64_t kHugePage = uint64_t{2} << 20;

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

size_t MappedImages() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:hoist-image") != std::string::npos) ++count;
  }
  return count;
}

// What the daemon was asked for.
struct Asked {
  pb::ReadImageRequest request;
  int seals = 0;
  struct stat memfd = {};
};

// Fills images as hoistd does, or answers `code`.
class ImageDaemon {
 public:
  std::atomic<int> code = 0;
  std::atomic<bool> hang_up = false;
  std::atomic<bool> silent = false;

  const std::string& path() const { return daemon_.path(); }
  std::vector<Asked> asked() {
    const std::lock_guard<std::mutex> lock(mu_);
    return asked_;
  }

 private:
  bool Answer(Peer& peer, const pb::ClientMessage& message, const Fds& fds) {
    if (!message.has_read_image()) return false;
    Asked asked;
    asked.request = message.read_image();
    const int fd = fds.at(asked.request.fd_index());
    asked.seals = fcntl(fd, F_GET_SEALS);
    EXPECT_EQ(fstat(fd, &asked.memfd), 0);
    const std::string image(
        static_cast<size_t>(asked.memfd.st_size),
        static_cast<char>(FakeDaemon::Byte(asked.request.group())));
    if (code == 0) {
      EXPECT_EQ(pwrite(fd, image.data(), image.size(), 0),
                static_cast<ssize_t>(image.size()));
    }
    {
      const std::lock_guard<std::mutex> lock(mu_);
      asked_.push_back(asked);
    }
    if (silent) return true;
    if (hang_up) {
      peer.HangUp();
      return true;
    }
    pb::DaemonMessage reply;
    reply.set_request_id(message.request_id());
    reply.set_code(code);
    if (code != 0) reply.set_message("the host tier is full");
    peer.Send(reply);
    return true;
  }

  std::mutex mu_;
  std::vector<Asked> asked_;  // Guarded by mu_.
  // Last: it calls Answer until it is gone.
  FakeDaemon daemon_{
      [this](Peer& peer, const pb::ClientMessage& message, const Fds& fds) {
        return Answer(peer, message, fds);
      }};
};

struct Worker {
  explicit Worker(const ImageDaemon& daemon,
                  std::chrono::milliseconds call = std::chrono::seconds(20))
      : session(*hoist::Session::Connect(To(daemon, call))),
        model(*session.DescribeModel("m")) {}
  static hoist::ConnectOptions To(const ImageDaemon& daemon,
                                  std::chrono::milliseconds call) {
    hoist::ConnectOptions options;
    options.socket_path = daemon.path();
    options.call_deadline = call;
    return options;
  }
  hoist::HostImage Image(uint32_t group = 1) {
    return *session.ReserveHostImage(model, group);
  }
  hoist::Session session;
  hoist::Model model;
};

uint8_t FirstByte(const hoist::HostImage& image) {
  return *static_cast<const volatile uint8_t*>(image.data());
}

TEST(HostImage, TheMemoryIsAllocatedHereAndKeepsItsSize) {
  ImageDaemon daemon;
  Worker worker(daemon);
  hoist::HostImage image = worker.Image();
  EXPECT_TRUE(daemon.asked().empty());  // Nothing before it is loaded.
  ASSERT_TRUE(image.Load(std::chrono::milliseconds(250)).ok());
  ASSERT_EQ(daemon.asked().size(), 1u);
  const Asked asked = daemon.asked()[0];
  EXPECT_EQ(asked.request.model_id(), worker.model.id());
  EXPECT_EQ(asked.request.group(), 1u);
  EXPECT_EQ(asked.request.deadline_ms(), 250u);
  EXPECT_EQ(static_cast<uint64_t>(asked.memfd.st_size), image.image_bytes());
  EXPECT_GE(static_cast<uint64_t>(asked.memfd.st_blocks) * 512,
            image.image_bytes());
  EXPECT_EQ(asked.seals & (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE |
                           F_SEAL_FUTURE_WRITE | F_SEAL_SEAL),
            F_SEAL_GROW | F_SEAL_SHRINK);
}

TEST(HostImage, TheAddressIsConstantAndTheBytesComeAndGo) {
  ImageDaemon daemon;
  Worker worker(daemon);
  hoist::HostImage image = worker.Image();
  const void* const address = image.data();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % kHugePage, 0u);
  for (size_t round = 1; round <= 3; ++round) {
    EXPECT_FALSE(image.loaded());
    EXPECT_EQ(MappedImages(), 0u);
    ASSERT_TRUE(image.Load().ok());
    ASSERT_TRUE(image.Load().ok());  // Again: nothing is asked.
    EXPECT_EQ(daemon.asked().size(), round);
    EXPECT_TRUE(image.loaded());
    EXPECT_EQ(image.data(), address);
    EXPECT_EQ(FirstByte(image), FakeDaemon::Byte(1));
    EXPECT_EQ(MappedImages(), 1u);
    image.Drop();
    image.Drop();
  }
}

// As hoistds do, of which the first ones seal what they get, and die.
class SealingDaemons {
 public:
  explicit SealingDaemons(int deaths) : deaths_(deaths) {}

  bool Answer(Peer& peer, const pb::ClientMessage& message, const Fds& fds) {
    pb::DaemonMessage reply;
    reply.set_request_id(message.request_id());
    if (message.has_resume()) {
      reply.mutable_resume();
      peer.Send(reply);
      return true;
    }
    if (!message.has_read_image()) return false;
    const int fd = fds.at(message.read_image().fd_index());
    const int seals = fcntl(fd, F_GET_SEALS);
    if ((seals & F_SEAL_FUTURE_WRITE) != 0) {
      reply.set_code(static_cast<int32_t>(Code::kInvalidArgument));
      peer.Send(reply);
      return true;
    }
    if (died_ < deaths_) {
      EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
      reply.set_request_id(0);
      reply.mutable_resumed()->set_number(static_cast<uint64_t>(++died_));
      peer.Send(reply);
      return true;
    }
    const std::string image(4096, static_cast<char>(FakeDaemon::Byte(1)));
    EXPECT_EQ(pwrite(fd, image.data(), image.size(), 0), 4096);
    peer.Send(reply);
    return true;
  }
  int died() const { return died_; }

 private:
  const int deaths_;
  std::atomic<int> died_ = 0;
};

TEST(HostImage, EachHoistdFillsAMemfdThatTheOneBeforeHasNotSealed) {
  SealingDaemons daemons(3);
  FakeDaemon daemon(
      [&](Peer& peer, const pb::ClientMessage& message, const Fds& fds) {
        return daemons.Answer(peer, message, fds);
      });
  hoist::ConnectOptions options;
  options.socket_path = daemon.path();
  hoist::Session session = *hoist::Session::Connect(options);
  hoist::HostImage image =
      *session.ReserveHostImage(*session.DescribeModel("m"), 1);
  const hoist::Status loaded = image.Load();
  ASSERT_TRUE(loaded.ok()) << loaded.ToString();
  EXPECT_EQ(daemons.died(), 3);
  EXPECT_EQ(FirstByte(image), FakeDaemon::Byte(1));
  EXPECT_EQ(MappedImages(), 1u);
}

TEST(HostImage, LoadsAtOnceAskOnce) {
  ImageDaemon daemon;
  Worker worker(daemon);
  hoist::HostImage image = worker.Image();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      EXPECT_TRUE(image.Load().ok());
      EXPECT_EQ(FirstByte(image), FakeDaemon::Byte(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(daemon.asked().size(), 1u);
}

TEST(HostImage, ARefusalIsToldAndLeavesNothing) {
  ImageDaemon daemon;
  Worker worker(daemon);
  hoist::HostImage image = worker.Image();
  const size_t before = OpenDescriptors();
  daemon.code = static_cast<int>(Code::kResourceExhausted);
  const hoist::Status refused = image.Load();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("the host tier is full"));
  EXPECT_FALSE(image.loaded());
  EXPECT_EQ(MappedImages(), 0u);
  EXPECT_LE(OpenDescriptors(), before + 1);  // The fake may be closing its own.
  daemon.code = 0;
  ASSERT_TRUE(image.Load().ok());
  EXPECT_EQ(FirstByte(image), FakeDaemon::Byte(1));
}

TEST(HostImage, ADaemonThatDiesIsUnavailable) {
  ImageDaemon daemon;
  Worker worker(daemon);
  hoist::HostImage loaded = worker.Image(0), image = worker.Image();
  ASSERT_TRUE(loaded.Load().ok());
  daemon.hang_up = true;
  EXPECT_EQ(image.Load().code(), Code::kUnavailable);
  EXPECT_FALSE(image.loaded());
  EXPECT_TRUE(loaded.Load().ok());  // It is there.
  EXPECT_EQ(FirstByte(loaded), FakeDaemon::Byte(0));
}

TEST(HostImage, AnAnswerThatDoesNotComeIsADeadlineExceeded) {
  ImageDaemon daemon;
  // Of every call, so no shorter than a busy machine may take for one.
  Worker worker(daemon, std::chrono::seconds(2));
  hoist::HostImage image = worker.Image();
  daemon.silent = true;
  EXPECT_EQ(image.Load(std::chrono::milliseconds(0)).code(),
            Code::kDeadlineExceeded);
  EXPECT_FALSE(image.loaded());
}

TEST(HostImage, ItOutlivesTheSessionAsFarAsItIsLoaded) {
  ImageDaemon daemon;
  Worker worker(daemon);
  hoist::HostImage loaded = worker.Image(0), image = worker.Image();
  ASSERT_TRUE(loaded.Load().ok());
  worker.session.Close();
  EXPECT_EQ(FirstByte(loaded), FakeDaemon::Byte(0));
  EXPECT_EQ(image.Load().code(), Code::kFailedPrecondition);
  EXPECT_EQ(worker.session.ReserveHostImage(worker.model, 0).status().code(),
            Code::kFailedPrecondition);
  loaded.Drop();
  EXPECT_EQ(loaded.Load().code(), Code::kFailedPrecondition);
}

TEST(HostImage, AnEmptyImageHasNoAddressAndAsksForNothing) {
  ImageDaemon daemon;
  Worker worker(daemon);
  auto deep = worker.session.DescribeModel("deep");
  ASSERT_TRUE(deep.ok());
  auto image = worker.session.ReserveHostImage(*deep, *deep->FindGroup("none"));
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(image->data(), nullptr);
  ASSERT_TRUE(image->Load().ok());
  EXPECT_TRUE(image->loaded());
  image->Drop();
  EXPECT_FALSE(image->loaded());
  EXPECT_TRUE(daemon.asked().empty());
}

TEST(HostImage, TheChildOfAForkReadsWhatIsLoadedAndLoadsNothing) {
  ImageDaemon daemon;
  Worker worker(daemon);
  hoist::HostImage image = worker.Image(0), other = worker.Image();
  ASSERT_TRUE(image.Load().ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool reads = FirstByte(image) == FakeDaemon::Byte(0);
    const bool refuses = image.Load().code() == Code::kFailedPrecondition &&
                         other.Load().code() == Code::kFailedPrecondition;
    image.Drop();
    const bool dropped = !image.loaded() && MappedImages() == 0;
    { auto gone = std::move(image); }
    { auto gone = std::move(other); }
    _exit(reads && refuses && dropped ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(FirstByte(image), FakeDaemon::Byte(0));
}

TEST(HostImage, GroupsThatAreNotThereAndNullAreRefused) {
  ImageDaemon daemon;
  Worker worker(daemon);
  EXPECT_EQ(worker.session.ReserveHostImage(worker.model, 9).status().code(),
            Code::kOutOfRange);
  hoist_host_image* image = nullptr;
  EXPECT_EQ(
      hoist_host_image_create(nullptr, worker.model.get(), 0, &image, nullptr),
      HOIST_INVALID_ARGUMENT);
  EXPECT_EQ(hoist_host_image_create(worker.session.get(), nullptr, 0, &image,
                                    nullptr),
            HOIST_INVALID_ARGUMENT);
  EXPECT_EQ(hoist_host_image_create(worker.session.get(), worker.model.get(), 0,
                                    nullptr, nullptr),
            HOIST_INVALID_ARGUMENT);
  EXPECT_EQ(hoist_host_image_load(nullptr, 0, nullptr), HOIST_INVALID_ARGUMENT);
  hoist_host_image_drop(nullptr);
  hoist_host_image_free(nullptr);
}

}  // namespace hoist_test::host_image_test
