#include "daemon/keeper/persisted_book.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"
#include "tests/support/status_matchers.h"

namespace hoistd::persisted_book_test {

using ::hoistd::testing::StatusIs;
using ::testing::HasSubstr;

using Values = std::map<PersistedKey, std::string>;

constexpr uint64_t kSmall = 16 << 10;

Values ValuesOf(const PersistedBook& book) {
  Values values;
  for (const auto& [key, value] : book.entries()) values[key] = value;
  return values;
}

hoist::UniqueFd Dup(int fd) {
  return hoist::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

PersistedBook Make(uint64_t half_bytes = kSmall) {
  absl::StatusOr<PersistedBook> book = PersistedBook::Create(half_bytes);
  EXPECT_OK(book);
  return *std::move(book);
}

// The bytes of it that hold anything, as another memfd.
hoist::UniqueFd Copy(const PersistedBook& book) {
  struct stat file;
  EXPECT_EQ(fstat(book.fd(), &file), 0);
  const auto bytes = static_cast<size_t>(file.st_size);
  auto copy = hoist::CreateMemfd("copy", bytes);
  EXPECT_TRUE(copy.ok());
  std::vector<char> all(bytes);
  EXPECT_EQ(pread(book.fd(), all.data(), bytes, 0),
            static_cast<ssize_t>(bytes));
  EXPECT_EQ(pwrite(copy->get(), all.data(), bytes, 0),
            static_cast<ssize_t>(bytes));
  return std::move(*copy);
}

TEST(PersistedBook, TheLastValueOfAKeyIsThereForTheNext) {
  PersistedBook book = Make();
  ASSERT_OK(book.Put({1, 7}, "first"));
  ASSERT_OK(book.Put({2, 7}, ""));
  ASSERT_OK(book.Put({1, 7}, "second"));
  ASSERT_OK(book.Put({1, 8}, "gone"));
  ASSERT_OK(book.Erase({1, 8}));
  ASSERT_OK(book.Erase({9, 9}));
  const Values want = {{{1, 7}, "second"}, {{2, 7}, ""}};
  EXPECT_EQ(ValuesOf(book), want);
  ASSERT_OK_AND_ASSIGN(PersistedBook next,
                       PersistedBook::Adopt(Dup(book.fd())));
  EXPECT_EQ(ValuesOf(next), want);
  next.Adopted();
  ASSERT_OK(next.Put({1, 9}, "third"));
  ASSERT_OK_AND_ASSIGN(PersistedBook last,
                       PersistedBook::Adopt(Dup(book.fd())));
  EXPECT_EQ(ValuesOf(last).size(), 3u);
}

TEST(PersistedBook, ItMayBeWrittenForEver) {
  PersistedBook book = Make();
  Values want;
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const PersistedKey key = {1, random() % 20};
    if (random() % 4 == 0) {
      ASSERT_OK(book.Erase(key));
      want.erase(key);
    } else {
      want[key] = std::string(random() % 300, static_cast<char>(random()));
      ASSERT_OK(book.Put(key, want[key]));
    }
    if (i % 500 == 0) {
      ASSERT_OK_AND_ASSIGN(PersistedBook next,
                           PersistedBook::Adopt(Dup(book.fd())));
      EXPECT_EQ(ValuesOf(next), want);
      next.Adopted();
    }
  }
  EXPECT_EQ(ValuesOf(book), want);
  struct stat file;
  ASSERT_EQ(fstat(book.fd(), &file), 0);
  EXPECT_LE(file.st_blocks * 512, static_cast<off_t>(4096 + 2 * kSmall));
}

TEST(PersistedBook, OneThatIsFullSaysSoAndKeepsWhatItHas) {
  PersistedBook book = Make();
  const std::string value(1000, 'x');
  Values want;
  absl::Status status;
  for (uint64_t i = 0; status.ok(); ++i) {
    status = book.Put({1, i}, value);
    if (status.ok()) want[{1, i}] = value;
    ASSERT_LT(i, 100u);
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_GE(want.size() * 1000, kSmall / 3);
  EXPECT_EQ(ValuesOf(book), want);
  EXPECT_THAT(
      book.Put({1, 1}, std::string(PersistedBook::kMaxValueBytes + 1, 'x')),
      StatusIs(absl::StatusCode::kInvalidArgument));
  // What goes makes room, half full or not.
  for (uint64_t i = 0; i < want.size(); ++i) {
    if (!book.Erase({1, i}).ok()) break;
  }
  ASSERT_OK_AND_ASSIGN(PersistedBook next,
                       PersistedBook::Adopt(Dup(book.fd())));
  EXPECT_EQ(ValuesOf(next), ValuesOf(book));
}

TEST(PersistedBook, OneOfWhichTooManyDiedIsLeftAlone) {
  PersistedBook book = Make();
  ASSERT_OK(book.Put({1, 1}, "poison"));
  for (uint32_t i = 0; i < PersistedBook::kMaxAttempts; ++i) {
    EXPECT_OK(PersistedBook::Adopt(Dup(book.fd())));
  }
  EXPECT_THAT(PersistedBook::Adopt(Dup(book.fd())).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("ended while they took over")));
}

TEST(PersistedBook, WhatIsNoBookIsRefused) {
  auto empty = hoist::CreateMemfd("empty", 4096);
  EXPECT_THAT(PersistedBook::Adopt(std::move(*empty)).status(),
              StatusIs(absl::StatusCode::kDataLoss));
  auto tiny = hoist::CreateMemfd("tiny", 8);
  EXPECT_THAT(PersistedBook::Adopt(std::move(*tiny)).status(),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_FALSE(
      PersistedBook::Adopt(hoist::UniqueFd(open("/dev/null", O_RDWR))).ok());
  // Of another version.
  PersistedBook book = Make();
  const uint32_t version = PersistedBook::kVersion + 1;
  ASSERT_EQ(pwrite(book.fd(), &version, sizeof(version), 8), 4);
  EXPECT_THAT(PersistedBook::Adopt(Dup(book.fd())).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("version ", version))));
}

