#include "client/src/model/model_files.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::model_files_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ModelFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/hoist-files-XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name) {
    std::ofstream(folder_ + "/" + name) << name;
  }
  std::vector<std::string> Shards() {
    std::vector<std::string> names;
    Result<ModelFiles> files = OpenModelFiles(folder_);
    if (!files.ok()) return {files.status().message()};
    for (const OpenFile& file : files->shards) names.push_back(file.name);
    return names;
  }

  std::string folder_;
};

TEST_F(ModelFilesTest, AFileStandsForItself) {
  Write("w.safetensors");
  Result<ModelFiles> files = OpenModelFiles(folder_ + "/w.safetensors");
  ASSERT_TRUE(files.ok());
  ASSERT_EQ(files->shards.size(), 1u);
  EXPECT_EQ(files->shards[0].name, "w.safetensors");
  EXPECT_TRUE(files->shards[0].fd.valid());
  EXPECT_THAT(files->index, IsEmpty());
}

TEST_F(ModelFilesTest, WithAnIndexAllShardsGoAlong) {
  Write("b.safetensors");
  Write("a.safetensors");
  Write("model.safetensors.index.json");
  Write("notes.txt");
  EXPECT_THAT(Shards(), ElementsAre("a.safetensors", "b.safetensors"));
  Result<ModelFiles> files = OpenModelFiles(folder_);
  ASSERT_EQ(files->index.size(), 1u);
  EXPECT_EQ(files->index[0].name, "model.safetensors.index.json");
}

TEST_F(ModelFilesTest, WithoutOneModelSafetensorsStandsAlone) {
  Write("model.safetensors");
  Write("consolidated.safetensors");
  EXPECT_THAT(Shards(), ElementsAre("model.safetensors"));
}

TEST_F(ModelFilesTest, ElseAllAreTaken) {
  Write("two.safetensors");
  Write("one.safetensors");
  EXPECT_THAT(Shards(), ElementsAre("one.safetensors", "two.safetensors"));
}

TEST_F(ModelFilesTest, WithoutSafetensorsGgufFilesAreTaken) {
  Write("b.gguf");
  Write("a.gguf");
  EXPECT_THAT(Shards(), ElementsAre("a.gguf", "b.gguf"));
  Write("w.safetensors");
  EXPECT_THAT(Shards(), ElementsAre("w.safetensors"));
}

TEST_F(ModelFilesTest, APartOfAGgufSetBringsTheOthers) {
  Write("m-00001-of-00002.gguf");
  const std::string part = folder_ + "/m-00001-of-00002.gguf";
  EXPECT_EQ(OpenModelFiles(part).status().code(), Code::kNotFound);
  EXPECT_THAT(OpenModelFiles(part).status().message(),
              HasSubstr("m-00002-of-00002.gguf"));
  Write("m-00002-of-00002.gguf");
  Write("m-q8.gguf");
  Result<ModelFiles> files = OpenModelFiles(part);
  ASSERT_TRUE(files.ok());
  ASSERT_EQ(files->shards.size(), 2u);
  EXPECT_EQ(files->shards[1].name, "m-00002-of-00002.gguf");
}

TEST_F(ModelFilesTest, MissingAndUnfitPathsAreTyped) {
  EXPECT_EQ(OpenModelFiles(folder_ + "/nope").status().code(), Code::kNotFound);
  EXPECT_EQ(OpenModelFiles(folder_).status().code(), Code::kInvalidArgument);
  EXPECT_THAT(OpenModelFiles(folder_).status().message(),
              HasSubstr("no .safetensors or .gguf file"));
  ASSERT_EQ(mkfifo((folder_ + "/p.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(OpenModelFiles(folder_ + "/p.safetensors").status().code(),
            Code::kInvalidArgument);
}

TEST_F(ModelFilesTest, MoreShardsThanOneMessageCarriesAreRefused) {
  for (int i = 0; i < 249; ++i) Write(std::to_string(i) + ".safetensors");
  EXPECT_EQ(OpenModelFiles(folder_).status().code(), Code::kInvalidArgument);
}

}  // namespace hoist::model_files_test
