#include "daemon/model/model_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "daemon/model/safetensors.h"
#include "hoist/shared/image_layout.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"

namespace hoistd::model_builder_test {

using ::hoistd::testing::StatusIs;
using ::hoistd::testing::TensorToWrite;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ModelPtr = std::shared_ptr<const ModelSpec>;

constexpr auto kU8 = hoist::DType::kU8;

ShardHeader Shard(const std::string& name,
                  const std::vector<TensorToWrite>& tensors,
                  uint64_t inode = 1) {
  ShardHeader shard;
  shard.name = name;
  const std::string file = *testing::SafetensorsFile(tensors, 1);
  const uint64_t json = *SafetensorsHeaderBytes(file.substr(0, 8), file.size());
  shard.header = *ParseSafetensorsHeader(file.substr(8, json), file.size());
  shard.identity = {.device = 1,
                    .inode = inode,
                    .size = file.size(),
                    .mtime_ns = 5,
                    .ctime_ns = 6};
  return shard;
}

BuildModelArgs TwoShards() {
  BuildModelArgs args;
  args.name = "org/model";
  args.shards.push_back(Shard(
      "1", {{"l.0.a", kU8, {512}}, {"l.0.b", kU8, {100}}, {"l.1.a", kU8, {7}}},
      1));
  args.shards.push_back(Shard(
      "2", {{"l.0.c", kU8, {300}}, {"l.0.e", kU8, {0}}, {"l.1.b", kU8, {256}}},
      2));
  return args;
}

// Makes the image of what `runs` say of the files' sheets and compares every
// tensor of the group with what was written.
void ExpectRunsGiveTheTensors(const Group& group, const ModelSpec& model,
                              const std::vector<std::string>& contents) {
  std::string image(group.image_bytes, '\0');
  uint64_t end = 0;
  for (const SourceRun& run : group.runs) {
    ASSERT_GT(run.from.bytes, 0u);
    ASSERT_GE(run.image_offset, end) << "in image order, not overlapping";
    end = run.image_end();
    ASSERT_LE(end, group.image_bytes);
    const std::string& file = contents.at(run.from.file);
    for (const Sheet::Run& part : RunsOf(model.sheets, run.from)) {
      ASSERT_LE(part.file_offset + part.bytes, file.size());
      image.replace(run.image_offset + (part.offset - run.from.offset),
                    part.bytes, file, part.file_offset, part.bytes);
    }
  }
  for (const Tensor& tensor : group.tensors) {
    EXPECT_EQ(image.substr(tensor.offset, tensor.bytes),
              testing::TensorBytes(3, tensor.name, tensor.bytes))
        << model.name << " " << tensor.name;
  }
}

TEST(ModelBuilder, RunsBringEveryTensorsBytesToItsPlace) {
  const std::vector<TensorToWrite> all = testing::SmallTransformer(12, 24);
  for (const size_t shards : {1u, 2u, 5u}) {
    BuildModelArgs args;
    args.name = "m";
    std::vector<std::string> contents;
    const size_t each = (all.size() + shards - 1) / shards;
    for (size_t i = 0; i < shards; ++i) {
      const size_t begin = i * each;
      const size_t count = std::min(each, all.size() - begin);
      const std::vector<TensorToWrite> part(all.begin() + begin,
                                            all.begin() + begin + count);
      args.shards.push_back(Shard(std::to_string(i), part, i));
      contents.push_back(*testing::SafetensorsFile(part, 3));
    }
    ASSERT_OK_AND_ASSIGN(const ModelPtr model, BuildModel(args));
    EXPECT_EQ(model->tensors, all.size());
    uint64_t image_bytes = 0;
    for (const auto& group : model->groups) {
      image_bytes += group->image_bytes;
      ExpectRunsGiveTheTensors(*group, *model, contents);
    }
    EXPECT_EQ(model->image_bytes, image_bytes);
  }
}

TEST(ModelBuilder, TensorsLieInFileOrderAndNeighboursAreOneRun) {
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, BuildModel(TwoShards()));
  ASSERT_EQ(model->groups.size(), 2u);
  const Group& group = *model->groups[0];
  EXPECT_EQ(group.name, "l.0");
  ASSERT_EQ(group.tensors.size(), 4u);
  EXPECT_EQ(group.tensors[0].name, "l.0.a");
  EXPECT_EQ(group.tensors[1].name, "l.0.b");
  EXPECT_EQ(group.tensors[2].name, "l.0.c");
  EXPECT_EQ(group.tensors[1].offset, 512u);
  EXPECT_EQ(group.tensors[2].offset, 768u);
  // a and b touch in file and image; c is in another file.
  ASSERT_EQ(group.runs.size(), 2u);
  EXPECT_EQ(group.runs[0].from.bytes, 612u);
  EXPECT_EQ(group.runs[1].from.file, 1u);
  EXPECT_EQ(group.runs[1].from.bytes, 300u);
  EXPECT_EQ(group.image_bytes, 4096u);
}

