// What a start makes of a directory where something is missing or damaged.
#include "daemon/store/spill_recovery.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/hash.h"
#include "daemon/store/segment_header.h"
#include "daemon/store/sqlite.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/spill_fixture.h"

namespace hoistd {
namespace {

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
using ::testing::SizeIs;

bool Exists(const std::string& path) { return std::filesystem::exists(path); }

class SpillRecoveryTest : public SpillTest {
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
  // Runs statements on the catalogue behind the store's back.
  void Tamper(const std::string& sql) {
    auto db = OpenSqlite(Catalogue());
    ASSERT_OK(db);
    ASSERT_OK(ExecSqlite(db->get(), sql.c_str()));
  }
  void DropCatalogue() {
    for (const char* end : {"", "-wal", "-shm"}) {
      std::filesystem::remove(Catalogue() + end);
    }
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
  void Flip(const std::string& path, uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    ASSERT_GE(byte, 0);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 4));
    ASSERT_TRUE(file.flush());
  }
  // A segment file as hoistd wrote it before files described themselves, and
  // its row in a catalogue of that time.
  void MakeOldStore(const SpillImage& image, SpillId id) {
    std::filesystem::create_directories(dir_ + "/images");
    std::filesystem::create_directories(dir_ + "/quarantine");
    const uint64_t bytes = image.image.size();
    SegmentHeader header = {
        .image_bytes = bytes,
        .group_fingerprint = FingerprintOf(image.meta->group_content)};
    for (uint64_t at = 0; at < bytes; at += kBlockBytes) {
      header.blocks.push_back(
          Xxh3(image.image.subspan(at, std::min(kBlockBytes, bytes - at))));
    }
    std::vector<std::byte> head(SegmentHeaderBytes(bytes));
    const Fingerprint hash = EncodeSegmentHeader(header, head);
    std::ofstream file(Path(id), std::ios::binary);
    file.write(reinterpret_cast<const char*>(head.data()),
               static_cast<std::streamsize>(head.size()));
    file.write(reinterpret_cast<const char*>(image.image.data()),
               static_cast<std::streamsize>(bytes));
    ASSERT_TRUE(file.flush());
    Tamper(R"(PRAGMA journal_mode=WAL;
      CREATE TABLE images(
        id INTEGER PRIMARY KEY, model TEXT NOT NULL, group_name TEXT NOT NULL,
        group_index INTEGER NOT NULL, owner INTEGER NOT NULL,
        readers INTEGER NOT NULL, content BLOB NOT NULL,
        image_bytes INTEGER NOT NULL, header_hash BLOB NOT NULL,
        quarantined TEXT NOT NULL, tenant TEXT NOT NULL DEFAULT '');
      CREATE TABLE tensors(
        image INTEGER NOT NULL REFERENCES images(id) ON DELETE CASCADE,
        seq INTEGER NOT NULL, name TEXT NOT NULL, dtype INTEGER NOT NULL,
        shape BLOB NOT NULL, strides BLOB NOT NULL,
        byte_offset INTEGER NOT NULL, bytes INTEGER NOT NULL,
        PRIMARY KEY(image, seq)) WITHOUT ROWID;
      PRAGMA user_version=3)");
    Tamper(absl::StrCat(
        "INSERT INTO images VALUES(", id.number(), ",'old','g',0,1000,1,x'",
        absl::BytesToHexString(std::string(image.meta->group_content.begin(),
                                           image.meta->group_content.end())),
        "',", bytes, ",x'",
        absl::BytesToHexString(std::string(hash.begin(), hash.end())),
        "','','')"));
  }

  std::string Catalogue() const { return dir_ + "/catalogue.db"; }

  std::vector<SpillImage> images_;
  std::vector<SpillId> ids_;
  std::vector<SpillRecord> before_;
};

TEST_F(SpillRecoveryTest, AHealthyDirectoryHasNoNotes) {
  PutAll(2);
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->notes(), IsEmpty());
  ExpectAllAsBefore(*store);
}

TEST_F(SpillRecoveryTest, ADamagedRowIsMadeAgainFromItsFile) {
  for (const char* sql :
       {"UPDATE images SET model='other' WHERE id=2",
        "UPDATE images SET id=77 WHERE id=2",
        "UPDATE images SET owner=0 WHERE id=2",
        "UPDATE images SET readers=0 WHERE id=2",
        "UPDATE tensors SET byte_offset=256 WHERE image=2",
        "UPDATE images SET quarantined='it was bad' WHERE id=2",
        "DELETE FROM images WHERE id=2",
        "DELETE FROM tensors WHERE image=2 AND seq=1"}) {
    SCOPED_TRACE(sql);
    std::filesystem::remove_all(dir_);
    images_.clear();
    ids_.clear();
    PutAll(3);
    Tamper(sql);
    {
      ASSERT_OK_AND_ASSIGN(auto store, Open());
      ExpectAllAsBefore(*store);
      EXPECT_THAT(store->notes(), Contains(HasSubstr("from their own files")));
      EXPECT_TRUE(Exists(Catalogue() + ".damaged-1"));
    }
    // It was mended, not worked around.
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    EXPECT_THAT(store->notes(), IsEmpty());
    ExpectAllAsBefore(*store);
  }
}

