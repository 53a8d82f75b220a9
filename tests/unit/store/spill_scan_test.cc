// What a start makes of a directory where something is missing, left over or
// damaged.
#include "daemon/store/spill_scan.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/hash.h"
#include "daemon/store/description.h"
#include "daemon/store/segment_header.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/spill_fixture.h"

namespace hoistd::spill_scan_test {

using ::hoistd::testing::CheckSpilled;
using ::hoistd::testing::FilesIn;
using ::hoistd::testing::PutAndWait;
using ::hoistd::testing::RemoveAndWait;
using ::hoistd::testing::SameImage;
using ::hoistd::testing::SpillImage;
using ::hoistd::testing::SpillTest;
using ::hoistd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

bool Exists(const std::string& path) { return std::filesystem::exists(path); }

class SpillScanTest : public SpillTest {
 protected:
  // Puts images of 300, 301, ... pages and closes the store.
  void PutAll(size_t count) {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    for (size_t i = 0; i < count; ++i) {
      images_.emplace_back(300 + i, i + 1);
      ASSERT_OK_AND_ASSIGN(const SpillId id, PutAndWait(*store, images_[i]));
      ids_.push_back(id);
    }
    before_ = store->List();
  }
  // By a bad block, found as somebody reads it.
  void QuarantineFirst() {
    Flip(Path(ids_[0]), 5000);
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    EXPECT_THAT(CheckSpilled(*store, ids_[0], images_[0]),
                StatusIs(absl::StatusCode::kDataLoss));
  }
  void ExpectAllAsBefore(SpillStore& store) {
    const auto now = store.List();
    ASSERT_THAT(now, SizeIs(before_.size()));
    for (size_t i = 0; i < now.size(); ++i) {
      EXPECT_TRUE(SameImage(now[i], before_[i]));
      EXPECT_EQ(now[i].quarantined, before_[i].quarantined);
      EXPECT_OK(CheckSpilled(store, ids_[i], images_[i]));
    }
  }
  // Changes the header of `id`, and makes its checksum right again.
  template <typename Change>
  void Rewrite(SpillId id, Change change) {
    std::fstream file(Path(id),
                      std::ios::in | std::ios::out | std::ios::binary);
    std::string header(4096, '\0');
    file.read(header.data(), 4096);
    change(header);
    std::fill_n(header.begin() + 48, 16, '\0');
    const Hash128 hash = Xxh3(std::as_bytes(std::span(header)));
    std::copy(hash.begin(), hash.end(), header.begin() + 48);
    file.seekp(0);
    file.write(header.data(), 4096);
    ASSERT_TRUE(file.flush());
  }
  std::string Why(SpillId id) const {
    return absl::StrCat(dir_, "/quarantine/", id.number(), ".why");
  }
  std::string TextOf(const std::string& path) const {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::vector<SpillImage> images_;
  std::vector<SpillId> ids_;
  std::vector<SpillRecord> before_;
};

TEST_F(SpillScanTest, AHealthyDirectoryHasNoNotes) {
  PutAll(2);
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->notes(), IsEmpty());
  ExpectAllAsBefore(*store);
}

// As many as one thread reads, and as many as all do.
TEST_F(SpillScanTest, TenThousandImagesAreListedEachAsItIs) {
  constexpr uint64_t kImages = 10'000;
  // In memory where there is that: so many files take long to make.
  char shm[] = "/dev/shm/hoist-XXXXXX";
  if (mkdtemp(shm) != nullptr) dir_ = std::string(shm) + "/spill";
  { ASSERT_OK_AND_ASSIGN(auto store, Open()); }
  SpillMeta meta = *SpillImage(0).meta;
  for (uint64_t id = 1; id <= kImages; ++id) {
    meta.model = absl::StrCat("model-", id);
    SegmentHeader header = {
        .group_fingerprint = FingerprintOf(meta.group_content),
        .description = EncodeDescription(SpillId(id), meta)};
    std::vector<std::byte> bytes(
        SegmentHeaderBytes(0, header.description.size()));
    EncodeSegmentHeader(header, bytes);
    if (id % 1000 == 0) bytes[2000] ^= std::byte{1};  // Among the zeros.
    std::ofstream(Path(SpillId(id)), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  const auto records = store->List();
  ASSERT_THAT(records, SizeIs(kImages - kImages / 1000));
  for (const SpillRecord& record : records) {
    EXPECT_NE(record.id.number() % 1000, 0u);
    EXPECT_EQ(record.meta->model, absl::StrCat("model-", record.id.number()));
    EXPECT_EQ(record.quarantined, "");
  }
  EXPECT_THAT(store->notes(), SizeIs(kImages / 1000));
  EXPECT_EQ(store->usage().used_bytes, kImages * 4096);
  store.reset();
  std::filesystem::remove_all(shm);
}

TEST_F(SpillScanTest, AHeaderThatDoesNotCheckIsLostAndNamedAtEachStart) {
  PutAll(2);
  Flip(Path(ids_[1]), 100);
  for (int start = 0; start < 2; ++start) {
    SCOPED_TRACE(start);
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ASSERT_THAT(store->List(), SizeIs(1));
    EXPECT_OK(CheckSpilled(*store, ids_[0], images_[0]));
    EXPECT_FALSE(Exists(Path(ids_[1])));
    EXPECT_TRUE(Exists(Path(ids_[1], "quarantine")));
    EXPECT_THAT(
        store->notes(),
        ElementsAre(AllOf(HasSubstr(dir_), HasSubstr("image 2 is lost"),
                          HasSubstr("its header's checksum is wrong"),
                          HasSubstr("1236992 bytes are in quarantine/2.img"))));
    EXPECT_EQ(store->usage().lost_bytes, 302u * 4096);
    EXPECT_EQ(store->usage().used_bytes, (301u + 302u) * 4096);
  }
  // Its id is not used again while it is there.
  {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ASSERT_OK_AND_ASSIGN(const SpillId next, PutAndWait(*store, images_[1]));
    EXPECT_EQ(next, SpillId(3));
  }
  std::filesystem::remove(Path(ids_[1], "quarantine"));
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->notes(), IsEmpty());
  EXPECT_EQ(store->usage().lost_bytes, 0u);
  EXPECT_FALSE(Exists(Why(ids_[1])));
}

TEST_F(SpillScanTest, AnotherImagesFileIsNotTakenInUnderThisName) {
  PutAll(1);
  std::filesystem::copy_file(Path(ids_[0]), Path(SpillId(9)));
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->List(), SizeIs(1));
  EXPECT_THAT(store->notes(),
              ElementsAre(AllOf(HasSubstr("image 9"),
                                HasSubstr("the file of image 1"))));
}

TEST_F(SpillScanTest, AHeaderThatContradictsItselfIsLost) {
  PutAll(1);
  // Its size, and its fingerprint, are not those of its description.
  for (const size_t at : {size_t{18}, size_t{32}}) {
    SCOPED_TRACE(at);
    const std::string kept = top_ / "kept";
    std::filesystem::copy_file(
        Path(ids_[0]), kept, std::filesystem::copy_options::overwrite_existing);
    Rewrite(ids_[0], [at](std::string& header) { header[at] ^= 0x20; });
    {
      ASSERT_OK_AND_ASSIGN(auto store, Open());
      EXPECT_THAT(store->List(), IsEmpty());
      EXPECT_THAT(store->notes(), ElementsAre(HasSubstr("image 1 is lost")));
    }
    std::filesystem::remove_all(dir_ + "/quarantine");
    std::filesystem::rename(kept, Path(ids_[0]));
  }
}

TEST_F(SpillScanTest, AFileShorterThanItsHeaderIsLostAndKept) {
  for (const uint64_t size : {0, 63, 64, 1000, 4095}) {
    SCOPED_TRACE(size);
    std::filesystem::remove_all(dir_);
    images_.clear();
    ids_.clear();
    PutAll(1);
    std::filesystem::resize_file(Path(ids_[0]), size);
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    EXPECT_THAT(store->List(), IsEmpty());
    EXPECT_THAT(store->notes(),
                ElementsAre(AllOf(HasSubstr("image 1 is lost"),
                                  HasSubstr(absl::StrCat(size, " bytes")))));
    EXPECT_TRUE(Exists(Path(ids_[0], "quarantine")));
  }
}

TEST_F(SpillScanTest, AFileShorterThanItsImageIsQuarantinedAndSaid) {
  for (const uint64_t size : {300u * 4096, 100u * 4096, 4096u, 302u * 4096}) {
    SCOPED_TRACE(size);
    std::filesystem::remove_all(dir_);
    images_.clear();
    ids_.clear();
    PutAll(1);
    std::filesystem::resize_file(Path(ids_[0]), size);
    for (int start = 0; start < 2; ++start) {
      ASSERT_OK_AND_ASSIGN(auto store, Open());
      ASSERT_THAT(store->List(), SizeIs(1));
      EXPECT_TRUE(SameImage(store->List()[0], before_[0]));
      EXPECT_THAT(store->List()[0].quarantined, HasSubstr("instead of"));
      if (start == 0) {
        EXPECT_THAT(store->notes(),
                    ElementsAre(HasSubstr("image 1 is damaged")));
      }
      EXPECT_THAT(CheckSpilled(*store, ids_[0], images_[0]),
                  StatusIs(absl::StatusCode::kDataLoss));
    }
  }
}

TEST_F(SpillScanTest, AnOlderFormIsLostAndANewerOneIsRefused) {
  PutAll(2);
  Rewrite(ids_[0], [](std::string& header) { header[8] = 1; });
  {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    EXPECT_THAT(store->List(), SizeIs(1));
    EXPECT_THAT(store->notes(),
                ElementsAre(AllOf(HasSubstr("image 1 is lost"),
                                  HasSubstr("its version is 1, not 2"))));
  }
  Rewrite(ids_[1], [](std::string& header) { header[8] = 3; });
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr(Path(ids_[1])),
                                     HasSubstr("use a newer hoistd"))));
  EXPECT_TRUE(Exists(Path(ids_[1])));
}