TEST(ModelBuilder, TheOrderOfFilesDoesNotMatter) {
  BuildModelArgs turned = TwoShards();
  std::reverse(turned.shards.begin(), turned.shards.end());
  ASSERT_OK_AND_ASSIGN(const ModelPtr a, BuildModel(TwoShards()));
  ASSERT_OK_AND_ASSIGN(const ModelPtr b, BuildModel(turned));
  EXPECT_EQ(a->content, b->content);
  EXPECT_EQ(a->files, b->files);
  EXPECT_EQ(a->identities, b->identities);
}

TEST(ModelBuilder, AnyOtherFileOrGroupingGivesAnotherFingerprint) {
  ASSERT_OK_AND_ASSIGN(const ModelPtr same, BuildModel(TwoShards()));
  const std::vector<std::function<void(BuildModelArgs&)>> changes = {
      [](BuildModelArgs& a) { ++a.shards[1].identity.mtime_ns; },
      [](BuildModelArgs& a) { ++a.shards[1].identity.ctime_ns; },
      [](BuildModelArgs& a) { ++a.shards[0].identity.inode; },
      [](BuildModelArgs& a) { ++a.shards[0].identity.device; },
      [](BuildModelArgs& a) { ++a.shards[0].identity.size; },
      [](BuildModelArgs& a) { a.shards[0].identity.header_hash[3] ^= 1; },
      [](BuildModelArgs& a) { a.grouping.rule = GroupingRule::kWhole; },
      [](BuildModelArgs& a) { a.shards[0].header.tensors[0].name += "x"; },
      [](BuildModelArgs& a) {
        a.shards[0].header.tensors[0].dtype = hoist::DType::kI8;
      }};
  for (size_t i = 0; i < changes.size(); ++i) {
    BuildModelArgs args = TwoShards();
    changes[i](args);
    ASSERT_OK_AND_ASSIGN(const ModelPtr other, BuildModel(args));
    EXPECT_NE(other->content, same->content) << "change " << i;
  }
  BuildModelArgs renamed = TwoShards();
  renamed.name = "other";
  ASSERT_OK_AND_ASSIGN(const ModelPtr other, BuildModel(renamed));
  EXPECT_EQ(other->content, same->content) << "a name is no weight";
}

TEST(ModelBuilder, ExplicitGroupsKeepTheirOrder) {
  BuildModelArgs args;
  args.name = "m";
  args.shards.push_back(
      Shard("1", {{"a", kU8, {256}}, {"b", kU8, {256}}, {"c", kU8, {256}}}));
  args.grouping = {GroupingRule::kExplicit, {{"g", {"c", "a", "b"}}}};
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, BuildModel(args));
  ASSERT_EQ(model->groups.size(), 1u);
  EXPECT_EQ(model->groups[0]->tensors[0].name, "c");
  ASSERT_EQ(model->groups[0]->runs.size(), 2u) << "a and b are one run";
}

TEST(ModelBuilder, DuplicateTensorsAndFilesAreRefused) {
  BuildModelArgs args = TwoShards();
  args.shards.push_back(Shard("3", {{"l.1.a", kU8, {7}}}));
  EXPECT_THAT(BuildModel(args), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("\"l.1.a\"")));
  args = TwoShards();
  args.shards.push_back(Shard("1", {{"x", kU8, {7}}}));
  EXPECT_THAT(BuildModel(args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("twice")));
}

