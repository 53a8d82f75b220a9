#include "daemon/io/io_queue.h"

#include <utility>
#include <vector>

#include "daemon/io/aligned_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::io_queue_test {

using ::hoistd::testing::StatusIs;

constexpr uint64_t kPiece = 1 << 16;

class IoQueueTest : public ::testing::Test {
 protected:
  ~IoQueueTest() override { EXPECT_FALSE(queue_.TryTake()); }

  void PushRead(int fd, uint64_t bytes) {
    queue_.Push(ReadRequest{{.fd = fd}, 0, {{to_.data(), bytes}}}, Done(fd));
  }
  void PushWrite(int fd, uint64_t bytes, bool sync) {
    queue_.Push(WriteRequest{{.fd = fd}, 0, from_.span().first(bytes), sync},
                Done(fd));
  }
  IoEngine::Done Done(int fd) {
    return [this, fd](absl::Status status) {
      answers_.push_back({fd, std::move(status)});
    };
  }
  Piece Take() {
    auto piece = queue_.TryTake();
    EXPECT_TRUE(piece);
    return *std::move(piece);
  }

  std::vector<std::byte> to_ = std::vector<std::byte>(8 * kPiece);
  AlignedBuffer from_ = *AlignedBuffer::Create(8 * kPiece);
  std::vector<std::pair<int, absl::Status>> answers_;
  IoQueue queue_{kPiece};
};

TEST_F(IoQueueTest, OldestFirstAndOneAnswerEach) {
  PushRead(1, 2 * kPiece);
  PushRead(2, 1);
  std::vector<Piece> pieces;
  for (int i = 0; i < 3; ++i) pieces.push_back(Take());
  EXPECT_EQ(pieces[0].fd, 1);
  EXPECT_EQ(pieces[1].fd, 1);
  EXPECT_EQ(pieces[2].fd, 2);
  queue_.Finish(std::move(pieces[2]), absl::OkStatus());
  queue_.Finish(std::move(pieces[1]), absl::OkStatus());
  ASSERT_EQ(answers_.size(), 1u);  // The first still has a piece out.
  EXPECT_EQ(answers_[0].first, 2);
  queue_.Finish(std::move(pieces[0]), absl::OkStatus());
  ASSERT_EQ(answers_.size(), 2u);
  EXPECT_OK(answers_[1].second);
}

TEST_F(IoQueueTest, AnErrorDropsTheUncutRestAndWaitsForWhatIsOut) {
  PushRead(1, 8 * kPiece);
  PushRead(2, 1);
  Piece first = Take();
  Piece second = Take();
  queue_.Finish(std::move(second), absl::DataLossError("the first error"));
  EXPECT_TRUE(answers_.empty());
  Piece other = Take();
  EXPECT_EQ(other.fd, 2);
  queue_.Finish(std::move(first), absl::UnavailableError("a later one"));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_THAT(answers_[0].second,
              StatusIs(absl::StatusCode::kDataLoss, "the first error"));
  queue_.Finish(std::move(other), absl::OkStatus());
}

TEST_F(IoQueueTest, SyncComesOnceAfterTheLastWriteAndBeforeNewerRequests) {
  PushWrite(1, 2 * kPiece, true);
  PushRead(2, 1);
  Piece first = Take();
  Piece second = Take();
  queue_.Finish(std::move(first), absl::OkStatus());
  queue_.Finish(std::move(second), absl::OkStatus());
  EXPECT_TRUE(answers_.empty());
  Piece sync = Take();
  EXPECT_EQ(sync.kind, Piece::Kind::kSync);
  EXPECT_EQ(sync.fd, 1);
  queue_.Finish(std::move(sync), absl::DataLossError("lost in the cache"));
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_THAT(answers_[0].second, StatusIs(absl::StatusCode::kDataLoss));
  queue_.Finish(Take(), absl::OkStatus());
}

TEST_F(IoQueueTest, AFailedWriteIsNotSynced) {
  PushWrite(1, kPiece, true);
  queue_.Finish(Take(), absl::ResourceExhaustedError("full"));
  ASSERT_EQ(answers_.size(), 1u);
}

TEST_F(IoQueueTest, EmptyAndRefusedRequestsAreAnsweredByAWorker) {
  PushRead(1, 0);
  PushWrite(2, 0, false);
  PushWrite(3, 100, false);
  EXPECT_TRUE(answers_.empty());
  for (int i = 0; i < 3; ++i) {
    Piece piece = Take();
    EXPECT_EQ(piece.kind, Piece::Kind::kNothing);
    queue_.Finish(std::move(piece), absl::OkStatus());
  }
  ASSERT_EQ(answers_.size(), 3u);
  EXPECT_OK(answers_[0].second);
  EXPECT_OK(answers_[1].second);
  EXPECT_THAT(answers_[2].second, StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(IoQueueTest, ClosedItStillHandsOutWhatWasPushed) {
  PushRead(1, 1);
  queue_.Close();
  EXPECT_FALSE(queue_.Drained());
  auto piece = queue_.Take();
  ASSERT_TRUE(piece);
  queue_.Finish(*std::move(piece), absl::OkStatus());
  EXPECT_TRUE(queue_.Drained());
  EXPECT_FALSE(queue_.Take());
}

}  // namespace hoistd::io_queue_test