TEST_F(SpillScanTest, AFlippedBitInTheVersionIsNoNewerOne) {
  PutAll(2);
  Flip(Path(ids_[0]), 8);  // 6.
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->List(), SizeIs(1));
  EXPECT_THAT(store->notes(), ElementsAre(HasSubstr("image 1 is lost")));
}

TEST_F(SpillScanTest, APartIsSweptHoweverWholeItIs) {
  PutAll(2);
  // Killed before the rename; after it; and a power cut that took it back.
  std::ofstream(dir_ + "/images/7.part") << "partial";
  std::filesystem::rename(Path(ids_[1]), dir_ + "/images/2.part");
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_EQ(FilesIn(dir_ + "/images"), 1u);
  EXPECT_THAT(store->notes(), IsEmpty());
  before_.pop_back();
  ExpectAllAsBefore(*store);
}

TEST_F(SpillScanTest, FilesOfNobodysAreLeftAloneAndNamed) {
  PutAll(1);
  // Of an older hoistd; and of people.
  for (const char* name :
       {"catalogue.db", "catalogue.db-wal", "models.roll", "images/3.del",
        "images/notes.txt", "images/99999999999999999999.img", "images/0.img",
        "images/01.img", "quarantine/4.lost", "quarantine/x"}) {
    std::ofstream(dir_ + "/" + name) << "not ours";
  }
  std::filesystem::create_directory(dir_ + "/lost+found");
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ExpectAllAsBefore(*store);
  EXPECT_THAT(
      store->notes(),
      ElementsAre(AllOf(HasSubstr("10 files are not hoistd's"),
                        HasSubstr("catalogue.db, catalogue.db-wal"),
                        HasSubstr("models.roll"), Not(HasSubstr("lost+found")),
                        HasSubstr(", ...; delete"))));
  EXPECT_TRUE(Exists(dir_ + "/catalogue.db"));
  EXPECT_EQ(FilesIn(dir_ + "/images"), 6u);
  EXPECT_EQ(FilesIn(dir_ + "/quarantine"), 2u);
}