TEST(ModelBuilder, AModelNeedsTensorsAndAName) {
  BuildModelArgs args;
  args.name = "m";
  EXPECT_THAT(BuildModel(args), StatusIs(absl::StatusCode::kInvalidArgument));
  args.shards.push_back(Shard("1", {}));
  EXPECT_THAT(BuildModel(args), StatusIs(absl::StatusCode::kInvalidArgument));
  for (const char* name : {"", "a\nb", "/x", "\xff"}) {
    args = TwoShards();
    args.name = name;
    EXPECT_THAT(BuildModel(args), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(ModelBuilder, JoinedTensorsAreGroupedInTheirPartsPlace) {
  BuildModelArgs args = TwoShards();
  args.joined = {{"l.0.ac", {2, 406}, {{"l.0.c"}, {"l.0.a"}}}};
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, BuildModel(args));
  EXPECT_EQ(model->tensors, 5u);
  const Group& group = *model->groups[0];
  EXPECT_EQ(group.name, "l.0");
  ASSERT_EQ(group.tensors.size(), 3u);
  EXPECT_EQ(group.tensors[0].name, "l.0.b");
  EXPECT_EQ(group.tensors[1].name, "l.0.ac");
  EXPECT_EQ(group.tensors[1].offset, 256u);
  EXPECT_EQ(group.tensors[1].bytes, 812u);
  // b, then c of the second file, then a of the first.
  ASSERT_EQ(group.runs.size(), 3u);
  EXPECT_EQ(group.runs[1].from.file, 1u);
  EXPECT_EQ(group.runs[1].image_offset, 256u);
  EXPECT_EQ(group.runs[1].from.bytes, 300u);
  EXPECT_EQ(group.runs[2].from.file, 0u);
  EXPECT_EQ(group.runs[2].image_offset, 556u);
  EXPECT_EQ(group.runs[2].from.bytes, 512u);
}

TEST(ModelBuilder, ExplicitGroupsNameJoinedTensorsAndNotTheirParts) {
  BuildModelArgs args;
  args.name = "m";
  args.shards.push_back(
      Shard("1", {{"a", kU8, {4}}, {"b", kU8, {4}}, {"c", kU8, {4}}}));
  args.joined = {{"ab", {8}, {{"a"}, {"b"}}}};
  args.grouping = {GroupingRule::kExplicit, {{"g", {"ab", "c"}}}};
  EXPECT_OK(BuildModel(args));
  args.grouping.groups = {{"g", {"ab", "a", "c"}}};
  EXPECT_THAT(BuildModel(args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"a\"")));
}

TEST(ModelBuilder, OtherPartsGiveAnotherFingerprint) {
  BuildModelArgs args;
  args.name = "m";
  args.shards.push_back(Shard("1", {{"a", kU8, {4}}, {"b", kU8, {4}}}));
  args.joined = {{"x", {8}, {{"a"}, {"b"}}}};
  ASSERT_OK_AND_ASSIGN(const ModelPtr one, BuildModel(args));
  args.joined = {{"x", {8}, {{"b"}, {"a"}}}};
  ASSERT_OK_AND_ASSIGN(const ModelPtr other, BuildModel(args));
  EXPECT_NE(one->content, other->content);
}

TEST(ModelBuilder, OverLongGroupNamesAreRefusedWithAWayOut) {
  BuildModelArgs args;
  args.name = "m";
  args.shards.push_back(Shard("1", {{std::string(600, 'n') + ".w", kU8, {1}}}));
  EXPECT_THAT(BuildModel(args), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("explicit")));
  args.grouping.rule = GroupingRule::kWhole;
  EXPECT_OK(BuildModel(args));
}

TEST(ModelBuilder, TheIndexChoosesShardsAndMustAgreeWithThem) {
  BuildModelArgs args = TwoShards();
  args.index = SafetensorsIndex{{{"l.0.a", "1"}, {"l.1.b", "2"}}};
  ASSERT_OK_AND_ASSIGN(const ModelPtr all, BuildModel(args));
  EXPECT_EQ(all->tensors, 6u) << "tensors it leaves out are kept";

  args.index = SafetensorsIndex{{{"l.0.a", "1"}}};
  ASSERT_OK_AND_ASSIGN(const ModelPtr one, BuildModel(args));
  EXPECT_THAT(one->files, ElementsAre("1"));

  args.index = SafetensorsIndex{{{"l.0.a", "2"}}};
  EXPECT_THAT(BuildModel(args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("l.0.a")));
  args.index = SafetensorsIndex{{{"l.0.a", "3"}}};
  EXPECT_THAT(BuildModel(args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"3\"")));
  args.index = SafetensorsIndex{{{"x", "1"}}};
  EXPECT_THAT(BuildModel(args),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"x\"")));
}

TEST(ModelBuilder, AGroupOfEmptyTensorsHasNoBytesAndNoRuns) {
  BuildModelArgs args;
  args.name = "m";
  args.shards.push_back(Shard("1", {{"a", kU8, {0}}, {"b", kU8, {3, 0}}}));
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, BuildModel(args));
  EXPECT_EQ(model->groups[0]->image_bytes, 0u);
  EXPECT_TRUE(model->groups[0]->runs.empty());
}

TEST(Model, GroupsAreFoundByNameAndFingerprintsShownInHex) {
  ASSERT_OK_AND_ASSIGN(const ModelPtr model, BuildModel(TwoShards()));
  EXPECT_EQ(FindGroup(*model, "l.1"), GroupIndex(1));
  EXPECT_EQ(FindGroup(*model, "l.2"), std::nullopt);
  Fingerprint fingerprint = {};
  fingerprint[0] = 0xab;
  fingerprint[15] = 0x01;
  EXPECT_EQ(FingerprintHex(fingerprint), "ab000000000000000000000000000001");
}

}  // namespace hoistd::model_builder_test
