// That what a model is said to cost of hoistd's memory is what it costs: the
// bytes that malloc gave away, before and after.
#include <malloc.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/node.h"
#include "daemon/model/model_builder.h"
#include "daemon/model/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"

namespace hoistd::model_memory_test {

using ::testing::AllOf;
using ::testing::Gt;
using ::testing::Lt;
using testing::TensorToWrite;

uint64_t InUse() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

BuildModelArgs ModelOf(std::vector<TensorToWrite> tensors,
                       GroupingSpec grouping) {
  ShardHeader shard;
  shard.name = "model.safetensors";
  const std::string file = *testing::SafetensorsFile(tensors, 1);
  const uint64_t json = *SafetensorsHeaderBytes(file.substr(0, 8), file.size());
  shard.header = *ParseSafetensorsHeader(file.substr(8, json), file.size());
  shard.identity = {.device = 1, .inode = 1, .size = file.size()};
  BuildModelArgs args;
  args.name = "m";
  args.shards.push_back(std::move(shard));
  args.grouping = std::move(grouping);
  return args;
}

class ModelMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    const uint64_t before = InUse();
    const std::vector<char> some(1 << 20);
    if (InUse() < before + some.size()) {
      GTEST_SKIP() << "this malloc (a sanitizer's) does not count";
    }
  }

  // Adds the model to the books; what they and it cost now, by what is said.
  static double CostByCounted(std::vector<TensorToWrite> tensors,
                              GroupingSpec grouping) {
    Node node({.host_capacity_bytes = 1 << 20}, {});
    Effects effects;
    const SessionId session = *node.OpenSession({}, absl::UnixEpoch(), effects);
    const uint64_t before = InUse();
    auto spec = *BuildModel(ModelOf(tensors, std::move(grouping)));
    const uint64_t counted = spec->book_bytes;
    EXPECT_OK(node.registry().AddModel(session, std::move(spec), std::nullopt,
                                       effects));
    const uint64_t cost = InUse() - before;
    EXPECT_EQ(node.quota().Of(User(0)).Of(Quota::kHeaderBytes), counted);
    return static_cast<double>(cost) / static_cast<double>(counted);
  }
};

std::vector<TensorToWrite> Tensors(int count, const std::string& prefix,
                                   std::vector<int64_t> shape) {
  std::vector<TensorToWrite> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back({absl::StrCat(prefix, i), hoist::DType::kU8, shape});
  }
  return tensors;
}

TEST_F(ModelMemory, OfManyTensorsInOneGroup) {
  EXPECT_THAT(CostByCounted(Tensors(50'000, "a", {0}), {GroupingRule::kWhole}),
              AllOf(Gt(0.75), Lt(1.1)));
}

TEST_F(ModelMemory, OfLongNamesAndShapes) {
  const std::string name(400, 'n');
  const std::vector<int64_t> shape(64, 0);
  EXPECT_THAT(
      CostByCounted(Tensors(5'000, name, shape), {GroupingRule::kWhole}),
      AllOf(Gt(0.75), Lt(1.1)));
}

TEST_F(ModelMemory, OfManyGroups) {
  const auto tensors = Tensors(50'000, "layers.", {1});
  EXPECT_THAT(CostByCounted(tensors, {GroupingRule::kBlock}),
              AllOf(Gt(0.75), Lt(1.1)));
}

}  // namespace hoistd::model_memory_test
