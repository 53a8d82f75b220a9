// Every read and write of the store fails in turn, in three ways.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/faulty_io.h"
#include "tests/support/spill_fixture.h"

namespace hoistd::failing_io_test {

using ::hoistd::testing::CheckSpilled;
using ::hoistd::testing::Damage;
using ::hoistd::testing::FaultyIo;
using ::hoistd::testing::FilesIn;
using ::hoistd::testing::HeldIo;
using ::hoistd::testing::IsOk;
using ::hoistd::testing::PutAndWait;
using ::hoistd::testing::RemoveAndWait;
using ::hoistd::testing::SpillImage;
using ::hoistd::testing::SpillTest;
using ::hoistd::testing::StatusIs;
using ::hoistd::testing::VerifyAndWait;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// How many reads were under way at once, and how large the largest was.
class PeakIo final : public IoEngine {
 public:
  explicit PeakIo(IoEngine& base) : base_(base) {}

  void Read(ReadRequest request, Done done) override {
    uint64_t bytes = 0;
    for (const auto& part : request.into) bytes += part.bytes;
    {
      absl::MutexLock lock(&mu_);
      calls_ = std::max(calls_, ++now_);
      bytes_ = std::max(bytes_, bytes);
    }
    base_.Read(std::move(request),
               [this, done = std::move(done)](absl::Status status) mutable {
                 {
                   absl::MutexLock lock(&mu_);
                   --now_;
                 }
                 done(std::move(status));
               });
  }
  void Write(WriteRequest request, Done done) override {
    base_.Write(std::move(request), std::move(done));
  }
  IoInfo info() const override { return base_.info(); }

  int calls() const {
    absl::MutexLock lock(&mu_);
    return calls_;
  }
  uint64_t bytes() const {
    absl::MutexLock lock(&mu_);
    return bytes_;
  }

 private:
  IoEngine& base_;
  mutable absl::Mutex mu_;
  int now_ ABSL_GUARDED_BY(mu_) = 0;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

class FailingIoTest : public SpillTest {
 protected:
  absl::StatusOr<std::unique_ptr<SpillStore>> OpenOn(IoEngine& io) {
    return SpillStore::Open({.dir = dir_, .capacity_bytes = kCapacity}, io);
  }
  static std::vector<Damage> EveryDamage() {
    return {Damage::kNothing, Damage::kHalf, Damage::kEverything};
  }
  const SpillImage image_{10'000};  // Three reads of at most 16 MiB.
};

TEST_F(FailingIoTest, AFailedPutLeavesNothingAndTheNextOneWorks) {
  for (const Damage damage : EveryDamage()) {
    uint64_t calls = 0;
    for (uint64_t n = 1; n == 1 || n <= calls; ++n) {
      SCOPED_TRACE(::testing::Message() << "call " << n);
      std::filesystem::remove_all(dir_);
      FaultyIo faulty(*io_);
      ASSERT_OK_AND_ASSIGN(auto store, OpenOn(faulty));
      faulty.FailCall(n, absl::ResourceExhaustedError("no space"), damage);
      EXPECT_THAT(PutAndWait(*store, image_),
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           HasSubstr("are free")));
      EXPECT_EQ(FilesIn(dir_ + "/images"), 0u);
      EXPECT_THAT(store->List(), IsEmpty());
      EXPECT_EQ(store->usage().used_bytes, 0u);
      const uint64_t before = faulty.calls();
      ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image_));
      calls = faulty.calls() - before;
      EXPECT_OK(CheckSpilled(*store, id, image_));
    }
    EXPECT_EQ(calls, 2u);  // The image, and the header with the sync.
  }
}

TEST_F(FailingIoTest, AReadThatFailsForNowLeavesTheImageInPlace) {
  for (const Damage damage : EveryDamage()) {
    FaultyIo faulty(*io_);
    ASSERT_OK_AND_ASSIGN(auto store, OpenOn(faulty));
    ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image_));
    uint64_t before = faulty.calls();
    ASSERT_OK(CheckSpilled(*store, id, image_));
    const uint64_t calls = faulty.calls() - before;
    EXPECT_EQ(calls, 4u);  // The header and three parts.
    for (uint64_t n = 1; n <= calls; ++n) {
      faulty.FailCall(faulty.calls() + n, absl::UnavailableError("busy"),
                      damage);
      EXPECT_THAT(CheckSpilled(*store, id, image_),
                  StatusIs(absl::StatusCode::kUnavailable));
      EXPECT_OK(CheckSpilled(*store, id, image_));
    }
    ASSERT_OK(RemoveAndWait(*store, id));
  }
}

