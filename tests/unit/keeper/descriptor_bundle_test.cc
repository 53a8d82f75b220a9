#include "daemon/keeper/descriptor_bundle.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"
#include "tests/support/status_matchers.h"

namespace hoistd::descriptor_bundle_test {

using ::hoistd::testing::StatusIs;

hoist::UniqueFd Dup(int fd) {
  return hoist::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

hoist::UniqueFd FileOf(const std::string& text) {
  auto memfd = hoist::CreateMemfd("kept", text.size());
  EXPECT_TRUE(memfd.ok());
  EXPECT_EQ(pwrite(memfd->get(), text.data(), text.size(), 0),
            static_cast<ssize_t>(text.size()));
  return std::move(*memfd);
}

std::string TextOf(int fd) {
  struct stat file;
  EXPECT_EQ(fstat(fd, &file), 0);
  std::string text(static_cast<size_t>(file.st_size), '\0');
  EXPECT_EQ(pread(fd, text.data(), text.size(), 0), file.st_size);
  return text;
}

DescriptorBundle Make() {
  absl::StatusOr<DescriptorBundle> bundle = DescriptorBundle::Create();
  EXPECT_OK(bundle);
  return *std::move(bundle);
}

using Found = std::map<PersistedKey, hoist::UniqueFd>;

// As a new process has it, while somebody else held the ends.
absl::StatusOr<DescriptorBundle> Next(const DescriptorBundle& bundle,
                                      Found& found) {
  return DescriptorBundle::Adopt(
      Dup(bundle.in()), Dup(bundle.out()),
      [&](PersistedKey key, hoist::UniqueFd fd) {
        EXPECT_TRUE(found.emplace(key, std::move(fd)).second);
      });
}

TEST(DescriptorBundle, KeepsWhatEverybodyElseHasClosed) {
  DescriptorBundle bundle = Make();
  EXPECT_TRUE(bundle.empty());
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_OK(bundle.Add({3, i}, FileOf("file " + std::to_string(i)).get()));
  }
  ASSERT_OK(bundle.Remove({3, 2}));
  EXPECT_FALSE(bundle.Has({3, 2}));
  for (int again = 0; again < 3; ++again) {
    Found found;
    ASSERT_OK_AND_ASSIGN(DescriptorBundle next, Next(bundle, found));
    ASSERT_EQ(found.size(), 4u);
    for (const auto& [key, fd] : found) {
      EXPECT_EQ(key.kind, 3u);
      EXPECT_TRUE(next.Has(key));
      EXPECT_EQ(TextOf(fd.get()), "file " + std::to_string(key.id));
    }
  }
}

TEST(DescriptorBundle, WhatIsRemovedIsClosed) {
  DescriptorBundle bundle = Make();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  hoist::UniqueFd reader(ends[0]);
  ASSERT_OK(bundle.Add({1, 1}, hoist::UniqueFd(ends[1]).get()));
  ASSERT_OK(bundle.Add({1, 2}, FileOf("stays").get()));
  char byte;
  EXPECT_EQ(read(reader.get(), &byte, 1), -1);  // Somebody may still write.
  ASSERT_OK(bundle.Remove({1, 1}));
  EXPECT_EQ(read(reader.get(), &byte, 1), 0);  // Nobody has it.
}

TEST(DescriptorBundle, TakesAsManyAsItSaysAndThenTurnsOver) {
  DescriptorBundle bundle = Make();
  const hoist::UniqueFd file = FileOf("x");
  uint64_t count = 0;
  while (!bundle.full()) ASSERT_OK(bundle.Add({1, count++}, file.get()));
  EXPECT_GE(count, 100u);  // Debian's net.core.wmem_max lets 192 in.
  EXPECT_THAT(bundle.Add({1, count}, file.get()),
              StatusIs(absl::StatusCode::kResourceExhausted));
  Found found;
  ASSERT_OK(Next(bundle, found));
  EXPECT_EQ(found.size(), count);
  ASSERT_OK(bundle.Remove({1, 0}));
  EXPECT_FALSE(bundle.full());
  ASSERT_OK(bundle.Add({1, count}, file.get()));
}

TEST(DescriptorBundle, OfWhatIsNoneNothingIsTaken) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  hoist::UniqueFd in(ends[0]), out(ends[1]);
  ASSERT_EQ(send(in.get(), "something else", 14, 0), 14);
  const auto found = [](PersistedKey, hoist::UniqueFd) { ADD_FAILURE(); };
  EXPECT_THAT(
      DescriptorBundle::Adopt(std::move(in), std::move(out), found).status(),
      StatusIs(absl::StatusCode::kDataLoss));
}

TEST(DescriptorBundle, OfAMessageWithMoreThanOneDescriptorNoneStaysOpen) {
  for (const int fds : {2, 3}) {
    const int lowest = Dup(0).get();
    {
      const DescriptorBundle bundle = Make();
      const std::vector<int> all(static_cast<size_t>(fds), bundle.in());
      ASSERT_TRUE(hoist::SendPacket(bundle.in(), "1234567812345678", all).ok());
      Found found;
      EXPECT_THAT(Next(bundle, found).status(),
                  StatusIs(absl::StatusCode::kDataLoss));
    }
    EXPECT_EQ(Dup(0).get(), lowest);
  }
}

// A process is killed while it adds, removes and adopts: what was there before
// and after is there.
TEST(DescriptorBundle, WhoeverIsKilledInTheMiddleOfATurnLosesNothing) {
  auto memory = hoist::CreateMemfd("turns", 4096);
  auto mapping = hoist::Mapping::OfFd(memory->get(), 4096,
                                      hoist::Mapping::Access::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  auto& turns = *new (mapping->data()) std::atomic<uint64_t>(0);
  DescriptorBundle bundle = Make();
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_OK(bundle.Add({1, i}, FileOf(std::to_string(i)).get()));
  }
  for (uint32_t kill_no = 0; kill_no < 100; ++kill_no) {
    turns = 0;
    const pid_t child = fork();
    if (child == 0) {
      Found found;
      absl::StatusOr<DescriptorBundle> mine = Next(bundle, found);
      if (!mine.ok()) _exit(1);
      const hoist::UniqueFd file = FileOf("passing");
      while (true) {
        if (!mine->Has({2, 1}) && !mine->Add({2, 1}, file.get()).ok()) _exit(2);
        if (!mine->Remove({2, 1}).ok()) _exit(3);
        ++turns;
      }
    }
    ASSERT_GT(child, 0);
    while (turns < kill_no % 5) sched_yield();
    for (uint32_t i = 0; i < kill_no; ++i) sched_yield();
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
  }
  Found found;
  ASSERT_OK(Next(bundle, found));
  found.erase({2, 1});
  ASSERT_EQ(found.size(), 40u);
  for (const auto& [key, fd] : found) {
    EXPECT_EQ(TextOf(fd.get()), std::to_string(key.id));
  }
}

}  // namespace hoistd::descriptor_bundle_test
