#include "daemon/store/spill_store.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "daemon/store/segment_header.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/spill_fixture.h"

namespace hoistd::spill_store_test {

using ::hoistd::testing::CheckSpilled;
using ::hoistd::testing::FilesIn;
using ::hoistd::testing::GetAndWait;
using ::hoistd::testing::PutAndWait;
using ::hoistd::testing::RemoveAndWait;
using ::hoistd::testing::SpillImage;
using ::hoistd::testing::SpillTest;
using ::hoistd::testing::StatusIs;
using ::hoistd::testing::VerifyAndWait;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SpillStoreTest : public SpillTest {
 protected:
  // The image is found damaged, set aside, and refused from then on.
  void ExpectQuarantine(SpillStore& store, SpillId id,
                        const SpillImage& image) {
    EXPECT_THAT(CheckSpilled(store, id, image),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(Path(id))));
    EXPECT_FALSE(std::filesystem::exists(Path(id)));
    EXPECT_THAT(
        CheckSpilled(store, id, image),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("in quarantine")));
    ASSERT_THAT(store.List(), SizeIs(1));
    EXPECT_NE(store.List()[0].quarantined, "");
    EXPECT_EQ(store.usage().images, 0u);
    EXPECT_EQ(store.usage().quarantined_bytes, store.usage().used_bytes);
  }
};

TEST_F(SpillStoreTest, GivesBackImagesOfEverySize) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  for (const uint64_t pages : {0, 1, 255, 256, 257, 4096 + 5, 20'000}) {
    const SpillImage image(pages);
    ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image));
    EXPECT_OK(CheckSpilled(*store, id, image)) << pages;
  }
  EXPECT_EQ(store->usage().images, 7u);
}

TEST_F(SpillStoreTest, ReopenedServesTheSameImagesAndSaysWhatTheyAre) {
  const SpillImage image(700);
  SpillId id;
  uint64_t used = 0;
  {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ASSERT_OK_AND_ASSIGN(id, PutAndWait(*store, image));
    used = store->usage().used_bytes;
    EXPECT_EQ(used, std::filesystem::file_size(Path(id)));
  }
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_OK(CheckSpilled(*store, id, image));
  EXPECT_EQ(store->usage().used_bytes, used);
  const auto records = store->List();
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(records[0].id, id);
  EXPECT_EQ(records[0].file_bytes, used);
  EXPECT_EQ(records[0].quarantined, "");
  const SpillMeta& meta = *records[0].meta;
  EXPECT_EQ(meta.model, image.meta->model);
  EXPECT_EQ(meta.owner, image.meta->owner);
  EXPECT_EQ(meta.group_content, image.meta->group_content);
  EXPECT_EQ(meta.group.tensors[0].name, image.meta->group.tensors[0].name);
  EXPECT_EQ(meta.group.tensors[0].strides,
            image.meta->group.tensors[0].strides);
  // Ids go on where they were.
  ASSERT_OK_AND_ASSIGN(const SpillId next, PutAndWait(*store, image));
  EXPECT_GT(next, id);
}

TEST_F(SpillStoreTest, AFlippedBitAnywhereIsQuarantined) {
  const uint64_t header = SegmentHeaderBytes(600 * 4096, 1);
  for (const uint64_t at : {uint64_t{0}, uint64_t{70}, header - 1, header,
                            header + 600 * 4096 - 1}) {
    SCOPED_TRACE(at);
    std::filesystem::remove_all(dir_);
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    const SpillImage image(600);
    ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image));
    Flip(Path(id), at);
    ExpectQuarantine(*store, id, image);
    EXPECT_TRUE(std::filesystem::exists(Path(id, "quarantine")));
    // Still so after a restart, and still to be removed; but if its header is
    // damaged, nobody can say any more what it was.
    store.reset();
    ASSERT_OK_AND_ASSIGN(store, Open());
    if (at < header) {
      EXPECT_THAT(store->List(), IsEmpty());
      EXPECT_THAT(store->notes(), ElementsAre(HasSubstr("image 1 is lost")));
      continue;
    }
    EXPECT_THAT(CheckSpilled(*store, id, image),
                StatusIs(absl::StatusCode::kDataLoss));
    ASSERT_OK(RemoveAndWait(*store, id));
    EXPECT_EQ(FilesIn(dir_ + "/quarantine"), 0u);
    EXPECT_EQ(store->usage().used_bytes, 0u);
  }
}

