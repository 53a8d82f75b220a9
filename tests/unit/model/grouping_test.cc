#include "daemon/model/grouping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace hoistd::grouping_test {

using ::hoistd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Names = std::vector<std::string>;

std::vector<NamedGroup> Group(GroupingRule rule, const Names& tensors) {
  auto groups = GroupTensors({rule, {}}, tensors);
  EXPECT_OK(groups);
  return groups.ok() ? *groups : std::vector<NamedGroup>();
}

Names GroupNames(GroupingRule rule, const Names& tensors) {
  Names names;
  for (const NamedGroup& group : Group(rule, tensors)) {
    names.push_back(group.name);
  }
  return names;
}

Names Blocks(const Names& tensors) {
  return GroupNames(GroupingRule::kBlock, tensors);
}

TEST(Grouping, BlocksOfABertRunFromEmbeddingsToPooler) {
  EXPECT_THAT(
      Blocks({"pooler.dense.weight", "encoder.layer.10.output.dense.weight",
              "encoder.layer.2.attention.self.query.weight",
              "embeddings.word_embeddings.weight", "embeddings.LayerNorm.bias",
              "encoder.layer.1.x.weight"}),
      ElementsAre("embeddings", "encoder.layer.1", "encoder.layer.2",
                  "encoder.layer.10", "pooler"));
}

TEST(Grouping, BlocksOfALlamaAreToldApartBelowModel) {
  EXPECT_THAT(Blocks({"lm_head.weight", "model.norm.weight",
                      "model.layers.0.mlp.w.weight", "model.layers.1.a.weight",
                      "model.embed_tokens.weight"}),
              ElementsAre("model.embed_tokens", "model.layers.0",
                          "model.layers.1", "lm_head", "model.norm"));
}

TEST(Grouping, EncodersRunBeforeDecoders) {
  EXPECT_THAT(
      Blocks({"decoder.block.0.w.weight", "encoder.block.1.w.weight",
              "encoder.block.0.w.weight", "shared.weight",
              "decoder.final_layer_norm.weight", "lm_head.weight"}),
      ElementsAre("shared", "encoder.block.0", "encoder.block.1",
                  "decoder.block.0", "lm_head", "decoder.final_layer_norm"));
}

TEST(Grouping, DownBlocksRunBeforeMidAndUp) {
  EXPECT_THAT(Blocks({"up_blocks.0.r.weight", "mid_block.resnets.0.w.weight",
                      "down_blocks.1.r.weight", "down_blocks.0.r.weight",
                      "conv_in.weight", "conv_out.weight"}),
              ElementsAre("conv_in", "down_blocks.0", "down_blocks.1",
                          "mid_block.resnets.0", "up_blocks.0", "conv_out"));
}

TEST(Grouping, TheFirstNumberNamesTheBlock) {
  EXPECT_THAT(Blocks({"m.layers.3.experts.0.w.weight",
                      "m.layers.3.experts.11.w.weight"}),
              ElementsAre("m.layers.3"));
}

TEST(Grouping, ANumberInFrontOfAnotherIsNoBlock) {
  EXPECT_THAT(
      Blocks({"0.auto_model.encoder.layer.0.w.weight",
              "0.auto_model.encoder.layer.1.w.weight",
              "0.auto_model.embeddings.word.weight"}),
      ElementsAre("0.auto_model.embeddings", "0.auto_model.encoder.layer.0",
                  "0.auto_model.encoder.layer.1"));
  EXPECT_THAT(Blocks({"0.weight", "0.bias", "2.weight"}),
              ElementsAre("0", "2"));
}

TEST(Grouping, AComponentIsANumberAsAWhole) {
  const std::vector<NamedGroup> groups =
      Group(GroupingRule::kBlock,
            {"a.1.w.weight", "a.10.w.weight", "a.1b.w.weight", "a.1.w.bias"});
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].name, "a.1");
  EXPECT_THAT(groups[0].tensors, ElementsAre("a.1.w.weight", "a.1.w.bias"));
  EXPECT_EQ(groups[1].name, "a.10");
}

