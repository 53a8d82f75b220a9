#include "daemon/store/model_roll.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd::model_roll_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TempDir;

class ModelRollTest : public ::testing::Test {
 protected:
  ModelRoll Open() {
    notes_.clear();
    auto roll = ModelRoll::Open(path(), notes_);
    EXPECT_OK(roll);
    return *std::move(roll);
  }
  std::string path() const { return dir_ / "models"; }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      files.push_back(entry.path());
    }
    return files;
  }
  static std::string Bytes(const std::string& name) {
    std::ifstream file(name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(name, std::ios::binary) << bytes;
  }

  const TempDir dir_;
  const User ada_{7};
  const User blue_ = *User::Tenant("blue");
  std::vector<std::string> notes_;
};

TEST_F(ModelRollTest, WhatWasSetIsThereForTheNext) {
  {
    ModelRoll roll = Open();
    EXPECT_OK(roll.Set(ada_, "m", 1));
    EXPECT_OK(roll.Set(ada_, "m", 2));
    EXPECT_OK(roll.Set(blue_, std::string("m\0\xff", 3), 30));
    EXPECT_OK(roll.Set(blue_, "m", 1));
    EXPECT_OK(roll.Set(blue_, "m", 0));
  }
  EXPECT_THAT(Files(), SizeIs(2));
  const ModelRoll roll = Open();
  EXPECT_THAT(notes_, IsEmpty());
  const ModelRoll::Models want = {{{ada_, "m"}, 2},
                                  {{blue_, std::string("m\0\xff", 3)}, 30}};
  EXPECT_EQ(roll.models(), want);
}

// What is missing is missed until it is there again.
TEST_F(ModelRollTest, FewerGroupsChangeNothingUntilTheModelIsForgotten) {
  ModelRoll roll = Open();
  EXPECT_OK(roll.Set(ada_, "m", 30));
  EXPECT_OK(roll.Set(ada_, "m", 23));
  EXPECT_EQ(Open().models().at({ada_, "m"}), 30u);
  EXPECT_OK(roll.Set(ada_, "m", 0));
  EXPECT_OK(roll.Set(ada_, "m", 23));
  EXPECT_EQ(Open().models().at({ada_, "m"}), 23u);
}

// Each group that is missing keeps a place of hoistd's memory.
TEST_F(ModelRollTest, MoreGroupsThanAModelMayHaveMakeNoSense) {
  const RollEntry most = {{ada_, "m"}, 1'000'000};
  EXPECT_TRUE(DecodeRollFile(EncodeRollFile(most)).has_value());
  const RollEntry more = {{ada_, "m"}, 1'000'001};
  EXPECT_FALSE(DecodeRollFile(EncodeRollFile(more)).has_value());
}

TEST_F(ModelRollTest, OneThatIsCutShortIsNamedAndTheOthersAreThere) {
  ModelRoll whole = Open();
  EXPECT_OK(whole.Set(ada_, "a", 1));
  const std::string first = Files()[0];
  EXPECT_OK(whole.Set(ada_, "b", 2));
  const std::string bytes = Bytes(first);
  for (size_t size = 0; size < bytes.size(); ++size) {
    SCOPED_TRACE(size);
    Write(first, bytes.substr(0, size));
    ModelRoll roll = Open();
    ASSERT_THAT(notes_, SizeIs(1));
    EXPECT_THAT(notes_[0], HasSubstr("is damaged"));
    EXPECT_EQ(roll.models(), (ModelRoll::Models{{{ada_, "b"}, 2}}));
    const ModelRoll next = Open();
    EXPECT_THAT(notes_, IsEmpty());
  }
}

TEST_F(ModelRollTest, NoBitThatFlipsIsMisread) {
  ModelRoll written = Open();
  EXPECT_OK(written.Set(blue_, "a", 1));
  const std::string name = Files()[0];
  const std::string bytes = Bytes(name);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    Write(name, flipped);
    const ModelRoll roll = Open();
    EXPECT_THAT(notes_, SizeIs(1)) << "bit " << bit;
    EXPECT_THAT(roll.models(), IsEmpty()) << "bit " << bit;
  }
}

TEST_F(ModelRollTest, AnotherModelsFileIsNotTakenForThisOnes) {
  ModelRoll roll = Open();
  EXPECT_OK(roll.Set(ada_, "a", 1));
  const std::string first = Files()[0];
  const std::string bytes = Bytes(first);
  EXPECT_OK(roll.Set(ada_, "a", 0));
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_OK(roll.Set(ada_, "b", 2));
  Write(Files()[0], bytes);
  EXPECT_THAT(Open().models(), IsEmpty());
  EXPECT_THAT(notes_, SizeIs(1));
}

// Stopped before the rename.
TEST_F(ModelRollTest, AFileThatHadNotItsNameYetIsSweptAndTheOldOneCounts) {
  {
    ModelRoll roll = Open();
    EXPECT_OK(roll.Set(ada_, "a", 1));
    const std::string name = Files()[0];
    const std::string bytes = Bytes(name);
    EXPECT_OK(roll.Set(ada_, "a", 2));
    std::filesystem::rename(name, name + ".new");
    Write(name, bytes);
  }
  EXPECT_EQ(Open().models(), (ModelRoll::Models{{{ada_, "a"}, 1}}));
  EXPECT_THAT(notes_, IsEmpty());
  EXPECT_THAT(Files(), SizeIs(1));
}

TEST_F(ModelRollTest, WhatCannotBeWrittenIsWrittenWithTheNext) {
  ModelRoll roll = Open();
  EXPECT_OK(roll.Set(ada_, "a", 1));
  EXPECT_OK(roll.Set(ada_, "b", 1));
  for (const std::string& name : Files()) {
    std::filesystem::create_directory(name + ".new");
  }
  EXPECT_FALSE(roll.Set(ada_, "a", 2).ok());
  EXPECT_FALSE(roll.Set(ada_, "b", 2).ok());
  EXPECT_EQ(roll.models().at({ada_, "b"}), 2u);
  for (const std::string& name : Files()) {
    if (std::filesystem::is_directory(name)) std::filesystem::remove(name);
  }
  EXPECT_OK(roll.Set(ada_, "c", 3));
  EXPECT_EQ(Open().models(),
            (ModelRoll::Models{
                {{ada_, "a"}, 2}, {{ada_, "b"}, 2}, {{ada_, "c"}, 3}}));
}

}  // namespace hoistd::model_roll_test
