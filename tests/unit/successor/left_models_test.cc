#include "daemon/successor/left_models.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr User kAnn(7);
const ModelRoll::Models::key_type kModel = {kAnn, "m"};

SpillRecord Spilled(uint64_t id, std::string group, uint32_t index) {
  auto meta = std::make_shared<SpillMeta>();
  meta->model = "m";
  meta->owner = kAnn;
  meta->group_content = {static_cast<uint8_t>(id)};
  meta->group_index = GroupIndex(index);
  meta->group.name = std::move(group);
  return {.id = SpillId(id), .meta = std::move(meta)};
}

// Its book of models: "m" is model 5, and lacked these.
std::map<ModelId, ModelRecord> Kept(std::vector<uint32_t> missing) {
  ModelRecord record;
  record.owner = kAnn;
  record.name = "m";
  record.missing_groups = std::move(missing);
  return {{ModelId(5), record}};
}

std::vector<std::string> NamesOf(const LeftModels& left) {
  std::vector<std::string> names;
  for (const RestoredGroup& group : left.groups) {
    names.push_back(group.group->name);
  }
  return names;
}

TEST(LeftModels, AWholeModelHasItsIdAndEachGroupItsPlace) {
  const LeftModels left = FindLeft(
      {}, std::vector{Spilled(1, "b", 1), Spilled(2, "a", 0)}, {}, Kept({}));
  EXPECT_THAT(NamesOf(left), ElementsAre("a", "b"));
  for (uint32_t g = 0; g < 2; ++g) {
    EXPECT_EQ(left.groups[g].index, GroupIndex(g));
    EXPECT_EQ(left.groups[g].model_id, ModelId(5));
  }
  EXPECT_THAT(left.had, ElementsAre(Pair(kModel, 2)));
  EXPECT_THAT(left.notes, IsEmpty());
}

TEST(LeftModels, OneThatLostAGroupKeepsThePlacesAndNotTheId) {
  const LeftModels left =
      FindLeft({}, std::vector{Spilled(1, "c", 2)}, {}, Kept({}));
  EXPECT_EQ(left.groups[0].index, GroupIndex(2));
  EXPECT_EQ(left.groups[0].model_id, std::nullopt);
  EXPECT_THAT(left.had, ElementsAre(Pair(kModel, 3)));
  EXPECT_THAT(left.notes, ElementsAre(HasSubstr("without 2 of its 3 groups")));
}

// Its workers know it as it is: what it lacks, it lacked under this id.
TEST(LeftModels, OneThatLackedItAlreadyKeepsTheId) {
  const std::vector c = {Spilled(1, "c", 2)};
  const LeftModels left = FindLeft({}, c, {}, Kept({0, 1}));
  EXPECT_EQ(left.groups[0].model_id, ModelId(5));
  EXPECT_THAT(left.notes, ElementsAre(HasSubstr("without 2 of its 3 groups")));
  // "a" was there again, and is gone again.
  EXPECT_EQ(FindLeft({}, c, {}, Kept({1})).groups[0].model_id, std::nullopt);
}

// The last group leaves no gap: the store's number tells, or the keeper's book.
TEST(LeftModels, TheLastGroupsAreMissedToo) {
  const std::vector a = {Spilled(1, "a", 0)};
  const LeftModels lost = FindLeft({}, a, {{kModel, 3}}, Kept({}));
  EXPECT_THAT(lost.had, ElementsAre(Pair(kModel, 3)));
  EXPECT_EQ(lost.groups[0].model_id, std::nullopt);
  const LeftModels lacked = FindLeft({}, a, {}, Kept({1, 2}));
  EXPECT_THAT(lacked.had, ElementsAre(Pair(kModel, 3)));
  EXPECT_EQ(lacked.groups[0].model_id, ModelId(5));
}

TEST(LeftModels, AModelWithoutAnyGroupIsGone) {
  const LeftModels left = FindLeft({}, {}, {{kModel, 3}}, Kept({}));
  EXPECT_THAT(left.groups, IsEmpty());
  EXPECT_THAT(left.gone, ElementsAre(kModel));
  EXPECT_THAT(left.notes, ElementsAre(HasSubstr("all of its 3 groups")));
}

TEST(LeftModels, TwoOfOnePlaceAreBothThere) {
  const LeftModels left = FindLeft(
      {},
      std::vector{Spilled(1, "a", 0), Spilled(2, "z", 0), Spilled(3, "b", 1)},
      {}, {});
  EXPECT_THAT(NamesOf(left), ElementsAre("a", "b", "z"));
  EXPECT_EQ(left.groups[2].index, GroupIndex(2));
  EXPECT_THAT(left.had, ElementsAre(Pair(kModel, 3)));
  EXPECT_THAT(left.notes, IsEmpty());
}

TEST(LeftModels, AnImageThatLiesInBothIsOneGroup) {
  const SpillRecord a = Spilled(1, "a", 0);
  const LeftModels left =
      FindLeft(std::vector{FoundImage{.host_offset = 4096, .meta = *a.meta}},
               std::vector{a, Spilled(2, "a", 0)}, {}, {});
  ASSERT_EQ(left.groups.size(), 1u);
  EXPECT_EQ(left.groups[0].host_offset, 4096u);
  EXPECT_EQ(left.groups[0].spill, SpillId(1));
}

}  // namespace
}  // namespace hoistd
