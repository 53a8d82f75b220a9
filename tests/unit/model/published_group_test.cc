#include "daemon/model/published_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "hoist/shared/image_layout.h"
#include "tests/support/status_matchers.h"

namespace hoistd::published_group_test {

using ::hoistd::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kF32 = hoist::DType::kF32;
constexpr auto kBad = absl::StatusCode::kInvalidArgument;

Group Good() {
  Group group;
  group.name = "g";
  group.image_bytes = 8192;
  group.tensors = {{"a", kF32, {2, 3}, {}, 0, 24},
                   {"b", kF32, {4}, {}, 256, 16},
                   {"tied", kF32, {2, 3}, {}, 0, 24},
                   {"column", kF32, {2}, {3}, 4, 16},
                   {"broadcast", kF32, {1000}, {0}, 256, 4},
                   {"empty", kF32, {0, 7}, {}, 8192, 0}};
  return group;
}

TEST(PublishedGroup, ViewsTiedAndEmptyTensorsAreTaken) {
  ASSERT_OK_AND_ASSIGN(const auto group, CheckPublishedGroup(Good()));
  EXPECT_EQ(group->tensors.size(), 6u);
  EXPECT_EQ(group->image_bytes, 8192u);
}

TEST(PublishedGroup, SourceRunsOfAClientAreDropped) {
  Group group = Good();
  group.runs.push_back({{0, 0, 24}, 0});
  ASSERT_OK_AND_ASSIGN(const auto checked, CheckPublishedGroup(group));
  EXPECT_TRUE(checked->runs.empty());
}

struct Break {
  const char* what;
  std::function<void(Group&)> apply;
};

TEST(PublishedGroup, EveryBrokenRuleIsRefused) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const std::vector<Break> breaks = {
      {"no name", [](Group& g) { g.name.clear(); }},
      {"control in name", [](Group& g) { g.name = "a\nb"; }},
      {"name not UTF-8", [](Group& g) { g.name = "\xff"; }},
      {"no tensors", [](Group& g) { g.tensors.clear(); }},
      {"image not whole pages", [](Group& g) { g.image_bytes = 8191; }},
      {"image too large",
       [](Group& g) { g.image_bytes = hoist::kMaxImageBytes + 4096; }},
      {"name twice", [](Group& g) { g.tensors[1].name = "a"; }},
      {"tensor without name", [](Group& g) { g.tensors[1].name = ""; }},
      {"NUL in tensor's name",
       [](Group& g) { g.tensors[1].name = std::string("a\0", 2); }},
      {"no dtype",
       [](Group& g) { g.tensors[0].dtype = hoist::DType::kUnspecified; }},
      {"dtype beyond the table",
       [](Group& g) { g.tensors[0].dtype = static_cast<hoist::DType>(200); }},
      {"negative dimension", [](Group& g) { g.tensors[1].shape = {-4}; }},
      {"negative stride", [](Group& g) { g.tensors[1].strides = {-1}; }},
      {"strides for other dimensions",
       [](Group& g) {
         g.tensors[1].strides = {1, 1};
       }},
      {"shape overflows",
       [](Group& g) {
         g.tensors[1].shape = {kHuge, kHuge};
       }},
      {"strides overflow",
       [](Group& g) {
         g.tensors[1].shape = {kHuge, kHuge};
         g.tensors[1].strides = {kHuge, kHuge};
       }},
      {"span overflows in bytes",
       [](Group& g) {
         g.tensors[1].shape = {kHuge};
         g.tensors[1].strides = {1};
       }},
      {"bytes too few", [](Group& g) { g.tensors[1].bytes = 15; }},
      {"past the image", [](Group& g) { g.tensors[1].offset = 8192 - 12; }},
      {"far past the image",
       [](Group& g) { g.tensors[1].offset = UINT64_MAX - 3; }},
      {"bytes wrap", [](Group& g) { g.tensors[1].bytes = UINT64_MAX; }},
      {"odd offset", [](Group& g) { g.tensors[1].offset = 258; }},
      {"65 dimensions", [](Group& g) { g.tensors[1].shape.assign(65, 1); }},
      {"strided sub-byte tensor",
       [](Group& g) {
         g.tensors[1] = {"b", hoist::DType::kF4, {4}, {1}, 256, 2};
       }},
      {"half a byte",
       [](Group& g) {
         g.tensors[1] = {"b", hoist::DType::kF4, {3}, {}, 256, 2};
       }},
  };
  for (const Break& rule : breaks) {
    Group group = Good();
    rule.apply(group);
    EXPECT_THAT(CheckPublishedGroup(group), StatusIs(kBad)) << rule.what;
  }
}