TEST_F(FailingIoTest, AReadThatLosesDataQuarantinesTheImage) {
  for (uint64_t n = 1; n <= 4; ++n) {
    std::filesystem::remove_all(dir_);
    FaultyIo faulty(*io_);
    ASSERT_OK_AND_ASSIGN(auto store, OpenOn(faulty));
    ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image_));
    faulty.FailCall(faulty.calls() + n, absl::DataLossError("I/O error"));
    EXPECT_THAT(CheckSpilled(*store, id, image_),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(Path(id))));
    EXPECT_TRUE(std::filesystem::exists(Path(id, "quarantine")));
    EXPECT_THAT(CheckSpilled(*store, id, image_),
                StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST_F(FailingIoTest, VerifyingTakesAFailureForNowForNoDamage) {
  FaultyIo faulty(*io_);
  ASSERT_OK_AND_ASSIGN(auto store, OpenOn(faulty));
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image_));
  for (uint64_t n = 1; n <= 4; ++n) {
    faulty.FailCall(faulty.calls() + n, absl::UnavailableError("busy"));
    EXPECT_THAT(VerifyAndWait(*store, id),
                StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_OK(VerifyAndWait(*store, id));
  }
  faulty.FailCall(faulty.calls() + 4, absl::DataLossError("I/O error"));
  EXPECT_THAT(VerifyAndWait(*store, id), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_TRUE(std::filesystem::exists(Path(id, "quarantine")));
}

TEST_F(FailingIoTest, VerifyingReadsOnePieceAtATime) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image_));
  store.reset();
  HeldIo held(*io_);
  PeakIo peak(held);
  ASSERT_OK_AND_ASSIGN(store, OpenOn(peak));
  std::vector<testing::Answer<absl::Status>> answers(3);
  for (auto& answer : answers) store->Verify(id, answer.done());
  for (int call = 0; call < 3 * 4; ++call) {  // A header and three pieces each.
    held.WaitHeld(1);
    held.Release(1);
  }
  for (auto& answer : answers) EXPECT_OK(answer.Wait());
  EXPECT_EQ(peak.calls(), 1);
  EXPECT_EQ(peak.bytes(), uint64_t{16} << 20);
}

TEST_F(FailingIoTest, BytesThatNeverArrivedAreNotServed) {
  // The read is answered with OK and has brought half of its bytes.
  FaultyIo faulty(*io_);
  ASSERT_OK_AND_ASSIGN(auto store, OpenOn(faulty));
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image_));
  faulty.FailCall(faulty.calls() + 3, absl::OkStatus(), Damage::kHalf);
  EXPECT_THAT(CheckSpilled(*store, id, image_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checksum")));
}

TEST_F(FailingIoTest, AWriteThatWasLostIsFoundByItsChecksum) {
  FaultyIo faulty(*io_);
  ASSERT_OK_AND_ASSIGN(auto store, OpenOn(faulty));
  faulty.FailCall(1, absl::OkStatus(), Damage::kHalf);
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image_));
  EXPECT_THAT(CheckSpilled(*store, id, image_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checksum")));
}

TEST_F(FailingIoTest, AnImageIsNotListedBeforeItIsWritten) {
  HeldIo held(*io_);
  ASSERT_OK_AND_ASSIGN(auto store, OpenOn(held));
  testing::Answer<absl::StatusOr<SpillId>> answer;
  store->Put(image_.meta, image_.image, answer.done());
  for (int write = 0; write < 2; ++write) {
    held.WaitHeld(1);
    EXPECT_THAT(store->List(), IsEmpty());
    EXPECT_GT(store->usage().used_bytes, image_.image.size());
    EXPECT_FALSE(std::filesystem::exists(Path(SpillId(1))));
    held.Release(1);
  }
  EXPECT_THAT(answer.Wait(), IsOk());
  EXPECT_THAT(store->List(), SizeIs(1));
}

TEST_F(FailingIoTest, RemovingDuringAGetLeavesTheGetItsBytes) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image_));
  store.reset();
  HeldIo held(*io_);
  ASSERT_OK_AND_ASSIGN(store, OpenOn(held));
  std::vector<std::byte> to(image_.image.size());
  testing::Answer<absl::Status> got;
  store->Get(id, to, got.done());
  held.WaitHeld(1);
  ASSERT_OK(RemoveAndWait(*store, id));
  held.Open();
  EXPECT_OK(got.Wait());
  EXPECT_EQ(std::memcmp(to.data(), image_.image.data(), to.size()), 0);
}

}  // namespace hoistd::failing_io_test