TEST_F(SpillStoreTest, ATruncatedFileIsQuarantined) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  const SpillImage image(600);
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image));
  std::filesystem::resize_file(Path(id), 300 * 4096);
  ExpectQuarantine(*store, id, image);
}

TEST_F(SpillStoreTest, AMissingFileIsQuarantined) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  const SpillImage image(1);
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image));
  std::filesystem::remove(Path(id));
  ExpectQuarantine(*store, id, image);
}

TEST_F(SpillStoreTest, AnotherImagesFileInItsPlaceIsQuarantined) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  const SpillImage image(300, 1);
  const SpillImage other(300, 2);
  ASSERT_OK_AND_ASSIGN(const SpillId other_id, PutAndWait(*store, other));
  const std::string kept = top_ / "kept";
  std::filesystem::copy_file(Path(other_id), kept);
  ASSERT_OK(RemoveAndWait(*store, other_id));
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image));
  std::filesystem::rename(kept, Path(id));
  ExpectQuarantine(*store, id, image);
}

TEST_F(SpillStoreTest, DamageDoneBetweenRunsIsFoundAtOpenOrGet) {
  const SpillImage image(300);
  SpillId id;
  {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ASSERT_OK_AND_ASSIGN(id, PutAndWait(*store, image));
  }
  std::filesystem::resize_file(Path(id), 4096);
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(CheckSpilled(*store, id, image),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("4096 bytes")));
  EXPECT_TRUE(std::filesystem::exists(Path(id, "quarantine")));
}

TEST_F(SpillStoreTest, VerifiesImagesOfEverySize) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  for (const uint64_t pages : {0, 1, 256, 257, 4096, 4096 + 5, 20'000}) {
    ASSERT_OK_AND_ASSIGN(const SpillId id,
                         PutAndWait(*store, SpillImage(pages)));
    EXPECT_OK(VerifyAndWait(*store, id)) << pages;
  }
  EXPECT_THAT(VerifyAndWait(*store, SpillId(99)),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(store->usage().images, 7u);
}

TEST_F(SpillStoreTest, VerifyingFindsAFlippedBitAnywhere) {
  const uint64_t pages = 5000;  // Two reads.
  for (const uint64_t at :
       {uint64_t{0}, uint64_t{70}, uint64_t{4095}, uint64_t{4096},
        (pages / 2) * 4096, pages * 4096, pages * 4096 + 4095}) {
    SCOPED_TRACE(at);
    std::filesystem::remove_all(dir_);
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    const SpillImage image(pages);
    ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image));
    Flip(Path(id), at);
    EXPECT_THAT(VerifyAndWait(*store, id),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(Path(id))));
    EXPECT_TRUE(std::filesystem::exists(Path(id, "quarantine")));
    EXPECT_THAT(
        VerifyAndWait(*store, id),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr("in quarantine")));
    EXPECT_THAT(CheckSpilled(*store, id, image),
                StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST_F(SpillStoreTest, ManyVerifiedAtOnceAreAllAnswered) {
  constexpr int kImages = 12;
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  std::vector<SpillId> ids;
  for (int i = 0; i < kImages; ++i) {
    ASSERT_OK_AND_ASSIGN(const SpillId id,
                         PutAndWait(*store, SpillImage(1 + i * 40, i)));
    ids.push_back(id);
  }
  Flip(Path(ids[5]), 5000);
  std::vector<absl::Status> verified(kImages);
  absl::BlockingCounter left(kImages);
  for (int i = 0; i < kImages; ++i) {
    store->Verify(ids[i], [&left, &to = verified[i]](absl::Status status) {
      to = std::move(status);
      left.DecrementCount();
    });
  }
  left.Wait();
  for (int i = 0; i < kImages; ++i) {
    EXPECT_EQ(verified[i].code(),
              i == 5 ? absl::StatusCode::kDataLoss : absl::StatusCode::kOk);
  }
}

TEST_F(SpillStoreTest, ASecondStoreInTheDirectoryIsRefused) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("another hoistd")));
  store.reset();
  EXPECT_OK(Open());
}