TEST_F(SpillScanTest, WhatWasInQuarantineStaysThereWithItsReason) {
  PutAll(2);
  QuarantineFirst();
  EXPECT_THAT(TextOf(Why(ids_[0])), HasSubstr("block 0"));
  const auto expect = [this](const char* why, size_t notes) {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ASSERT_THAT(store->List(), SizeIs(2));
    EXPECT_THAT(store->notes(), SizeIs(notes));
    EXPECT_THAT(store->List()[0].quarantined, HasSubstr(why));
    EXPECT_THAT(CheckSpilled(*store, ids_[0], images_[0]),
                StatusIs(absl::StatusCode::kDataLoss));
    EXPECT_OK(CheckSpilled(*store, ids_[1], images_[1]));
    EXPECT_TRUE(Exists(Path(ids_[0], "quarantine")));
  };
  expect("block 0", 0);
  std::ofstream(Why(ids_[0])) << "";  // There was no room for it.
  expect("found in quarantine/", 1);
  std::filesystem::remove(Why(ids_[0]));
  expect("found in quarantine/", 1);
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ASSERT_OK(RemoveAndWait(*store, ids_[0]));
  EXPECT_EQ(FilesIn(dir_ + "/quarantine"), 0u);
}

TEST_F(SpillScanTest, AMoveToQuarantineThatWasLostIsMadeAgain) {
  PutAll(1);
  QuarantineFirst();
  std::filesystem::rename(Path(ids_[0], "quarantine"), Path(ids_[0]));
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ASSERT_THAT(store->List(), SizeIs(1));
  EXPECT_THAT(store->List()[0].quarantined, HasSubstr("block 0"));
  EXPECT_THAT(store->notes(), ElementsAre(HasSubstr("image 1 is damaged")));
  EXPECT_TRUE(Exists(Path(ids_[0], "quarantine")));
  EXPECT_EQ(store->usage().lost_bytes, 0u);
  ASSERT_OK(RemoveAndWait(*store, ids_[0]));
  EXPECT_EQ(FilesIn(dir_ + "/quarantine"), 0u);
}

