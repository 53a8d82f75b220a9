#include "daemon/core/arena_book.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/recount.h"

namespace hoistd::arena_book_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr DeviceIndex kDevice(1);
constexpr User kAda(1);
const absl::Time kNow = absl::UnixEpoch();

std::vector<uint64_t> SizesOf(const std::vector<ArenaPiece>& pieces) {
  std::vector<uint64_t> sizes;
  for (const ArenaPiece& piece : pieces) sizes.push_back(piece.bytes);
  return sizes;
}

TEST(ArenaBook, PiecesAreOfOneSizeButTheLastInWholeGranules) {
  EXPECT_THAT(SizesOf(ArenaBook::Cut(10, 4, 2)), ElementsAre(4, 4, 2));
  EXPECT_THAT(SizesOf(ArenaBook::Cut(9, 4, 2)), ElementsAre(4, 4, 2));
  EXPECT_THAT(SizesOf(ArenaBook::Cut(1, 4, 2)), ElementsAre(2));
  EXPECT_THAT(SizesOf(ArenaBook::Cut(8, 4, 2)), ElementsAre(4, 4));
}

TEST(ArenaBook, PiecesAreLargerWhereTheyWouldBeTooManyForOneMessage) {
  for (const uint64_t bytes : {2'000u, 4'801u, 1'000'001u}) {
    const std::vector<uint64_t> sizes = SizesOf(ArenaBook::Cut(bytes, 4, 2));
    EXPECT_LE(sizes.size(), ArenaBook::kMostPieces);
    const uint64_t sum =
        std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
    EXPECT_GE(sum, bytes);
    EXPECT_LT(sum, bytes + 2);
    for (const uint64_t size : sizes) EXPECT_EQ(size % 2, 0u);
  }
}

struct Book : ::testing::Test {
  ArenaId Add(absl::Time deadline) {
    const ArenaId id(++last);
    Arena arena;
    arena.session = SessionId(7);
    arena.uid = kAda;
    arena.device = kDevice;
    arena.pieces = ArenaBook::Cut(6, 4, 2);
    arena.request = RequestId(id.number());
    arena.deadline = deadline;
    book.Add(id, std::move(arena));
    return id;
  }
  void Place(ArenaId id) {
    std::vector<ArenaPiece> pieces = book.At(id).pieces;
    for (ArenaPiece& piece : pieces) piece.owner = OwnerId(++last_owner);
    book.Place(id, std::move(pieces));
    book.Check();
  }

  uint64_t last = 0;
  uint64_t last_owner = 0;
  QuotaBook quota;
  ArenaBook book{quota};
};

TEST_F(Book, CountsForItsUserFromWhenItIsAskedFor) {
  const ArenaId id = Add(kNow);
  EXPECT_EQ(quota.Of(kAda).On(kDevice), 6u);
  Place(id);
  book.Grant(id);
  QuotaBook counted;
  testing::CountInto(book, counted);
  EXPECT_EQ(counted.users(), quota.users());
  book.Erase(id);
  EXPECT_EQ(quota.Of(kAda).On(kDevice), 0u);
  book.Check();
}

TEST_F(Book, OfThoseThatWaitTheLateOnesAreRefusedUnlessSomeIsAboutToCome) {
  const ArenaId first = Add(kNow + absl::Seconds(1));
  const ArenaId second = Add(kNow + absl::Seconds(2));
  EXPECT_EQ(book.NextDeadline(), kNow + absl::Seconds(1));
  EXPECT_THAT(book.Late(kNow), IsEmpty());
  EXPECT_THAT(book.Late(kNow + absl::Seconds(1)), ElementsAre(first));
  book.Block(first, 1, absl::UnavailableError("being made"));
  EXPECT_THAT(book.Late(kNow + absl::Seconds(2)), ElementsAre(second));
  EXPECT_EQ(book.NextDeadline(), kNow + absl::Seconds(2));
  Place(second);  // Only its places had a deadline.
  EXPECT_THAT(book.Late(kNow + absl::Hours(1)), IsEmpty());
  EXPECT_THAT(book.waiting(), ElementsAre(first));
}

TEST_F(Book, IsFoundByTheOwnersOfItsPlaces) {
  const ArenaId id = Add(kNow);
  EXPECT_FALSE(book.Of(OwnerId(1)).has_value());
  Place(id);
  EXPECT_EQ(book.Of(OwnerId(1)), id);
  EXPECT_EQ(book.Of(OwnerId(2)), id);
  EXPECT_THAT(book.Of(SessionId(7)), ElementsAre(id));
  EXPECT_THAT(book.Of(SessionId(8)), IsEmpty());
  book.Erase(id);
  EXPECT_FALSE(book.Of(OwnerId(1)).has_value());
}

}  // namespace hoistd::arena_book_test
