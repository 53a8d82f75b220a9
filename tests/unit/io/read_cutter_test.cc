#include "daemon/io/read_cutter.h"

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::read_cutter_test {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kKiB = 1 << 10;
constexpr uint64_t kPiece = uint64_t{1} << 20;

// Destinations are never touched by cutting.
std::byte* At(uint64_t address) {
  return reinterpret_cast<std::byte*>(address);
}

std::vector<ReadPiece> Cut(bool direct, uint64_t offset,
                           std::vector<Scatter> into) {
  ReadCutter cutter(
      {{.fd = 3, .direct_fd = direct ? 4 : -1}, offset, std::move(into)},
      kPiece);
  std::vector<ReadPiece> pieces;
  while (auto piece = cutter.Next()) pieces.push_back(*std::move(piece));
  return pieces;
}

TEST(ReadCutter, NothingToReadIsNoPiece) {
  EXPECT_THAT(Cut(false, 0, {}), IsEmpty());
  EXPECT_THAT(Cut(true, 5, {{At(4096), 0}, {nullptr, 100}}), IsEmpty());
}

TEST(ReadCutter, DirectPiecesEndOnAlignedOffsets) {
  const auto pieces = Cut(true, 100, {{At(8), 3 * kPiece}});
  ASSERT_THAT(pieces, SizeIs(4));
  EXPECT_EQ(pieces[0].bytes, kPiece - 100);
  EXPECT_EQ(pieces[1].offset, kPiece);
  EXPECT_EQ(pieces[3].bytes, 100u);
  for (const ReadPiece& piece : pieces) EXPECT_FALSE(piece.straight);
}

TEST(ReadCutter, CongruentDestinationsGoStraightAfterAnUnalignedHead) {
  const auto pieces = Cut(true, 100, {{At(kPiece + 100), 2 * kPiece + 50}});
  ASSERT_THAT(pieces, SizeIs(3));
  EXPECT_FALSE(pieces[0].straight);
  EXPECT_TRUE(pieces[1].straight);
  EXPECT_EQ(pieces[1].bytes, kPiece);
  EXPECT_FALSE(pieces[2].straight);
  EXPECT_EQ(pieces[2].bytes, 150u);
}

TEST(ReadCutter, BufferedReadsAreNeverStraightNorMovedOut) {
  const auto pieces = Cut(false, 4096, {{At(4096), 2 * kPiece}});
  ASSERT_THAT(pieces, SizeIs(2));
  EXPECT_FALSE(pieces[0].straight);
  EXPECT_EQ(pieces[0].bytes, kPiece);
}

TEST(ReadCutter, SmallGapsAreReadThroughAndLargeOnesAreNot) {
  const auto through =
      Cut(false, 0, {{At(8), 10}, {nullptr, 64 * kKiB - 1}, {At(99), 10}});
  ASSERT_THAT(through, SizeIs(1));
  EXPECT_EQ(through[0].bytes, 64 * kKiB + 19);
  const auto around =
      Cut(false, 0, {{At(8), 10}, {nullptr, 64 * kKiB}, {At(99), 10}});
  ASSERT_THAT(around, SizeIs(2));
  EXPECT_EQ(around[1].offset, 64 * kKiB + 10);
}

TEST(ReadCutter, GapsAtTheEndsAreNotRead) {
  const auto pieces =
      Cut(true, 0, {{nullptr, 5000}, {At(8), 10}, {nullptr, 7}});
  ASSERT_THAT(pieces, SizeIs(1));
  EXPECT_EQ(pieces[0].offset, 5000u);
  EXPECT_EQ(pieces[0].bytes, 10u);
}

TEST(ReadCutter, NoPieceHasMoreDestinationsThanOneCallTakes) {
  const auto pieces =
      Cut(false, 0, std::vector<Scatter>(5000, Scatter{At(8), 1}));
  ASSERT_THAT(pieces, SizeIs(5));
  EXPECT_THAT(pieces[0].into, SizeIs(1024));
}

// Any request: every wanted byte is in one piece, in order, at its place.
TEST(ReadCutter, EveryWantedByteIsCutOnceAtItsPlace) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const bool direct = random() % 2 == 0;
    uint64_t at = random() % 2 == 0 ? random() % 20000 : 4096;
    std::vector<Scatter> into;
    std::vector<std::pair<uint64_t, Scatter>> wanted;  // By file offset.
    const uint64_t offset = at;
    for (int i = 0; i < 60; ++i) {
      const uint64_t bytes =
          random() % 5 == 0 ? random() % (3 * kPiece) : random() % 300;
      std::byte* to = random() % 4 == 0
                          ? nullptr
                          : At((uint64_t{1} << 40) + at + random() % 2 * 8);
      into.push_back({to, bytes});
      if (to != nullptr && bytes > 0) wanted.push_back({at, {to, bytes}});
      at += bytes;
    }
    size_t next = 0;
    uint64_t used = 0;
    for (const ReadPiece& piece : Cut(direct, offset, into)) {
      uint64_t sum = 0;
      const uint64_t begin = direct ? DirectDown(piece.offset) : piece.offset;
      const uint64_t end = piece.offset + piece.bytes;
      EXPECT_LE((direct ? DirectUp(end) : end) - begin, kPiece);
      for (const Scatter& part : piece.into) {
        if (part.to != nullptr) {
          ASSERT_LT(next, wanted.size());
          const auto& [want_at, want] = wanted[next];
          EXPECT_EQ(piece.offset + sum, want_at + used);
          EXPECT_EQ(part.to, want.to + used);
          used += part.bytes;
          ASSERT_LE(used, want.bytes);
          if (used == want.bytes) {
            ++next;
            used = 0;
          }
        }
        sum += part.bytes;
      }
      EXPECT_EQ(sum, piece.bytes);
      if (piece.straight) {
        EXPECT_EQ((piece.offset | piece.bytes |
                   reinterpret_cast<uintptr_t>(piece.into[0].to)) %
                      kDirectAlignment,
                  0u);
      }
    }
    EXPECT_EQ(next, wanted.size());
  }
}

}  // namespace hoistd::read_cutter_test
