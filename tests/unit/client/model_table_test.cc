#include "client/src/messages/model_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::model_table_test {

using ::testing::HasSubstr;

TEST(ModelTable, FindsGroupsAndTensorsByNameAfterAMove) {
  std::vector<GroupEntry> groups(2);
  groups[0] = {"g0", 4096, {{"t", DType::kU8, {8}, {1}, 0, 8}}};
  groups[1] = {"g1", 4096, {{"u", DType::kU8, {8}, {1}, 256, 8}}};
  Result<ModelTable> made = ModelTable::Create({}, std::move(groups));
  ASSERT_TRUE(made.ok());
  const ModelTable table = std::move(made).value();
  EXPECT_EQ(table.FindGroup("g1"), 1u);
  EXPECT_EQ(table.FindGroup("g2"), std::nullopt);
  ASSERT_TRUE(table.FindTensor("u").has_value());
  EXPECT_EQ(table.FindTensor("u")->group, 1u);
  EXPECT_EQ(table.FindTensor("v"), std::nullopt);
}

TEST(ModelTable, AMissingGroupIsAPlaceAndNothingElse) {
  const GroupEntry there = {"g", 4096, {{"t", DType::kU8, {8}, {1}, 0, 8}}};
  Result<ModelTable> made = ModelTable::Create({}, {GroupEntry(), there});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->FindGroup("g"), 1u);
  EXPECT_EQ(made->FindGroup(""), std::nullopt);

  GroupEntry with_image, with_tensor;
  with_image.image_bytes = 4096;
  with_tensor.tensors.push_back({"u", DType::kU8, {0}, {1}, 0, 0});
  for (const GroupEntry& wrong : {with_image, with_tensor}) {
    const auto refused = ModelTable::Create({}, {wrong, there});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), Code::kInternal);
    EXPECT_THAT(refused.status().message(), HasSubstr("missing group"));
  }
}

}  // namespace hoist::model_table_test