TEST_F(SpillRecoveryTest, ACatalogueThatIsNoneIsMadeAnewFromTheFiles) {
  PutAll(3);
  for (int n = 1; n <= 10; ++n) {
    SCOPED_TRACE(n);
    std::ofstream(Catalogue()) << std::string(5000, 'x');
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ExpectAllAsBefore(*store);
    EXPECT_THAT(store->notes(),
                ElementsAre(AllOf(HasSubstr(dir_),
                                  HasSubstr("3 from their own files"))));
    // What is kept for a look has an end.
    EXPECT_EQ(Exists(absl::StrCat(Catalogue(), ".damaged-", n)), n <= 8);
  }
  // The new catalogue is one to work with.
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->notes(), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const SpillId next, PutAndWait(*store, images_[0]));
  EXPECT_EQ(next, SpillId(4));
  EXPECT_OK(RemoveAndWait(*store, next));
}

TEST_F(SpillRecoveryTest, ImagesWithoutTheirCatalogueAreTakenIn) {
  PutAll(2);
  DropCatalogue();
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ExpectAllAsBefore(*store);
  EXPECT_THAT(store->notes(), ElementsAre(HasSubstr("no row of 2 images")));
}

TEST_F(SpillRecoveryTest, OldImagesWithoutTheirCatalogueAreRefused) {
  MakeOldStore(SpillImage(10), SpillId(1));
  DropCatalogue();
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("put catalogue.db back")));
  EXPECT_TRUE(Exists(Path(SpillId(1))));
  EXPECT_FALSE(Exists(Catalogue()));
}

TEST_F(SpillRecoveryTest, OldImagesAreServedWithTheirRows) {
  const SpillImage image(600);
  MakeOldStore(image, SpillId(5));
  for (int start = 0; start < 2; ++start) {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    EXPECT_THAT(store->notes(), IsEmpty());
    ASSERT_THAT(store->List(), SizeIs(1));
    EXPECT_EQ(store->List()[0].meta->model, "old");
    EXPECT_OK(CheckSpilled(*store, SpillId(5), image));
  }
}

TEST_F(SpillRecoveryTest, AnOldImageWhoseRowIsDamagedIsPutAside) {
  MakeOldStore(SpillImage(600), SpillId(5));
  PutAll(1);
  Tamper("UPDATE images SET model='other' WHERE id=5");
  const std::string lost = dir_ + "/quarantine/5.lost";
  for (int start = 0; start < 2; ++start) {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ASSERT_THAT(store->List(), SizeIs(1));
    EXPECT_EQ(store->List()[0].id, ids_[0]);
    EXPECT_TRUE(Exists(lost));
    EXPECT_THAT(store->notes(),
                Contains(AllOf(HasSubstr("image 5 is lost"),
                               HasSubstr("older form"), HasSubstr("5.lost"))));
    EXPECT_EQ(store->usage().lost_bytes, 601u * 4096);
    EXPECT_EQ(store->usage().used_bytes,
              601u * 4096 + store->List()[0].file_bytes);
  }
  std::filesystem::remove(lost);
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->notes(), IsEmpty());
  EXPECT_EQ(store->usage().lost_bytes, 0u);
}

TEST_F(SpillRecoveryTest, IdsOfLostFilesAreNotUsedAgain) {
  PutAll(2);
  Flip(Path(ids_[1]), 100);
  DropCatalogue();
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->notes(), Contains(HasSubstr("image 2 is lost")));
  ASSERT_OK_AND_ASSIGN(const SpillId next, PutAndWait(*store, images_[1]));
  EXPECT_EQ(next, SpillId(3));
}

TEST_F(SpillRecoveryTest, AnotherImagesFileIsNotTakenInUnderThisName) {
  PutAll(1);
  std::filesystem::copy_file(Path(ids_[0]), Path(SpillId(9)));
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->List(), SizeIs(1));
  EXPECT_THAT(store->notes(),
              ElementsAre(AllOf(HasSubstr("image 9"),
                                HasSubstr("the file of image 1"))));
}

TEST_F(SpillRecoveryTest, TornFilesWithoutARowAreNamedAndNotServed) {
  PutAll(2);
  // Its tail is missing; all but a piece of its header is.
  std::filesystem::resize_file(Path(ids_[0]), 100 * 4096);
  std::filesystem::resize_file(Path(ids_[1]), 1000);
  DropCatalogue();
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->List(), IsEmpty());
  EXPECT_THAT(store->notes(),
              Contains(AllOf(HasSubstr("image 1 is lost"),
                             HasSubstr("409600 bytes instead of"))));
  EXPECT_THAT(store->notes(),
              Contains(AllOf(HasSubstr("image 2"), HasSubstr("1000 bytes"))));
}