TEST(PublishedGroup, AHundredThousandTensorsAndNoMore) {
  Group group;
  group.name = "g";
  group.image_bytes = 4096;
  for (size_t i = 0; i < kMaxTensorsPerGroup; ++i) {
    group.tensors.push_back({absl::StrCat(i), kF32, {}, {}, 0, 4});
  }
  EXPECT_OK(CheckPublishedGroup(group));
  group.tensors.push_back({"one more", kF32, {}, {}, 0, 4});
  EXPECT_THAT(CheckPublishedGroup(group), StatusIs(kBad));
}

Content ContentOf(const Group& group, const Content& bytes = {1, 2, 3}) {
  const ContentPlan plan = PlanContent(group);
  return GroupContent(group, plan,
                      std::vector<Content>(plan.pieces.size(), bytes));
}

TEST(GroupContent, DependsOnTheTensorsAndTheirBytes) {
  const Content same = ContentOf(Good());
  EXPECT_EQ(ContentOf(Good()), same);
  EXPECT_NE(ContentOf(Good(), Content{1, 2, 4}), same);
  const std::vector<std::function<void(Group&)>> changes = {
      [](Group& g) { g.name = "h"; },
      [](Group& g) { g.tensors.pop_back(); },
      [](Group& g) { g.tensors[0].name = "A"; },
      [](Group& g) { g.tensors[0].dtype = hoist::DType::kI32; },
      [](Group& g) {
        g.tensors[0].shape = {3, 2};
      },
      [](Group& g) {
        g.tensors[0].strides = {1, 2};
      },
      [](Group& g) { g.tensors[0].bytes = 25; },
      [](Group& g) { std::swap(g.tensors[0], g.tensors[1]); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    Group group = Good();
    changes[i](group);
    EXPECT_NE(ContentOf(group), same) << "change " << i;
  }
}

TEST(GroupContent, WhereTheTensorsLieInTheImageDoesNotMatter) {
  Group moved = Good();
  moved.image_bytes += 4096;
  for (Tensor& tensor : moved.tensors) tensor.offset += 512;
  EXPECT_EQ(ContentOf(moved), ContentOf(Good()));
  Group spelt = Good();
  spelt.tensors[0].strides = {3, 1};  // Those of its shape, {2, 3}.
  EXPECT_EQ(ContentOf(spelt), ContentOf(Good()));
}

TEST(GroupContent, TheSameBytesAreHashedOnceHoweverOftenTheyAreNamed) {
  Group group;
  group.name = "g";
  group.image_bytes = 3 * kContentPieceBytes;
  const auto bytes = static_cast<int64_t>(group.image_bytes);
  for (int i = 0; i < 1000; ++i) {
    group.tensors.push_back({absl::StrCat(i),
                             hoist::DType::kU8,
                             {bytes},
                             {},
                             0,
                             group.image_bytes});
  }
  EXPECT_EQ(PlanContent(group).pieces.size(), 3u);
}

TEST(GroupContent, OverlapsCostNoMoreThanTheImage) {
  Group group;
  group.name = "g";
  group.image_bytes = 3 * kContentPieceBytes;
  const auto bytes = static_cast<int64_t>(kContentPieceBytes);
  for (uint64_t i = 0; i < 1000; ++i) {
    group.tensors.push_back({absl::StrCat(i),
                             hoist::DType::kU8,
                             {bytes},
                             {},
                             i,
                             kContentPieceBytes});
  }
  EXPECT_EQ(PlanContent(group).pieces.size(), 3u);
  Group moved = group;
  std::swap(moved.tensors[0].offset, moved.tensors[1].offset);
  EXPECT_NE(ContentOf(moved), ContentOf(group));
}

std::shared_ptr<const Group> Named(const std::string& name) {
  Group group = Good();
  group.name = name;
  return std::make_shared<const Group>(group);
}

absl::StatusOr<std::shared_ptr<const ModelSpec>> Append(
    const ModelSpec& model, std::shared_ptr<const Group> group,
    const Content& content) {
  const GroupIndex end(static_cast<uint32_t>(model.groups.size()));
  return WithGroup(model, end, std::move(group), content);
}

TEST(WithGroup, GrowsACopyAndLeavesTheOldModel) {
  ModelSpec empty;
  empty.name = "m";
  empty.published = true;
  ASSERT_OK_AND_ASSIGN(const auto one, Append(empty, Named("a"), {1}));
  ASSERT_OK_AND_ASSIGN(const auto two, Append(*one, Named("b"), {2}));
  EXPECT_EQ(empty.groups.size(), 0u);
  EXPECT_EQ(one->groups.size(), 1u);
  EXPECT_EQ(two->groups.size(), 2u);
  EXPECT_EQ(two->image_bytes, 2 * 8192u);
  EXPECT_EQ(two->tensors, 12u);
  EXPECT_EQ(two->group_contents.size(), 2u);
  EXPECT_NE(ContentOf(*one), ContentOf(*two));
  EXPECT_EQ(FindGroup(*two, "b"), GroupIndex(1));
}

TEST(WithGroup, TheContentIsThatOfTheGroupsInAnyOrder) {
  ModelSpec empty;
  empty.published = true;
  ASSERT_OK_AND_ASSIGN(const auto a, Append(empty, Named("a"), {1}));
  ASSERT_OK_AND_ASSIGN(const auto ab, Append(*a, Named("b"), {2}));
  ASSERT_OK_AND_ASSIGN(const auto b, Append(empty, Named("b"), {2}));
  ASSERT_OK_AND_ASSIGN(const auto ba, Append(*b, Named("a"), {1}));
  ASSERT_OK_AND_ASSIGN(const auto again, Append(*a, Named("b"), {2}));
  EXPECT_EQ(ContentOf(*ab), ContentOf(*again));
  EXPECT_EQ(ContentOf(*ab), ContentOf(*ba));
  EXPECT_NE(ContentOf(*ab), ContentOf(*a));
}

TEST(WithGroup, TakesNoModelOfFiles) {
  ModelSpec model;
  model.name = "m";
  EXPECT_THAT(Append(model, Named("a"), {1}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(WithGroup, AMissingGroupsPlaceIsTakenOnce) {
  ModelSpec model;
  model.published = true;
  const auto padded = WithPlaces(model, 2);
  EXPECT_EQ(padded->image_bytes, 0u);
  EXPECT_EQ(padded->book_bytes, 2 * BookBytesOf(*padded->groups[0]));
  EXPECT_NE(ContentOf(*padded), ContentOf(model));
  ASSERT_OK_AND_ASSIGN(const auto last,
                       WithGroup(*padded, GroupIndex(2), Named("c"), {3}));
  ASSERT_OK_AND_ASSIGN(const auto first,
                       WithGroup(*last, GroupIndex(0), Named("a"), {1}));
  EXPECT_EQ(FindGroup(*first, "a"), GroupIndex(0));
  EXPECT_THAT(WithGroup(*first, GroupIndex(2), Named("d"), {4}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("\"c\"")));
  EXPECT_THAT(WithGroup(*first, GroupIndex(4), Named("d"), {4}),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("3 groups")));
  ASSERT_OK_AND_ASSIGN(const auto whole,
                       WithGroup(*first, GroupIndex(1), Named("b"), {2}));
  EXPECT_EQ(ContentOf(*whole), ModelContent({{1}, {2}, {3}}));
  EXPECT_EQ(whole->book_bytes, 3 * BookBytesOf(*whole->groups[0]));
  EXPECT_EQ(ContentOf(*WithPlaces(*whole, 1)), ContentOf(*whole));
}

}  // namespace hoistd::published_group_test
