#include "daemon/mover/image_copy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/pattern.h"
#include "tests/support/status_matchers.h"

namespace hoistd::image_copy_test {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int kSeals = F_SEAL_GROW | F_SEAL_SHRINK;
// Several pieces, and no multiple of them.
constexpr size_t kBytes = 2 * ImageCopy::kPieceBytes + 4096;

// As a client makes it.
std::shared_ptr<hoist::UniqueFd> Memfd(size_t bytes, int seals = kSeals,
                                       bool allocated = true) {
  auto fd = std::make_shared<hoist::UniqueFd>(
      memfd_create("image", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const auto size = static_cast<off_t>(bytes);
  EXPECT_EQ(ftruncate(fd->get(), size), 0);
  if (allocated && bytes > 0) {
    EXPECT_EQ(fallocate(fd->get(), 0, 0, size), 0);
  }
  EXPECT_EQ(fcntl(fd->get(), F_ADD_SEALS, seals), 0);
  return fd;
}

std::vector<std::byte> BytesOf(const hoist::UniqueFd& fd, size_t bytes) {
  std::vector<std::byte> read(bytes);
  EXPECT_EQ(pread(fd.get(), read.data(), bytes, 0),
            static_cast<ssize_t>(bytes));
  return read;
}

// Copies with one thread; what was reported, which must be once.
absl::Status Copy(std::shared_ptr<hoist::UniqueFd> fd,
                  std::span<const std::byte> image) {
  int reports = 0;
  absl::Status reported;
  ImageCopy copy(std::move(fd), image.size(), {{0, image}},
                 [&](absl::Status status) {
                   ++reports;
                   reported = std::move(status);
                 });
  copy.Help();
  copy.Help();  // Who comes late finds nothing.
  EXPECT_EQ(reports, 1);
  return reported;
}

TEST(ImageCopy, BringsTheBytes) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{5000}, kBytes}) {
    const std::vector<std::byte> image = testing::Pattern(bytes, 7);
    const auto fd = Memfd(bytes);
    ASSERT_OK(Copy(fd, image)) << bytes;
    EXPECT_TRUE(BytesOf(*fd, bytes) == image) << bytes;
  }
}

TEST(ImageCopy, SeveralThreadsShareTheWorkAndOneReports) {
  const std::vector<std::byte> image = testing::Pattern(kBytes, 7);
  const auto fd = Memfd(kBytes);
  std::atomic<int> reports = 0;
  ImageCopy copy(fd, kBytes, {{0, image}}, [&](absl::Status status) {
    EXPECT_OK(status);
    ++reports;
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { copy.Help(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(reports, 1);
  EXPECT_TRUE(BytesOf(*fd, kBytes) == image);
}

// As images of files lie: in several places, with padding between.
TEST(ImageCopy, PartsGoToTheirPlacesAndNothingElseIsTouched) {
  const std::vector<std::byte> image = testing::Pattern(kBytes, 7);
  const std::span<const std::byte> all(image);
  const auto fd = Memfd(kBytes);
  int reports = 0;
  ImageCopy copy(fd, kBytes,
                 {{0, all.subspan(0, 100)},
                  {256, all.subspan(256, 5000)},
                  {8192, all.subspan(8192, kBytes - 8192)}},
                 [&](absl::Status status) {
                   EXPECT_OK(status);
                   ++reports;
                 });
  EXPECT_GE(copy.pieces(), 3u);
  copy.Help();
  EXPECT_EQ(reports, 1);
  std::vector<std::byte> want = image;
  std::fill(want.begin() + 100, want.begin() + 256, std::byte{0});
  std::fill(want.begin() + 5256, want.begin() + 8192, std::byte{0});
  EXPECT_TRUE(BytesOf(*fd, kBytes) == want);
}

TEST(ImageCopy, AnEmptyImageIsOnlyLookedAt) {
  EXPECT_OK(Copy(Memfd(0), {}));
  EXPECT_THAT(Copy(Memfd(0, F_SEAL_GROW), {}), StatusIs(kInvalid));
}

TEST(ImageCopy, NobodyCanWriteTheImageAfterwards) {
  const std::vector<std::byte> image = testing::Pattern(4096, 7);
  const auto fd = Memfd(4096);
  ASSERT_OK(Copy(fd, image));
  EXPECT_LT(pwrite(fd->get(), "x", 1, 0), 0);
  EXPECT_EQ(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0),
      MAP_FAILED);
  EXPECT_NE(fcntl(fd->get(), F_ADD_SEALS, F_SEAL_WRITE), -1)
      << "a writable mapping was left behind";
}

// What hoistd would allocate there would be on its own account.
TEST(ImageCopy, HolesAreRefusedAndNotFilled) {
  const std::vector<std::byte> image = testing::Pattern(kBytes, 7);
  const auto empty = Memfd(kBytes, kSeals, /*allocated=*/false);
  EXPECT_THAT(Copy(empty, image), StatusIs(kInvalid, HasSubstr("holes")));
  struct stat info;
  ASSERT_EQ(fstat(empty->get(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
  const auto holed = Memfd(kBytes);
  ASSERT_EQ(fallocate(holed->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      8192, 4096),
            0);
  EXPECT_THAT(Copy(holed, image), StatusIs(kInvalid, HasSubstr("holes")));
}

TEST(ImageCopy, NoHoleCanBeMadeOnceItIsOpen) {
  const auto fd = Memfd(kBytes);
  const auto target = ImageTarget::Open(fd->get(), kBytes);
  ASSERT_OK(target);
  EXPECT_NE(
      fallocate(fd->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096),
      0);
}

TEST(ImageCopy, SealsThatAreMissingOrInTheWayAreRefused) {
  const std::vector<std::byte> image = testing::Pattern(4096, 7);
  for (const int seals :
       {0, F_SEAL_GROW, F_SEAL_SHRINK, kSeals | F_SEAL_SEAL,
        kSeals | F_SEAL_WRITE, kSeals | F_SEAL_FUTURE_WRITE}) {
    EXPECT_THAT(Copy(Memfd(4096, seals), image), StatusIs(kInvalid)) << seals;
  }
}

TEST(ImageCopy, AnotherSizeIsRefused) {
  const std::vector<std::byte> image = testing::Pattern(8192, 7);
  for (const size_t bytes : {size_t{0}, size_t{4096}, size_t{12288}}) {
    EXPECT_THAT(Copy(Memfd(bytes), image),
                StatusIs(kInvalid, HasSubstr(std::to_string(bytes))));
  }
}

TEST(ImageCopy, WhatIsNoMemfdOrOnlyReadableIsRefused) {
  const std::vector<std::byte> image = testing::Pattern(4096, 7);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const hoist::UniqueFd read_end(ends[0]);
  EXPECT_THAT(Copy(std::make_shared<hoist::UniqueFd>(ends[1]), image),
              StatusIs(kInvalid));
  EXPECT_THAT(Copy(std::make_shared<hoist::UniqueFd>(), image),
              StatusIs(kInvalid));
  const auto fd = Memfd(4096);
  const std::string path = "/proc/self/fd/" + std::to_string(fd->get());
  auto readable = std::make_shared<hoist::UniqueFd>(
      open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(readable->valid());
  EXPECT_THAT(Copy(readable, image), StatusIs(kInvalid, HasSubstr("mapped")));
}

}  // namespace hoistd::image_copy_test
