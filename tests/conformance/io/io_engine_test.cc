// What every IoEngine promises, on every engine, with direct and buffered
// files.
#include "daemon/types/io_engine.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "daemon/io/aligned_buffer.h"
#include "daemon/io/create_io_engine.h"
#include "daemon/io/direct_probe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/shared/unique_fd.h"
#include "tests/support/io_wait.h"
#include "tests/support/pattern.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd {
namespace {

using ::hoistd::testing::ReadAndWait;
using ::hoistd::testing::StatusIs;
using ::hoistd::testing::WriteAndWait;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Not a multiple of anything.
constexpr uint64_t kFileBytes = 21 * kMiB + 777;
constexpr std::byte kUntouched{0xA5};

struct EngineCase {
  std::string name;
  IoOptions options;
};

class IoEngineTest
    : public ::testing::TestWithParam<std::tuple<EngineCase, bool>> {
 protected:
  bool direct() const { return std::get<1>(GetParam()); }

  void SetUp() override {
    const EngineCase& engine_case = std::get<0>(GetParam());
    auto engine = CreateIoEngine(engine_case.options);
    if (!engine.ok() && engine_case.options.choice == IoChoice::kUring) {
      GTEST_SKIP() << engine.status();
    }
    ASSERT_OK(engine);
    engine_ = *std::move(engine);
    content_ = testing::Pattern(kFileBytes, 7);
    fd_ = hoist::UniqueFd(open((dir_ / "file").c_str(),
                               O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_TRUE(fd_.valid());
    ASSERT_EQ(write(fd_.get(), content_.data(), content_.size()),
              static_cast<ssize_t>(content_.size()));
    ASSERT_EQ(fsync(fd_.get()), 0);
    if (!direct()) return;
    auto opened = OpenDirect(fd_.get(), O_RDWR);
    if (!opened.ok()) GTEST_SKIP() << "no direct I/O: " << opened.status();
    direct_fd_ = *std::move(opened);
  }

  IoFile file() const {
    return {
        .fd = fd_.get(), .direct_fd = direct_fd_.get(), .bytes = kFileBytes};
  }

  // Reads [offset, offset + bytes) to an address that is `skew` past a page,
  // and checks it and the bytes around it.
  void CheckRead(uint64_t offset, uint64_t bytes, uint64_t skew) {
    SCOPED_TRACE(::testing::Message()
                 << bytes << " bytes at " << offset << ", skew " << skew);
    ASSERT_OK_AND_ASSIGN(AlignedBuffer buffer,
                         AlignedBuffer::Create(skew + bytes + 4096));
    std::memset(buffer.data(), 0xA5, buffer.span().size());
    std::byte* to = buffer.data() + skew;
    ASSERT_OK(ReadAndWait(*engine_, {file(), offset, {{to, bytes}}}));
    EXPECT_EQ(std::memcmp(to, content_.data() + offset, bytes), 0);
    if (skew > 0) {
      EXPECT_EQ(to[-1], kUntouched);
    }
    EXPECT_EQ(to[bytes], kUntouched);
  }

  testing::TempDir dir_;
  std::vector<std::byte> content_;
  hoist::UniqueFd fd_;
  hoist::UniqueFd direct_fd_;
  std::unique_ptr<IoEngine> engine_;
};

TEST_P(IoEngineTest, ReadsEverySizeAtEveryAlignment) {
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, uint64_t{511}, uint64_t{4095}, uint64_t{4096},
        uint64_t{4097}, kMiB - 1, kMiB, kMiB + 1, 10 * kMiB}) {
    for (const uint64_t offset :
         {uint64_t{0}, uint64_t{8}, uint64_t{4095}, uint64_t{4096}, kMiB + 1}) {
      for (const uint64_t skew : {0, 8, 4095}) CheckRead(offset, bytes, skew);
    }
  }
}

TEST_P(IoEngineTest, ReadsUnalignedHeadsAndTheFilesTail) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{777}, uint64_t{778},
                               uint64_t{5000}, 3 * kMiB + 5}) {
    CheckRead(kFileBytes - bytes, bytes, 0);
    CheckRead(kFileBytes - bytes, bytes, 256);
  }
  CheckRead(0, kFileBytes, 0);
}

