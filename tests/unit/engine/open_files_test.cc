#include "daemon/io/open_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "daemon/engine/model_opener.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace hoistd::open_files_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;
using testing::TempDir;
using testing::WriteFile;

constexpr User kAda(1000), kBob(1001);

SourceFile Opened(const std::string& path) {
  return *SourceFile::Open(
      hoist::UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC)), path,
      {.mode = ReadMode::kBuffered});
}

TEST(OpenFiles, AnOwnersSameFileIsOpenOnceUntilTheLastUseEnds) {
  const TempDir dir;
  const std::string path = dir.path() + "/f", other = dir.path() + "/g";
  ASSERT_OK(WriteFile(path, "some"));
  ASSERT_OK(WriteFile(other, "some"));
  OpenFiles files;
  auto first = files.Share(kAda, Opened(path));
  const std::weak_ptr<const SourceFile> gone = first;
  EXPECT_EQ(files.Share(kAda, Opened(path)), first);
  EXPECT_NE(files.Share(kAda, Opened(other)), first);
  EXPECT_NE(files.Share(kBob, Opened(path)), first);
  first.reset();
  EXPECT_TRUE(gone.expired());
  EXPECT_NE(files.Share(kAda, Opened(path)), nullptr);
}

TEST(OpenFiles, AFileThatChangedIsAnother) {
  const TempDir dir;
  const std::string path = dir.path() + "/f";
  ASSERT_OK(WriteFile(path, "some"));
  OpenFiles files;
  const auto first = files.Share(kAda, Opened(path));
  ASSERT_OK(WriteFile(path, "other"));
  const auto second = files.Share(kAda, Opened(path));
  EXPECT_NE(second, first);
  EXPECT_OK(second->CheckUnchanged());
}

TEST(OpenFiles, OneThreadOfAnOwnerHasTheTurnAndOthersTheirOwn) {
  OpenFiles files;
  std::atomic<int> at_once = 0;
  std::vector<std::thread> threads;
  const OpenFiles::Turn bobs = files.TakeTurn(kBob);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) {
        const OpenFiles::Turn turn = files.TakeTurn(kAda);
        EXPECT_EQ(at_once.fetch_add(1), 0);
        at_once.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

RegisterModelArgs Shards(const TempDir& dir, int count, size_t padding) {
  RegisterModelArgs args;
  args.name = "m";
  for (int i = 0; i < count; ++i) {
    const std::string name = std::to_string(i);
    const std::string path = dir.path() + "/" + name;
    EXPECT_OK(WriteFile(
        path, testing::WithLength("{\"t" + name +
                                  "\":{\"dtype\":\"U8\",\"shape\":[0],"
                                  "\"data_offsets\":[0,0]}" +
                                  std::string(padding, ' ') + "}")));
    args.shards.push_back(
        {name, hoist::UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC))});
  }
  return args;
}

TEST(OpenModel, HeadersOfAModelAreBoundedTogether) {
  const TempDir dir;
  OpenFiles files;
  EXPECT_THAT(OpenModel(Shards(dir, 2, 70'000'000), {.owner = kAda}, files),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("as several models")));
  // The turn was given back.
  ASSERT_OK(
      OpenModel(Shards(dir, 1, kSmallHeaderBytes), {.owner = kAda}, files));
}

TEST(OpenModel, ALargeHeaderWaitsForItsOwnersTurnAlone) {
  const TempDir dir;
  OpenFiles files;
  auto turn = std::make_unique<OpenFiles::Turn>(files.TakeTurn(kAda));
  ASSERT_OK(
      OpenModel(Shards(dir, 1, kSmallHeaderBytes), {.owner = kBob}, files));
  ASSERT_OK(OpenModel(Shards(dir, 1, 0), {.owner = kAda}, files));
  std::atomic<bool> given = false;
  std::thread waits([&, args = Shards(dir, 1, kSmallHeaderBytes)]() mutable {
    EXPECT_OK(OpenModel(std::move(args), {.owner = kAda}, files));
    EXPECT_TRUE(given);
  });
  given = true;
  turn.reset();
  waits.join();
}

// A file of one tensor, behind `padding` bytes of metadata.
std::string Gguf(size_t padding) {
  return testing::GgufFile{.pairs = {testing::GgufPair(
                               "k", testing::kGgufString,
                               testing::GgufText(std::string(padding, 'p')))},
                           .tensors = {testing::GgufTensor("w", {64, 2}, 8, 0)},
                           .data_bytes = 136}
      .Whole();
}

RegisterModelArgs GgufArgs(const TempDir& dir, const std::string& file) {
  const std::string path = dir.path() + "/m.gguf";
  EXPECT_OK(WriteFile(path, file));
  RegisterModelArgs args;
  args.name = "m";
  args.shards.push_back(
      {"m.gguf", hoist::UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC))});
  return args;
}

TEST(OpenModel, AGgufHeaderOfAnyLengthIsReadToItsEnd) {
  const TempDir dir;
  OpenFiles files;
  for (const size_t padding :
       {size_t{0}, size_t{262'000}, size_t{262'144}, size_t{9'000'000}}) {
    const std::string file = Gguf(padding);
    ASSERT_OK_AND_ASSIGN(
        const OpenedModel model,
        OpenModel(GgufArgs(dir, file), {.owner = kAda}, files));
    ASSERT_EQ(model.spec->groups.size(), 1u);
    EXPECT_EQ(model.spec->groups[0]->tensors[0].bytes, 136u);
    EXPECT_EQ(model.spec->sheets[0]->runs[0].file_offset, file.size() - 136);
  }
}

TEST(OpenModel, AGgufHeaderThatIsWrongNamesItsFile) {
  const TempDir dir;
  OpenFiles files;
  std::string file = Gguf(9'000'000);
  file.resize(8'000'000);
  EXPECT_THAT(OpenModel(GgufArgs(dir, file), {.owner = kAda}, files),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("m.gguf"), HasSubstr("truncated"))));
  EXPECT_THAT(
      OpenModel(GgufArgs(dir, Gguf(100'000'000)), {.owner = kAda}, files),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("100 MB")));
}

}  // namespace hoistd::open_files_test