TEST(Grouping, NumbersGoByValueHoweverLong) {
  EXPECT_THAT(
      Blocks({"a.99999999999999999999999.w.w", "a.010.w.w", "a.9.w.w",
              "a.10.w.w", "a.0.w.w"}),
      ElementsAre("a.0", "a.9", "a.10", "a.010", "a.99999999999999999999999"));
}

TEST(Grouping, ANameWithoutADotIsInModel) {
  EXPECT_THAT(Blocks({"weight", "", ".weight"}), ElementsAre("model"));
  EXPECT_THAT(GroupNames(GroupingRule::kModule, {"weight", ".x", ""}),
              ElementsAre("model"));
}

TEST(Grouping, ModulesAreTheNameWithoutItsLastComponent) {
  EXPECT_THAT(
      GroupNames(GroupingRule::kModule,
                 {"l.10.mlp.weight", "l.2.mlp.weight", "l.2.mlp.bias", "x"}),
      ElementsAre("l.2.mlp", "l.10.mlp", "model"));
}

TEST(Grouping, WholeIsOneGroupInTheGivenOrder) {
  const std::vector<NamedGroup> groups =
      Group(GroupingRule::kWhole, {"b", "a.0.c", "a"});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].name, "model");
  EXPECT_THAT(groups[0].tensors, ElementsAre("b", "a.0.c", "a"));
}

TEST(Grouping, ControlCharactersDoNotReachGroupNames) {
  EXPECT_THAT(Blocks({"a\x1b[31m.0.w"}), ElementsAre("a\\x1b[31m.0"));
}

TEST(Grouping, EveryTensorIsInOneGroupAndTheOrderDoesNotDependOnTheirs) {
  const std::vector<std::string> parts = {
      "a", "encoder", "decoder", "1", "2", "10", "01", "1x", "embed", "", "z"};
  const uint64_t seed = 7;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    Names names;
    for (int i = 0; i < 60; ++i) {
      std::string name = parts[random() % parts.size()];
      for (size_t k = random() % 5; k > 0; --k) {
        absl::StrAppend(&name, ".", parts[random() % parts.size()]);
      }
      names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    for (const GroupingRule rule :
         {GroupingRule::kBlock, GroupingRule::kModule, GroupingRule::kWhole}) {
      const Names first = GroupNames(rule, names);
      Names all;
      for (const NamedGroup& group : Group(rule, names)) {
        EXPECT_FALSE(group.tensors.empty());
        all.insert(all.end(), group.tensors.begin(), group.tensors.end());
      }
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all, names);
      Names shuffled = names;
      std::shuffle(shuffled.begin(), shuffled.end(), random);
      EXPECT_EQ(GroupNames(rule, shuffled), first);
    }
  }
}

TEST(Grouping, ExplicitGroupsAreTakenAsGiven) {
  const GroupingSpec spec = {GroupingRule::kExplicit,
                             {{"z", {"c", "a"}}, {"y", {"b"}}}};
  ASSERT_OK_AND_ASSIGN(const std::vector<NamedGroup> groups,
                       GroupTensors(spec, Names{"a", "b", "c"}));
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].name, "z");
  EXPECT_THAT(groups[0].tensors, ElementsAre("c", "a"));
  EXPECT_EQ(groups[1].name, "y");
}

TEST(Grouping, ExplicitGroupsNameEveryTensorOnce) {
  const auto check = [](std::vector<NamedGroup> groups) {
    return GroupTensors({GroupingRule::kExplicit, std::move(groups)},
                        Names{"a", "b"});
  };
  EXPECT_THAT(check({{"g", {"a"}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"b\"")));
  EXPECT_THAT(check({{"g", {"a", "b", "x"}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"x\"")));
  EXPECT_THAT(check({{"g", {"a", "b", "a"}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"a\"")));
  EXPECT_THAT(check({{"g", {"a"}}, {"h", {"b", "a"}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"a\"")));
  EXPECT_THAT(check({{"g", {"a"}}, {"g", {"b"}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("twice")));
  EXPECT_THAT(check({{"g", {"a", "b"}}, {"h", {}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"h\"")));
  EXPECT_THAT(check({{"", {"a", "b"}}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(check({}), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace hoistd::grouping_test