TEST_P(IoEngineTest, ReadsStraightAndBouncedPartsOfOneRequest) {
  // The destinations are congruent with the file at first, and then not.
  ASSERT_OK_AND_ASSIGN(AlignedBuffer buffer, AlignedBuffer::Create(8 * kMiB));
  std::byte* to = buffer.data();
  const ReadRequest request = {
      file(), 4096, {{to, 3 * kMiB + 100}, {to + 4 * kMiB, 2 * kMiB}}};
  ASSERT_OK(ReadAndWait(*engine_, request));
  EXPECT_EQ(std::memcmp(to, &content_[4096], 3 * kMiB + 100), 0);
  EXPECT_EQ(
      std::memcmp(to + 4 * kMiB, &content_[4096 + 3 * kMiB + 100], 2 * kMiB),
      0);
}

TEST_P(IoEngineTest, ScattersManySmallPiecesAroundGaps) {
  std::mt19937 random(11);
  std::vector<std::byte> to(16 * kMiB, kUntouched);
  std::vector<std::byte> expected = to;
  ReadRequest request = {file(), 1234, {}};
  uint64_t at = request.offset;
  for (size_t used = 0; used + 8192 < to.size() && at + 300000 < kFileBytes;) {
    const uint64_t kind = random() % 40;
    if (kind < 4) {  // Gaps to read through, and one to leave out.
      const uint64_t gap = kind == 0 ? 200000 : 1 + random() % 9000;
      request.into.push_back({nullptr, gap});
      at += gap;
      continue;
    }
    const uint64_t bytes = random() % 3 == 0 ? random() % 8192 : random() % 64;
    std::memcpy(&expected[used], &content_[at], bytes);
    request.into.push_back({&to[used], bytes});
    at += bytes;
    used += bytes + random() % 3;
  }
  ASSERT_GT(request.into.size(), 3000u);
  request.into.push_back({nullptr, 5});
  ASSERT_OK(ReadAndWait(*engine_, request));
  EXPECT_TRUE(to == expected);
}

