#include "daemon/store/catalogue.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd {
namespace {

using ::hoistd::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class CatalogueTest : public ::testing::Test {
 protected:
  CatalogueRow Row(uint64_t id, size_t tensors) {
    SpillMeta meta = {.model = std::string("m\0/\xc3", 4),
                      .owner = User(4'000'000'000),
                      .readers = Readers::kEveryone,
                      .group_content = {9, 8},
                      .group_index = GroupIndex(7)};
    meta.group.name = "";
    meta.group.image_bytes = 8192;
    for (size_t i = 0; i < tensors; ++i) {
      meta.group.tensors.push_back(
          {.name = "t" + std::to_string(i),
           .dtype = hoist::DType::kF32,
           .shape = {static_cast<int64_t>(i % 3), 2},
           .strides = i % 2 == 0 ? std::vector<int64_t>{}
                                 : std::vector<int64_t>{2, -1},
           .offset = i % 32 * 256,
           .bytes = 24});
    }
    return {.id = SpillId(id),
            .meta = std::make_shared<const SpillMeta>(std::move(meta)),
            .header_bytes = 4096,
            .header_hash = {5, 6, 7}};
  }
  // Runs one statement on the file behind the catalogue's back.
  void Tamper(const char* sql) {
    auto db = OpenSqlite(path_);
    ASSERT_OK(db);
    ASSERT_OK(ExecSqlite(db->get(), sql));
  }

  testing::TempDir dir_;
  std::string path_ = dir_ / "catalogue.db";
};

TEST_F(CatalogueTest, ReopenedHasEveryFieldOfEveryRow) {
  const CatalogueRow row = Row(41, 20'000);
  {
    ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
    ASSERT_OK(catalogue.Add(row));
    CatalogueRow bad = Row(42, 0);
    ASSERT_OK(catalogue.Add(bad));
    bad.quarantined = "it's bad";
    ASSERT_OK(catalogue.MarkQuarantined(bad));
  }
  ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
  ASSERT_OK_AND_ASSIGN(const auto rows, catalogue.Load());
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0].id, row.id);
  EXPECT_EQ(rows[0].header_bytes, row.header_bytes);
  EXPECT_EQ(rows[0].header_hash, row.header_hash);
  EXPECT_EQ(rows[0].quarantined, "");
  EXPECT_EQ(rows[1].quarantined, "it's bad");
  const SpillMeta& meta = *rows[0].meta;
  EXPECT_EQ(meta.model, row.meta->model);
  EXPECT_EQ(meta.owner, row.meta->owner);
  EXPECT_EQ(meta.readers, row.meta->readers);
  EXPECT_EQ(meta.group_content, row.meta->group_content);
  EXPECT_EQ(meta.group_index, row.meta->group_index);
  EXPECT_EQ(meta.group.name, row.meta->group.name);
  EXPECT_EQ(meta.group.image_bytes, row.meta->group.image_bytes);
  ASSERT_THAT(meta.group.tensors, SizeIs(20'000));
  for (size_t i = 0; i < 20'000; ++i) {
    const Tensor& back = meta.group.tensors[i];
    const Tensor& put = row.meta->group.tensors[i];
    ASSERT_EQ(back.name, put.name);
    ASSERT_EQ(back.dtype, put.dtype);
    ASSERT_EQ(back.shape, put.shape);
    ASSERT_EQ(back.strides, put.strides);
    ASSERT_EQ(back.offset, put.offset);
    ASSERT_EQ(back.bytes, put.bytes);
  }
}

TEST_F(CatalogueTest, ARemovedRowTakesItsTensorsAlong) {
  ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
  ASSERT_OK(catalogue.Add(Row(1, 3)));
  ASSERT_OK(catalogue.Remove(SpillId(1)));
  ASSERT_OK(catalogue.Remove(SpillId(1)));
  ASSERT_OK(catalogue.Add(Row(1, 1)));
  ASSERT_OK_AND_ASSIGN(const auto rows, catalogue.Load());
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_THAT(rows[0].meta->group.tensors, SizeIs(1));
}

TEST_F(CatalogueTest, AnIdIsAddedOnceAndTheFailureLeavesTheFirst) {
  ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
  ASSERT_OK(catalogue.Add(Row(1, 3)));
  EXPECT_THAT(catalogue.Add(Row(1, 1)), ::testing::Not(testing::IsOk()));
  ASSERT_OK(catalogue.Add(Row(2, 1)));  // No transaction was left open.
  ASSERT_OK_AND_ASSIGN(const auto rows, catalogue.Load());
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_THAT(rows[0].meta->group.tensors, SizeIs(3));
}

TEST_F(CatalogueTest, AFileThatIsNoDatabaseIsDataLoss) {
  std::ofstream(path_) << std::string(100'000, 'x');
  EXPECT_THAT(Catalogue::Open(path_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
}

TEST_F(CatalogueTest, ANewerSchemaIsRefused) {
  { ASSERT_OK(Catalogue::Open(path_)); }
  Tamper("PRAGMA user_version=5; PRAGMA application_id=0x686f6905");
  EXPECT_THAT(
      Catalogue::Open(path_),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("newer")));
}

TEST_F(CatalogueTest, AVersionThatOnlyOneOfItsPlacesHasIsDamage) {
  for (const char* sql : {"PRAGMA user_version=5", "PRAGMA user_version=0",
                          "PRAGMA user_version=3", "PRAGMA application_id=0",
                          "PRAGMA application_id=0x686f6905"}) {
    SCOPED_TRACE(sql);
    std::filesystem::remove(path_);
    { ASSERT_OK(Catalogue::Open(path_)); }
    Tamper(sql);
    EXPECT_THAT(Catalogue::Open(path_), StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST_F(CatalogueTest, TablesThatAreNotItsOwnAreDamage) {
  for (const char* sql :
       {"ALTER TABLE images RENAME COLUMN owner TO readers_",
        "DROP TABLE tensors", "CREATE INDEX i ON images(model)",
        "CREATE TRIGGER t AFTER INSERT ON images BEGIN SELECT 1; END"}) {
    SCOPED_TRACE(sql);
    std::filesystem::remove(path_);
    { ASSERT_OK(Catalogue::Open(path_)); }
    Tamper(sql);
    EXPECT_THAT(Catalogue::Open(path_), StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST_F(CatalogueTest, WhileItIsOpenItHasNoSharedMemoryFile) {
  ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
  ASSERT_OK(catalogue.Add(Row(1, 1)));
  EXPECT_FALSE(std::filesystem::exists(path_ + "-shm"));
}

TEST_F(CatalogueTest, ATenantIsKeptByItsName) {
  {
    ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
    CatalogueRow row = Row(1, 1);
    SpillMeta meta = *row.meta;
    meta.owner = *User::Tenant("team-a");
    row.meta = std::make_shared<const SpillMeta>(meta);
    ASSERT_OK(catalogue.Add(row));
    ASSERT_OK(catalogue.Add(Row(2, 1)));
  }
  {
    ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
    ASSERT_OK_AND_ASSIGN(const auto rows, catalogue.Load());
    EXPECT_EQ(rows[0].meta->owner, *User::Tenant("team-a"));
    EXPECT_EQ(rows[1].meta->owner, User(4'000'000'000));
  }
  Tamper("UPDATE images SET tenant='Team A'");
  ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
  EXPECT_THAT(catalogue.Load(), StatusIs(absl::StatusCode::kDataLoss));
}

// The tables as schema 2 and 3 made them, to the letter.
constexpr char kSchemaTwo[] = R"(
PRAGMA journal_mode=WAL;
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS images(
  id INTEGER PRIMARY KEY, model TEXT NOT NULL, group_name TEXT NOT NULL,
  group_index INTEGER NOT NULL, owner INTEGER NOT NULL,
  readers INTEGER NOT NULL, content BLOB NOT NULL,
  image_bytes INTEGER NOT NULL, header_hash BLOB NOT NULL,
  quarantined TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tensors(
  image INTEGER NOT NULL REFERENCES images(id) ON DELETE CASCADE,
  seq INTEGER NOT NULL, name TEXT NOT NULL, dtype INTEGER NOT NULL,
  shape BLOB NOT NULL, strides BLOB NOT NULL, byte_offset INTEGER NOT NULL,
  bytes INTEGER NOT NULL, PRIMARY KEY(image, seq)) WITHOUT ROWID;
INSERT INTO images VALUES(7, 'm', 'layers.0', 2, 4000000000, 1,
  x'0102030405060708090a0b0c0d0e0f10000000000000000000000000000000ff', 8192,
  x'00112233445566778899aabbccddeeff', '');
INSERT INTO images VALUES(9, 'm', 'layers.1', 3, 5, 0,
  x'0102030405060708090a0b0c0d0e0f10000000000000000000000000000000fe', 4096,
  x'ff112233445566778899aabbccddeeff', 'it was bad');
INSERT INTO tensors VALUES(7, 0, 'a', 12, x'0200000000000000', x'', 0, 8);
INSERT INTO tensors VALUES(7, 1, 'b', 12, x'0300000000000000',
  x'0200000000000000', 256, 20);
PRAGMA user_version=2;
COMMIT;
)";
constexpr char kTenantsOfSchemaThree[] = R"(
BEGIN IMMEDIATE;
ALTER TABLE images ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
UPDATE images SET tenant='team-a', owner=4294967295 WHERE id=9;
PRAGMA user_version=3;
COMMIT;
)";

TEST_F(CatalogueTest, OlderSchemasAreBroughtUpToDate) {
  for (const int schema : {2, 3}) {
    SCOPED_TRACE(schema);
    std::filesystem::remove(path_);
    Tamper(kSchemaTwo);
    if (schema == 3) Tamper(kTenantsOfSchemaThree);
    for (int start = 0; start < 2; ++start) {
      ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
      ASSERT_OK_AND_ASSIGN(const auto rows, catalogue.Load());
      ASSERT_THAT(rows, SizeIs(2));
      EXPECT_EQ(rows[0].id, SpillId(7));
      EXPECT_EQ(rows[0].header_bytes, 4096u);
      EXPECT_EQ(rows[0].header_hash[15], 0xff);
      EXPECT_EQ(rows[0].meta->model, "m");
      EXPECT_EQ(rows[0].meta->owner, User(4'000'000'000));
      EXPECT_EQ(rows[0].meta->group_content[31], 0xff);
      ASSERT_THAT(rows[0].meta->group.tensors, SizeIs(2));
      EXPECT_EQ(rows[0].meta->group.tensors[1].name, "b");
      EXPECT_EQ(rows[0].meta->group.tensors[1].strides,
                std::vector<int64_t>{2});
      EXPECT_EQ(rows[1].quarantined, "it was bad");
      EXPECT_EQ(rows[1].meta->owner,
                schema == 3 ? *User::Tenant("team-a") : User(5));
    }
    // From now on a change is found.
    Tamper("UPDATE images SET group_name='layers.2' WHERE id=7");
    ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
    EXPECT_THAT(catalogue.Load(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checksum")));
  }
}

TEST_F(CatalogueTest, EveryFieldIsInTheChecksum) {
  for (const char* sql : {"UPDATE images SET model='n'",
                          "UPDATE images SET group_name='n'",
                          "UPDATE images SET group_index=8",
                          "UPDATE images SET owner=0",
                          "UPDATE images SET readers=0",
                          "UPDATE images SET tenant='a'",
                          "UPDATE images SET content=zeroblob(32)",
                          "UPDATE images SET image_bytes=12288",
                          "UPDATE images SET header_hash=zeroblob(16)",
                          "UPDATE images SET quarantined='x'",
                          "UPDATE images SET checksum=zeroblob(16)",
                          "UPDATE images SET id=2; UPDATE tensors SET image=2",
                          "UPDATE tensors SET name='n' WHERE seq=1",
                          "UPDATE tensors SET dtype=11 WHERE seq=1",
                          "UPDATE tensors SET shape=zeroblob(16) WHERE seq=1",
                          "UPDATE tensors SET strides=x'' WHERE seq=1",
                          "UPDATE tensors SET byte_offset=0 WHERE seq=1",
                          "UPDATE tensors SET bytes=0 WHERE seq=1",
                          "DELETE FROM tensors WHERE seq=2",
                          "DELETE FROM tensors"}) {
    SCOPED_TRACE(sql);
    std::filesystem::remove(path_);
    {
      ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
      ASSERT_OK(catalogue.Add(Row(1, 3)));
    }
    Tamper(sql);
    ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
    EXPECT_THAT(catalogue.Load(), StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST_F(CatalogueTest, WhatChecksIsSalvagedAndTheRestIsNamed) {
  {
    ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
    for (const uint64_t id : {1, 2, 3}) ASSERT_OK(catalogue.Add(Row(id, 2)));
  }
  Tamper("UPDATE tensors SET name='x' WHERE image=2 AND seq=1");
  const FoundRows found = Catalogue::Salvage(path_);
  EXPECT_OK(found.status);
  ASSERT_THAT(found.rows, SizeIs(2));
  EXPECT_EQ(found.rows[0].id, SpillId(1));
  EXPECT_EQ(found.rows[1].id, SpillId(3));
  ASSERT_THAT(found.damaged, SizeIs(1));
  EXPECT_EQ(found.damaged[0].id, SpillId(2));
  EXPECT_THAT(found.damaged[0].why, HasSubstr("image 2"));
}

TEST_F(CatalogueTest, RowsThatMakeNoSenseAreDataLoss) {
  for (const char* sql :
       {"UPDATE images SET owner=-1", "UPDATE images SET owner=1<<32",
        "UPDATE images SET group_index=-1", "UPDATE images SET readers=2",
        "UPDATE images SET content=x'00'",
        "UPDATE images SET header_hash=x'0011223344556677889900112233445566'",
        "UPDATE images SET image_bytes=-4096",
        "UPDATE images SET image_bytes=4097",
        "UPDATE images SET image_bytes=1<<62", "UPDATE tensors SET dtype=999",
        "UPDATE tensors SET shape=x'0011'", "UPDATE tensors SET strides=x'00'",
        "UPDATE tensors SET byte_offset=8190",
        "UPDATE tensors SET byte_offset=-1", "UPDATE tensors SET bytes=-1",
        "UPDATE tensors SET bytes=8193"}) {
    SCOPED_TRACE(sql);
    {
      ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
      ASSERT_OK(catalogue.Remove(SpillId(1)));
      ASSERT_OK(catalogue.Add(Row(1, 1)));
    }
    Tamper(sql);
    ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
    EXPECT_THAT(catalogue.Load(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("image 1")));
  }
}

}  // namespace
}  // namespace hoistd
