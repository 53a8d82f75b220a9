#include "daemon/mover/receive.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/shared/unique_fd.h"
#include "tests/support/pattern.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/mover/sealed_memfd.h"

namespace hoistd::receive_test {

using ::testing::HasSubstr;
using testing::Pattern;
using testing::SealedMemfd;
using testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK;

TEST(ReceiveImage, BringsAPart) {
  const std::vector<std::byte> image = Pattern(8192, 7);
  const hoist::UniqueFd fd = SealedMemfd(image, kSeals);
  ASSERT_EQ(lseek(fd.get(), 1000, SEEK_SET), 1000);  // Does not matter.
  std::vector<std::byte> to(4096);
  ASSERT_OK(ReceiveImage(fd.get(), 2048, to));
  EXPECT_TRUE(std::ranges::equal(to, std::span(image).subspan(2048, 4096)));
}

TEST(MapImage, ShowsTheBytesWhereTheyAre) {
  const std::vector<std::byte> image = Pattern(8192, 7);
  const hoist::UniqueFd fd = SealedMemfd(image, kSeals);
  ASSERT_OK_AND_ASSIGN(const hoist::Mapping mapped, MapImage(fd.get(), 8192));
  EXPECT_TRUE(std::ranges::equal(mapped.span(), image));
}

TEST(ReceiveImage, BytesThatCouldStillChangeAreRefused) {
  const std::vector<std::byte> image = Pattern(4096, 7);
  for (const int seals : {0, F_SEAL_WRITE, F_SEAL_SHRINK, F_SEAL_GROW}) {
    const hoist::UniqueFd fd = SealedMemfd(image, seals);
    std::vector<std::byte> to(4096);
    EXPECT_THAT(ReceiveImage(fd.get(), 0, to),
                StatusIs(kInvalid, HasSubstr("F_SEAL_WRITE")))
        << seals;
    EXPECT_THAT(MapImage(fd.get(), 4096), StatusIs(kInvalid)) << seals;
  }
}

TEST(ReceiveImage, WhatIsNoMemfdIsRefused) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const hoist::UniqueFd read_end(ends[0]), write_end(ends[1]);
  std::vector<std::byte> to(1);
  EXPECT_THAT(ReceiveImage(read_end.get(), 0, to), StatusIs(kInvalid));
  EXPECT_THAT(ReceiveImage(-1, 0, to), StatusIs(kInvalid));
  EXPECT_THAT(MapImage(-1, 1), StatusIs(kInvalid));
}

TEST(ReceiveImage, AShortMemfdIsRefused) {
  const hoist::UniqueFd fd = SealedMemfd(Pattern(4096, 7), kSeals);
  std::vector<std::byte> to(4096);
  EXPECT_THAT(ReceiveImage(fd.get(), 1, to),
              StatusIs(kInvalid, HasSubstr("shorter")));
  EXPECT_THAT(MapImage(fd.get(), 8192), StatusIs(kInvalid));
}

}  // namespace hoistd::receive_test
