#include "daemon/io/piece_io.h"

#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/io/aligned_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::piece_io_test {

using ::hoistd::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint64_t kPiece = uint64_t{1} << 20;

class PieceIoTest : public ::testing::Test {
 protected:
  PieceIoTest() : bounce_(*AlignedBuffer::Create(kPiece)) {}

  PieceIo Read(bool direct, uint64_t offset, std::vector<Scatter> into,
               bool straight = false) {
    Piece piece = {.kind = Piece::Kind::kRead, .fd = 9, .direct = direct};
    piece.read.offset = offset;
    piece.read.straight = straight;
    for (const Scatter& part : into) piece.read.bytes += part.bytes;
    piece.read.into = std::move(into);
    return PieceIo(std::move(piece), bounce_.span());
  }

  AlignedBuffer bounce_;
  std::vector<std::byte> to_ = std::vector<std::byte>(3 * kPiece);
};

TEST_F(PieceIoTest, ABouncedReadAsksForTheAlignedRangeAround) {
  PieceIo io = Read(true, 5000, {{to_.data(), 4000}});
  const IoCall call = io.Next();
  EXPECT_EQ(call.kind, IoCall::Kind::kRead);
  EXPECT_EQ(call.fd, 9);
  EXPECT_TRUE(call.bounced);
  EXPECT_EQ(call.offset, 4096u);
  EXPECT_EQ(call.to.size(), 8192u);
  std::memset(call.to.data(), 1, 904);
  std::memset(call.to.data() + 904, 2, 4000);
  EXPECT_THAT(io.Result(8192), ::testing::Optional(testing::IsOk()));
  EXPECT_EQ(to_[0], std::byte{2});
  EXPECT_EQ(to_[3999], std::byte{2});
  EXPECT_EQ(to_[4000], std::byte{0});
}

TEST_F(PieceIoTest, TheAlignedTailMayLieBeyondTheFilesEnd) {
  PieceIo io = Read(true, 5000, {{to_.data(), 4000}});
  io.Next();
  // 4096 + 4904 is where the range ends.
  EXPECT_THAT(io.Result(4904), ::testing::Optional(testing::IsOk()));
}

TEST_F(PieceIoTest, AShortDirectReadGoesOnAtAnAlignedOffset) {
  PieceIo io = Read(true, 0, {{to_.data(), 20000}});
  io.Next();
  EXPECT_EQ(io.Result(10000), std::nullopt);
  const IoCall call = io.Next();
  EXPECT_EQ(call.offset, 8192u);
  EXPECT_EQ(call.to.data(), bounce_.data() + 8192);
  EXPECT_EQ(call.to.size(), 20480u - 8192);
}

TEST_F(PieceIoTest, ADirectReadThatStaysShortIsDataLossWithTheFilesSize) {
  PieceIo io = Read(true, 4096, {{to_.data(), 20000}});
  io.Next();
  ASSERT_EQ(io.Result(10000), std::nullopt);
  io.Next();
  const auto status = io.Result(10000 - 8192);
  ASSERT_TRUE(status);
  EXPECT_THAT(*status, StatusIs(absl::StatusCode::kDataLoss,
                                HasSubstr(std::to_string(4096 + 10000))));
}

TEST_F(PieceIoTest, AShortBufferedReadGoesOnInTheRightDestination) {
  PieceIo io =
      Read(false, 7, {{to_.data(), 10}, {nullptr, 20}, {&to_[500], 30}});
  IoCall call = io.Next();
  EXPECT_EQ(call.kind, IoCall::Kind::kReadVector);
  ASSERT_THAT(call.into, SizeIs(3));
  EXPECT_EQ(call.into[1].iov_base, bounce_.data());
  EXPECT_EQ(io.Result(35), std::nullopt);
  call = io.Next();
  EXPECT_EQ(call.offset, 42u);
  ASSERT_THAT(call.into, SizeIs(1));
  EXPECT_EQ(call.into[0].iov_base, &to_[505]);
  EXPECT_EQ(call.into[0].iov_len, 25u);
  EXPECT_THAT(io.Result(25), ::testing::Optional(testing::IsOk()));
}

TEST_F(PieceIoTest, ABufferedReadThatBringsNothingIsDataLoss) {
  PieceIo io = Read(false, 7, {{to_.data(), 10}});
  io.Next();
  EXPECT_EQ(io.Result(3), std::nullopt);
  io.Next();
  const auto status = io.Result(0);
  ASSERT_TRUE(status);
  EXPECT_THAT(*status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("byte 10;")));
}

TEST_F(PieceIoTest, PassingErrorsAreTriedAgainButNotForEver) {
  for (const int error : {EINTR, EAGAIN}) {
    PieceIo io = Read(true, 0, {{to_.data(), 10}});
    io.Next();
    EXPECT_EQ(io.Result(-error), std::nullopt);
    std::optional<absl::Status> status;
    int tries = 1;
    while (!(status = io.Result(-error))) ASSERT_LT(++tries, 10'000);
    EXPECT_THAT(*status, StatusIs(absl::StatusCode::kUnavailable));
  }
}

TEST_F(PieceIoTest, ErrnosAreTyped) {
  const std::pair<int, absl::StatusCode> cases[] = {
      {EIO, absl::StatusCode::kDataLoss},
      {ENOSPC, absl::StatusCode::kResourceExhausted},
      {EDQUOT, absl::StatusCode::kResourceExhausted},
      {EBADF, absl::StatusCode::kInvalidArgument}};
  for (const auto& [error, code] : cases) {
    PieceIo io = Read(false, 0, {{to_.data(), 10}});
    io.Next();
    const auto status = io.Result(-error);
    ASSERT_TRUE(status);
    EXPECT_THAT(*status, StatusIs(code, HasSubstr("read: ")));
  }
}

TEST_F(PieceIoTest, AShortWriteGoesOnAndAStuckOneEnds) {
  Piece piece = {.kind = Piece::Kind::kWrite, .fd = 9, .direct = true};
  piece.offset = 8192;
  piece.from = std::span<const std::byte>(to_).first(16384);
  PieceIo io(std::move(piece), bounce_.span());
  io.Next();
  EXPECT_EQ(io.Result(5000), std::nullopt);
  const IoCall call = io.Next();
  EXPECT_EQ(call.offset, 8192u + 4096);
  EXPECT_EQ(call.from.size(), 16384u - 4096);
  const auto status = io.Result(100);
  ASSERT_TRUE(status);
  EXPECT_THAT(*status, StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace hoistd::piece_io_test