TEST_F(SpillRecoveryTest, TornFilesWithARowAreQuarantinedAndSaid) {
  for (const uint64_t size : {100 * 4096, 1000, 0}) {
    SCOPED_TRACE(size);
    std::filesystem::remove_all(dir_);
    images_.clear();
    ids_.clear();
    PutAll(1);
    std::filesystem::resize_file(Path(ids_[0]), size);
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ASSERT_THAT(store->List(), SizeIs(1));
    EXPECT_NE(store->List()[0].quarantined, "");
    EXPECT_THAT(store->notes(), ElementsAre(HasSubstr("image 1 is damaged")));
    EXPECT_THAT(CheckSpilled(*store, ids_[0], images_[0]),
                StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST_F(SpillRecoveryTest, ARenameThatWasNotSyncedLosesNothing) {
  PutAll(1);
  // A power cut has kept the row and not the name.
  std::filesystem::rename(Path(ids_[0]), dir_ + "/images/1.part");
  {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ExpectAllAsBefore(*store);
  }
  // Or the name and not the row.
  Tamper("DELETE FROM tensors; DELETE FROM images");
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  ExpectAllAsBefore(*store);
  EXPECT_THAT(store->notes(), ElementsAre(HasSubstr("no row of 1 images")));
}

TEST_F(SpillRecoveryTest, APartWithoutARowIsSwept) {
  PutAll(1);
  std::filesystem::copy_file(Path(ids_[0]), dir_ + "/images/8.part");
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_EQ(FilesIn(dir_ + "/images"), 1u);
  ExpectAllAsBefore(*store);
}

TEST_F(SpillRecoveryTest, WhatWasBeingRemovedDoesNotComeBack) {
  PutAll(2);
  // Stopped after the first step of a removal; and after the row's end.
  std::filesystem::rename(Path(ids_[0]), dir_ + "/images/1.del");
  std::filesystem::rename(Path(ids_[1]), dir_ + "/images/2.del");
  Tamper("DELETE FROM tensors WHERE image=2; DELETE FROM images WHERE id=2");
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->List(), IsEmpty());
  EXPECT_THAT(store->notes(), IsEmpty());
  EXPECT_EQ(FilesIn(dir_ + "/images"), 0u);
  store.reset();
  ASSERT_OK_AND_ASSIGN(store, Open());
  EXPECT_THAT(store->List(), IsEmpty());
}

TEST_F(SpillRecoveryTest, WhatWasInQuarantineStaysThere) {
  PutAll(2);
  Flip(Path(ids_[0]), 5000);
  {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    EXPECT_THAT(CheckSpilled(*store, ids_[0], images_[0]),
                StatusIs(absl::StatusCode::kDataLoss));
  }
  const auto expect = [this](const char* why) {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    ASSERT_THAT(store->List(), SizeIs(2));
    EXPECT_THAT(store->List()[0].quarantined, HasSubstr(why));
    EXPECT_THAT(CheckSpilled(*store, ids_[0], images_[0]),
                StatusIs(absl::StatusCode::kDataLoss));
    EXPECT_OK(CheckSpilled(*store, ids_[1], images_[1]));
    EXPECT_TRUE(Exists(Path(ids_[0], "quarantine")));
  };
  // With its row; a row beside it damaged; its own row damaged; no catalogue.
  expect("block 0");
  Tamper("UPDATE images SET owner=0 WHERE id=2");
  expect("block 0");
  Tamper("UPDATE images SET owner=0 WHERE id=1");
  expect("found in quarantine/");
  DropCatalogue();
  expect("found in quarantine/");
}

TEST_F(SpillRecoveryTest, AMoveToQuarantineThatWasNotSyncedIsMadeAgain) {
  PutAll(1);
  Flip(Path(ids_[0]), 5000);
  {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    EXPECT_THAT(CheckSpilled(*store, ids_[0], images_[0]),
                StatusIs(absl::StatusCode::kDataLoss));
  }
  std::filesystem::rename(Path(ids_[0], "quarantine"), Path(ids_[0]));
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_NE(store->List()[0].quarantined, "");
  EXPECT_TRUE(Exists(Path(ids_[0], "quarantine")));
  EXPECT_EQ(store->usage().lost_bytes, 0u);
  ASSERT_OK(RemoveAndWait(*store, ids_[0]));
  EXPECT_EQ(FilesIn(dir_ + "/quarantine"), 0u);
}

TEST_F(SpillRecoveryTest, NotesHaveAnEnd) {
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

}  // namespace
}  // namespace hoistd