TEST_P(IoEngineTest, AnEarlyEndIsDataLoss) {
  std::vector<std::byte> to(2 * kMiB);
  for (const uint64_t missing : {uint64_t{1}, uint64_t{4096}, kMiB + 1}) {
    const ReadRequest request = {
        file(), kFileBytes - to.size() + missing, {{to.data(), to.size()}}};
    EXPECT_THAT(ReadAndWait(*engine_, request),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ends")));
  }
  const ReadRequest beyond = {file(), kFileBytes + 10 * kMiB, {{to.data(), 1}}};
  EXPECT_THAT(ReadAndWait(*engine_, beyond),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST_P(IoEngineTest, AFileCutShortMeanwhileIsDataLoss) {
  std::vector<std::byte> to(kFileBytes);
  ASSERT_EQ(ftruncate(fd_.get(), 5 * kMiB + 3), 0);
  EXPECT_THAT(ReadAndWait(*engine_, {file(), 0, {{to.data(), to.size()}}}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ends")));
  EXPECT_EQ(std::memcmp(to.data(), content_.data(), 4 * kMiB), 0);
}

TEST_P(IoEngineTest, ABadDescriptorIsTyped) {
  std::byte byte;
  const IoFile closed = {.fd = 1'000'000,
                         .direct_fd = direct() ? 1'000'000 : -1};
  EXPECT_THAT(ReadAndWait(*engine_, {closed, 0, {{&byte, 1}}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK_AND_ASSIGN(AlignedBuffer page, AlignedBuffer::Create(4096));
  EXPECT_THAT(WriteAndWait(*engine_, {closed, 0, page.span(), true}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(WriteAndWait(*engine_, {closed, 0, {}, true}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(IoEngineTest, RangesThatNoFileHasAreRefused) {
  std::byte byte;
  const uint64_t huge = ~uint64_t{0};
  EXPECT_THAT(ReadAndWait(*engine_, {file(), huge, {{&byte, 1}}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ReadAndWait(*engine_, {file(), 0, {{nullptr, huge}, {&byte, 2}}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(IoEngineTest, HundredsOfRequestsAtOnceAllComplete) {
  constexpr int kRequests = 600;
  constexpr uint64_t kEach = 150'001;
  std::mt19937 random(3);
  std::vector<std::vector<std::byte>> to(kRequests);
  std::vector<uint64_t> offsets(kRequests);
  std::vector<absl::Status> statuses(kRequests);
  absl::BlockingCounter all(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    to[i].resize(kEach);
    offsets[i] = random() % (kFileBytes + 4 * kEach);
    engine_->Read({file(), offsets[i], {{to[i].data(), kEach}}},
                  [&all, &status = statuses[i]](absl::Status done) {
                    status = std::move(done);
                    all.DecrementCount();
                  });
  }
  all.Wait();
  int failed = 0;
  for (int i = 0; i < kRequests; ++i) {
    if (offsets[i] + kEach > kFileBytes) {  // One's error is nobody else's.
      EXPECT_THAT(statuses[i], StatusIs(absl::StatusCode::kDataLoss));
      ++failed;
    } else {
      ASSERT_OK(statuses[i]);
      ASSERT_EQ(std::memcmp(to[i].data(), &content_[offsets[i]], kEach), 0);
    }
  }
  EXPECT_GT(failed, 0);
}

TEST_P(IoEngineTest, WhatWasWrittenIsReadBack) {
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{4096}, kMiB, 5 * kMiB + 4096}) {
    ASSERT_OK_AND_ASSIGN(AlignedBuffer from,
                         AlignedBuffer::Create(bytes + 4096));
    std::memset(from.data(), static_cast<int>(bytes / 4096 % 251) + 1, bytes);
    const auto span = std::span<const std::byte>(from.span()).first(bytes);
    for (const bool sync : {false, true}) {
      ASSERT_OK(WriteAndWait(*engine_, {file(), 8192, span, sync}));
      std::vector<std::byte> back(bytes);
      ASSERT_OK(ReadAndWait(*engine_, {file(), 8192, {{back.data(), bytes}}}));
      EXPECT_TRUE(std::equal(back.begin(), back.end(), from.data()));
    }
  }
  CheckRead(0, 8192, 0);  // What lies before is as it was.
}

TEST_P(IoEngineTest, AMisalignedWriteIsRefused) {
  ASSERT_OK_AND_ASSIGN(AlignedBuffer from, AlignedBuffer::Create(8192));
  const std::span<const std::byte> span = from.span();
  EXPECT_THAT(WriteAndWait(*engine_, {file(), 0, span.subspan(8, 4096)}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(WriteAndWait(*engine_, {file(), 0, span.first(100)}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(WriteAndWait(*engine_, {file(), 5, span}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(IoEngineTest, AFullDeviceIsResourceExhausted) {
  if (direct()) GTEST_SKIP() << "/dev/full takes no direct I/O";
  const hoist::UniqueFd full(open("/dev/full", O_RDWR | O_CLOEXEC));
  if (!full.valid()) GTEST_SKIP() << "no /dev/full here";
  ASSERT_OK_AND_ASSIGN(AlignedBuffer from, AlignedBuffer::Create(4 * kMiB));
  EXPECT_THAT(WriteAndWait(*engine_, {{full.get()}, 0, from.span(), true}),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_P(IoEngineTest, TheDestructorWaitsForWhatWasSubmitted) {
  std::vector<std::byte> to(kFileBytes);
  int answers = 0;  // Read after the engine's threads have been joined.
  absl::Status status = absl::UnknownError("no answer");
  engine_->Read({file(), 0, {{to.data(), to.size()}}}, [&](absl::Status done) {
    status = std::move(done);
    ++answers;
  });
  engine_.reset();
  EXPECT_EQ(answers, 1);
  EXPECT_OK(status);
  EXPECT_TRUE(to == content_);
}

std::vector<EngineCase> Engines() {
  std::vector<EngineCase> cases;
  for (const auto& [name, choice] :
       {std::pair("Auto", IoChoice::kAuto),
        std::pair("Uring", IoChoice::kUring),
        std::pair("Threads", IoChoice::kThreads)}) {
    cases.push_back({name, {.choice = choice}});
  }
  // Few slots and many workers, so that pieces wait for each other.
  cases.push_back({"UringNarrow",
                   {.choice = IoChoice::kUring,
                    .bounce_bytes = 3 * kMiB,
                    .uring_workers = 3}});
  cases.push_back({"OneThread", {.choice = IoChoice::kThreads, .threads = 1}});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Every, IoEngineTest,
                         ::testing::Combine(::testing::ValuesIn(Engines()),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return std::get<0>(test.param).name +
                                  (std::get<1>(test.param) ? "Direct"
                                                           : "Buffered");
                         });

}  // namespace
}  // namespace hoistd