TEST_F(SpillStoreTest, CapacityIsKeptAndTheRefusalHasNumbers) {
  const SpillImage image(255);  // 1 MiB with its header.
  ASSERT_OK_AND_ASSIGN(auto store, Open(5 << 19));
  ASSERT_OK_AND_ASSIGN(const SpillId first, PutAndWait(*store, image));
  ASSERT_OK(PutAndWait(*store, image));
  EXPECT_THAT(PutAndWait(*store, image),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("1048576"), HasSubstr("524288"),
                             HasSubstr("2621440"))));
  EXPECT_EQ(FilesIn(dir_ + "/images"), 2u);
  ASSERT_OK(RemoveAndWait(*store, first));
  EXPECT_OK(PutAndWait(*store, image));
  EXPECT_EQ(store->usage().used_bytes, 2u << 20);
}

TEST_F(SpillStoreTest, RemovedIsGoneFromDiskAndList) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  const SpillImage image(10);
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image));
  ASSERT_OK(RemoveAndWait(*store, id));
  EXPECT_THAT(RemoveAndWait(*store, id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(CheckSpilled(*store, id, image),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(FilesIn(dir_ + "/images"), 0u);
  EXPECT_THAT(store->List(), IsEmpty());
  EXPECT_EQ(store->usage().used_bytes, 0u);
}

TEST_F(SpillStoreTest, WrongCallsAreRefused) {
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  SpillImage image(10);
  ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, image));
  std::vector<std::byte> small(4096);
  EXPECT_THAT(GetAndWait(*store, id, small),
              StatusIs(absl::StatusCode::kInvalidArgument));
  image.image = image.bytes.span().subspan(8, 10 * 4096);
  EXPECT_THAT(PutAndWait(*store, image),
              StatusIs(absl::StatusCode::kInvalidArgument));
  image.image = image.bytes.span().first(4096);
  EXPECT_THAT(PutAndWait(*store, image),
              StatusIs(absl::StatusCode::kInvalidArgument));
  SpillImage from_files(1);
  SpillMeta meta = *from_files.meta;
  meta.group.runs.push_back({{0, 0, 4096}});
  from_files.meta = std::make_shared<const SpillMeta>(std::move(meta));
  EXPECT_THAT(PutAndWait(*store, from_files),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(store->usage().images, 1u);
}

TEST_F(SpillStoreTest, ManyAtOnceKeepTheirOwnBytes) {
  constexpr int kImages = 24;
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  std::vector<SpillImage> images;
  std::vector<absl::StatusOr<SpillId>> ids(kImages);
  for (int i = 0; i < kImages; ++i) images.emplace_back(1 + i * 40, i);
  absl::BlockingCounter put(kImages);
  for (int i = 0; i < kImages; ++i) {
    store->Put(images[i].meta, images[i].image,
               [&put, &id = ids[i]](absl::StatusOr<SpillId> result) {
                 id = std::move(result);
                 put.DecrementCount();
               });
  }
  put.Wait();
  std::vector<std::vector<std::byte>> back(kImages);
  std::vector<absl::Status> got(kImages);
  absl::BlockingCounter read(kImages);
  for (int i = 0; i < kImages; ++i) {
    ASSERT_OK(ids[i]);
    back[i].resize(images[i].image.size());
    store->Get(*ids[i], back[i], [&read, &status = got[i]](absl::Status done) {
      status = std::move(done);
      read.DecrementCount();
    });
  }
  read.Wait();
  for (int i = 0; i < kImages; ++i) {
    EXPECT_OK(got[i]);
    EXPECT_TRUE(std::equal(back[i].begin(), back[i].end(),
                           images[i].image.begin(), images[i].image.end()));
  }
}

}  // namespace hoistd::spill_store_test
