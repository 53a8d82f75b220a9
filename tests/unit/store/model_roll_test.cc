#include "daemon/store/model_roll.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::TempDir;

class ModelRollTest : public ::testing::Test {
 protected:
  ModelRoll Open() {
    notes_.clear();
    return ModelRoll::Open(path(), notes_);
  }
  std::string path() const { return dir_ / "models.roll"; }
  std::string Bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
  }

  const TempDir dir_;
  const User ada_{7};
  const User blue_ = *User::Tenant("blue");
  std::vector<std::string> notes_;
};

TEST_F(ModelRollTest, WhatWasSetIsThereForTheNext) {
  {
    ModelRoll roll = Open();
    EXPECT_FALSE(std::filesystem::exists(path()));
    EXPECT_OK(roll.Set(ada_, "m", 1));
    EXPECT_OK(roll.Set(ada_, "m", 2));
    EXPECT_OK(roll.Set(blue_, std::string("m\0\xff", 3), 30));
    EXPECT_OK(roll.Set(blue_, "m", 1));
    EXPECT_OK(roll.Set(blue_, "m", 0));
  }
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

TEST_F(ModelRollTest, OneThatIsCutShortHasWhatWasBeforeAndGoesOn) {
  ModelRoll whole = Open();
  EXPECT_OK(whole.Set(ada_, "a", 1));
  const size_t first = Bytes().size();
  EXPECT_OK(whole.Set(ada_, "b", 2));
  const std::string bytes = Bytes();
  for (size_t size = first + 1; size < bytes.size(); ++size) {
    SCOPED_TRACE(size);
    Write(bytes.substr(0, size));
    ModelRoll roll = Open();
    ASSERT_THAT(notes_, SizeIs(1));
    EXPECT_THAT(notes_[0], HasSubstr("cut short"));
    EXPECT_EQ(roll.models(), (ModelRoll::Models{{{ada_, "a"}, 1}}));
    EXPECT_OK(roll.Set(ada_, "c", 3));
    const ModelRoll next = Open();
    EXPECT_THAT(notes_, IsEmpty());
    EXPECT_EQ(next.models(),
              (ModelRoll::Models{{{ada_, "a"}, 1}, {{ada_, "c"}, 3}}));
  }
}

TEST_F(ModelRollTest, NoBitThatFlipsIsMisread) {
  ModelRoll written = Open();
  EXPECT_OK(written.Set(blue_, "a", 1));
  EXPECT_OK(written.Set(ada_, "b", 2));
  const std::string bytes = Bytes();
  const ModelRoll::Models whole = written.models();
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    Write(flipped);
    const ModelRoll roll = Open();
    EXPECT_THAT(notes_, SizeIs(1)) << "bit " << bit;
    for (const auto& [model, groups] : roll.models()) {
      ASSERT_TRUE(whole.contains(model)) << "bit " << bit;
      EXPECT_EQ(groups, whole.at(model)) << "bit " << bit;
    }
  }
}

TEST_F(ModelRollTest, ItMayBeWrittenForEver) {
  ModelRoll roll = Open();
  const std::string name(4096, 'n');
  for (int time = 0; time < 400; ++time) {
    ASSERT_OK(roll.Set(ada_, name, 1));
    ASSERT_OK(roll.Set(ada_, name, 0));
  }
  EXPECT_LT(Bytes().size(), 2'000'000u);
  EXPECT_OK(roll.Set(ada_, name, 5));
  EXPECT_EQ(Open().models().at({ada_, name}), 5u);
}

TEST_F(ModelRollTest, WhatCannotBeWrittenIsWrittenWithTheNext) {
  ModelRoll roll = Open();
  std::filesystem::create_directory(path());
  EXPECT_FALSE(roll.Set(ada_, "a", 1).ok());
  std::filesystem::remove(path());
  EXPECT_OK(roll.Set(ada_, "b", 2));
  EXPECT_EQ(Open().models(),
            (ModelRoll::Models{{{ada_, "a"}, 1}, {{ada_, "b"}, 2}}));
}

}  // namespace
}  // namespace hoistd