TEST_F(SpillScanTest, AReasonWithoutItsImageIsSweptAndItsIdNotUsed) {
  PutAll(1);
  std::ofstream(Why(SpillId(7))) << "its removal was cut short";
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->notes(), IsEmpty());
  EXPECT_EQ(FilesIn(dir_ + "/quarantine"), 0u);
  ExpectAllAsBefore(*store);
  // Else, with the reason back after a power cut, it would be taken for
  // damaged.
  ASSERT_OK_AND_ASSIGN(const SpillId next, PutAndWait(*store, images_[0]));
  EXPECT_EQ(next, SpillId(8));
}

TEST_F(SpillScanTest, OfTwoFilesOfOneIdTheOneInQuarantineIsLost) {
  PutAll(1);
  std::filesystem::copy_file(Path(ids_[0]), Path(ids_[0], "quarantine"));
  std::ofstream(Why(ids_[0])) << "of the one in quarantine";
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ExpectAllAsBefore(*store);
  EXPECT_THAT(store->notes(), ElementsAre(HasSubstr("another file of this")));
  EXPECT_EQ(store->usage().lost_bytes, 301u * 4096);
}

TEST_F(SpillScanTest, WhatCannotBeReadNowStaysInPlaceAndIsNamed) {
  PutAll(2);
  const std::string elsewhere = top_ / "elsewhere";
  std::filesystem::rename(Path(ids_[0]), elsewhere);
  std::filesystem::create_symlink(elsewhere, Path(ids_[0]));
  {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    EXPECT_THAT(store->List(), SizeIs(1));
    EXPECT_THAT(store->notes(),
                ElementsAre(HasSubstr("image 1 cannot be served before")));
    EXPECT_EQ(FilesIn(dir_ + "/quarantine"), 0u);
  }
  std::filesystem::rename(elsewhere, Path(ids_[0]));
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ExpectAllAsBefore(*store);
}

TEST_F(SpillScanTest, APipeInAnImagesPlaceStopsNoStart) {
  PutAll(1);
  ASSERT_EQ(mkfifo(Path(SpillId(5)).c_str(), 0600), 0);
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ExpectAllAsBefore(*store);
  EXPECT_THAT(store->notes(), ElementsAre(HasSubstr("it is no file")));
}

TEST_F(SpillScanTest, NotesHaveAnEnd) {
  { ASSERT_OK_AND_ASSIGN(auto store, Open()); }
  for (int id = 1; id <= 200; ++id) {
    std::ofstream(Path(SpillId(static_cast<uint64_t>(id))))
        << std::string(8192, 'x');
  }
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->notes(), SizeIs(kMostNotes));
  EXPECT_THAT(store->notes().back(), HasSubstr("and 137 more"));
  EXPECT_EQ(FilesIn(dir_ + "/quarantine"), 400u);
}

}  // namespace hoistd::spill_scan_test
