// Headers changed at random: nothing crashes, and whatever is taken for a
// header keeps what safetensors.h promises.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "daemon/model/model_builder.h"
#include "daemon/model/safetensors.h"
#include "hoist/shared/image_layout.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"

namespace hoistd::safetensors_mutation_test {

using ::hoistd::testing::TensorToWrite;

constexpr int kRounds = 20'000;

uint64_t Seed() {
  const char* seed = std::getenv("HOIST_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 20260101;
}

// Digits, brackets and words of the format hit more than random bytes do.
void Mutate(std::mt19937_64& random, std::string& file) {
  static const std::vector<std::string> kPieces = {"0",
                                                   "9",
                                                   "-",
                                                   "1e9",
                                                   "18446744073709551615",
                                                   "[",
                                                   "]",
                                                   "{",
                                                   "}",
                                                   ",",
                                                   ":",
                                                   "\"",
                                                   "\\",
                                                   "\\u0000",
                                                   "null",
                                                   "F4",
                                                   "F64",
                                                   "shape",
                                                   "dtype",
                                                   "data_offsets",
                                                   "__metadata__",
                                                   "\xff",
                                                   std::string(1, '\0'),
                                                   " "};
  const auto below = [&](size_t n) { return random() % n; };
  const size_t changes = 1 + below(4);
  for (size_t i = 0; i < changes && !file.empty(); ++i) {
    const size_t at = below(file.size());
    switch (below(6)) {
      case 0:
        file[at] = static_cast<char>(random());
        break;
      case 1:
        file.erase(at, 1 + below(8));
        break;
      case 2:
        file.insert(at, kPieces[below(kPieces.size())]);
        break;
      case 3:
        file[at] = static_cast<char>('0' + below(10));
        break;
      case 4:
        file.resize(at);
        break;
      case 5:
        file.insert(at, file.substr(below(file.size()), below(40)));
        break;
    }
  }
}

// Mutations seldom keep the length right; half of them get it corrected, so
// that they reach the JSON.
std::string Repaired(const std::string& file, size_t data_bytes) {
  if (file.size() < 8 + data_bytes) return file;
  const std::string json = file.substr(8, file.size() - 8 - data_bytes);
  return testing::WithLength(json) + std::string(data_bytes, 'd');
}

void ExpectSound(const FileHeader& header, uint64_t data_begin,
                 uint64_t file_bytes) {
  std::set<std::string> names;
  uint64_t end = data_begin;
  for (const FileTensor& tensor : header.tensors) {
    EXPECT_TRUE(names.insert(tensor.name).second);
    EXPECT_EQ(tensor.file_offset, end);
    EXPECT_EQ(hoist::ContiguousBytes(tensor.dtype, tensor.shape),
              std::optional<uint64_t>(tensor.bytes));
    end = tensor.file_offset + tensor.bytes;
  }
  EXPECT_EQ(end, file_bytes);
}

// What is a header makes a model, or none for a reason, whose groups hold each
// tensor once within their images.
void ExpectModelSound(const FileHeader& header) {
  BuildModelArgs args;
  args.name = "m";
  args.shards.push_back({"m.safetensors", {}, header});
  const auto model = BuildModel(std::move(args));
  if (!model.ok()) return;
  size_t tensors = 0;
  for (const auto& group : (*model)->groups) {
    EXPECT_FALSE(group->name.empty());
    tensors += group->tensors.size();
    for (const Tensor& tensor : group->tensors) {
      EXPECT_EQ(tensor.offset % hoist::kTensorAlignment, 0u);
      EXPECT_LE(tensor.offset + tensor.bytes, group->image_bytes);
    }
  }
  EXPECT_EQ(tensors, header.tensors.size());
}

TEST(SafetensorsMutation, NothingCrashesAndWhatIsTakenIsSound) {
  std::mt19937_64 random(Seed());
  SCOPED_TRACE(::testing::Message() << "HOIST_TEST_SEED=" << Seed());
  std::vector<TensorToWrite> tensors = testing::SmallTransformer(2, 4);
  tensors.push_back({"empty", hoist::DType::kF16, {0, 3}});
  tensors.push_back({"scalar", hoist::DType::kF64, {}});
  tensors.push_back({"small", hoist::DType::kF4, {6}});
  ASSERT_OK_AND_ASSIGN(const std::string whole,
                       testing::SafetensorsFile(tensors, 1, {{"k", "v"}}));
  ASSERT_OK_AND_ASSIGN(
      const uint64_t json_bytes,
      SafetensorsHeaderBytes(whole.substr(0, 8), whole.size()));
  const size_t data_bytes = whole.size() - 8 - json_bytes;
  int taken = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::string file = whole;
    if (random() % 2 == 0) {
      std::string head = file.substr(0, 8 + json_bytes);
      Mutate(random, head);
      file = Repaired(head + std::string(data_bytes, 'd'), data_bytes);
    } else {
      Mutate(random, file);
    }
    const auto bytes = SafetensorsHeaderBytes(
        absl::string_view(file).substr(0, 8), file.size());
    if (!bytes.ok()) continue;
    const auto header = ParseSafetensorsHeader(
        absl::string_view(file).substr(8, *bytes), file.size());
    if (!header.ok()) {
      ASSERT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_LT(header.status().message().size(), 600u);
      continue;
    }
    ++taken;
    ExpectSound(*header, 8 + *bytes, file.size());
    ExpectModelSound(*header);
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
  // Else the rounds tried nothing but the first check.
  EXPECT_GT(taken, kRounds / 100);
  EXPECT_LT(taken, kRounds);
}

}  // namespace hoistd::safetensors_mutation_test