// One bit, anywhere: the same is read, or nothing is.
TEST(PersistedBook, NoBitThatFlipsIsMisread) {
  PersistedBook book = Make(4096);
  ASSERT_OK(book.Put({1, 1}, "one"));
  ASSERT_OK(book.Put({2, 2}, std::string(40, 'b')));
  ASSERT_OK(book.Put({1, 1}, ""));
  ASSERT_OK(book.Erase({2, 2}));
  ASSERT_OK(book.Put({3, 3}, "last"));
  const Values want = ValuesOf(book);
  const hoist::UniqueFd copy = Copy(book);
  int refused = 0;
  // The header, then the records and what lies behind them.
  std::vector<off_t> offsets;
  for (off_t at = 0; at < 64; ++at) offsets.push_back(at);
  for (off_t at = 4096; at < 4096 + 400; ++at) offsets.push_back(at);
  for (const off_t at : offsets) {
    for (int bit = 0; bit < 8; ++bit) {
      unsigned char byte;
      ASSERT_EQ(pread(copy.get(), &byte, 1, at), 1);
      const auto flipped = static_cast<unsigned char>(byte ^ (1 << bit));
      ASSERT_EQ(pwrite(copy.get(), &flipped, 1, at), 1);
      absl::StatusOr<PersistedBook> next =
          PersistedBook::Adopt(Dup(copy.get()));
      if (next.ok()) {
        EXPECT_EQ(ValuesOf(*next), want) << "byte " << at << ", bit " << bit;
        next->Adopted();
      } else {
        ++refused;
      }
      const uint32_t attempts = 0;
      ASSERT_EQ(pwrite(copy.get(), &byte, 1, at), 1);
      ASSERT_EQ(pwrite(copy.get(), &attempts, 4, 36), 4);
    }
  }
  EXPECT_GT(refused, 1000);
}

// What a process that is killed may do at most, told by itself.
struct Diary {
  std::atomic<uint64_t> begun = 0;
  std::atomic<uint64_t> done = 0;
};

// The state after so many steps of a seed.
class Steps {
 public:
  explicit Steps(uint32_t seed) : random_(seed) {}
  // The next, done to `values`, and to the book if there is one.
  absl::Status Next(Values& values, PersistedBook* book) {
    const PersistedKey key = {1, random_() % 12};
    const bool erase = random_() % 4 == 0;
    const std::string value(random_() % 600, static_cast<char>(random_()));
    if (erase) {
      values.erase(key);
      return book == nullptr ? absl::OkStatus() : book->Erase(key);
    }
    values[key] = value;
    return book == nullptr ? absl::OkStatus() : book->Put(key, value);
  }

 private:
  std::mt19937 random_;
};

TEST(PersistedBook, WhoeverIsKilledLeavesItBeforeAStepOrAfterIt) {
  auto memory = hoist::CreateMemfd("diary", 4096);
  auto mapping = hoist::Mapping::OfFd(memory->get(), 4096,
                                      hoist::Mapping::Access::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  auto& diary = *new (mapping->data()) Diary();
  uint64_t steps = 0;
  for (uint32_t kill_no = 0; kill_no < 100; ++kill_no) {
    PersistedBook book = Make();
    diary.begun = diary.done = 0;
    const pid_t child = fork();
    if (child == 0) {
      Steps random(kill_no);
      Values values;
      while (true) {
        ++diary.begun;
        if (!random.Next(values, &book).ok()) _exit(1);
        ++diary.done;
      }
    }
    ASSERT_GT(child, 0);
    // At some moment after some steps, wherever that is in one of them.
    while (diary.done < kill_no * 7) sched_yield();
    for (uint32_t i = 0; i < kill_no; ++i) sched_yield();
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "a step failed";
    ASSERT_OK_AND_ASSIGN(PersistedBook next,
                         PersistedBook::Adopt(Dup(book.fd())));
    Steps random(kill_no);
    Values before, after;
    for (uint64_t i = 0; i < diary.done; ++i) {
      ASSERT_OK(random.Next(after, nullptr));
    }
    before = after;
    if (diary.begun > diary.done) {
      ASSERT_OK(random.Next(after, nullptr));
    }
    const Values found = ValuesOf(next);
    EXPECT_TRUE(found == before || found == after)
        << "killed after " << diary.done << " steps";
    steps += diary.done;
  }
  EXPECT_GT(steps, 100u);
}

}  // namespace hoistd::persisted_book_test
