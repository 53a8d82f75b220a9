#include "daemon/store/catalogue.h"

#include <fstream>
#include <memory>
#include <string>

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
    ASSERT_OK(catalogue.Add(Row(42, 0)));
    ASSERT_OK(catalogue.MarkQuarantined(SpillId(42), "it's bad"));
  }
  ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
  ASSERT_OK_AND_ASSIGN(const auto rows, catalogue.Load());
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0].id, row.id);
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
  Tamper("PRAGMA user_version=4");
  EXPECT_THAT(
      Catalogue::Open(path_),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("newer")));
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
  ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
  ASSERT_OK_AND_ASSIGN(const auto rows, catalogue.Load());
  EXPECT_EQ(rows[0].meta->owner, *User::Tenant("team-a"));
  EXPECT_EQ(rows[1].meta->owner, User(4'000'000'000));
  Tamper("UPDATE images SET tenant='Team A'");
  EXPECT_THAT(catalogue.Load(), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(CatalogueTest, OneOfSchemaTwoIsBroughtUpToDate) {
  {
    ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
    ASSERT_OK(catalogue.Add(Row(1, 1)));
  }
  Tamper("ALTER TABLE images DROP COLUMN tenant; PRAGMA user_version=2");
  for (int start = 0; start < 2; ++start) {
    ASSERT_OK_AND_ASSIGN(Catalogue catalogue, Catalogue::Open(path_));
    ASSERT_OK_AND_ASSIGN(const auto rows, catalogue.Load());
    ASSERT_THAT(rows, SizeIs(1));
    EXPECT_EQ(rows[0].meta->owner, User(4'000'000'000));
  }
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
