#include "daemon/mover/content_hash.h"

#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace hoistd::content_hash_test {

Group TwoTensors(uint64_t bytes) {
  Group group;
  group.name = "g";
  group.image_bytes = bytes;
  const auto half = static_cast<int64_t>(bytes / 2);
  group.tensors = {{"a", hoist::DType::kU8, {half}, {}, 0, bytes / 2},
                   {"b", hoist::DType::kU8, {half}, {}, bytes / 2, bytes / 2}};
  return group;
}

Content Expected(const Group& group, std::span<const std::byte> image) {
  const ContentPlan plan = PlanContent(group);
  std::vector<Content> digests;
  for (const ByteRange& piece : plan.pieces) {
    digests.push_back(
        Sha256().Bytes(image.subspan(piece.offset, piece.bytes)).Finish());
  }
  return GroupContent(group, plan, digests);
}

TEST(ContentHash, IsTheSameHoweverManyHelp) {
  std::vector<std::byte> image(5 * kContentPieceBytes);
  std::mt19937_64 random(3);
  for (size_t i = 0; i < image.size(); i += 64) {
    image[i] = static_cast<std::byte>(random());
  }
  const auto group = std::make_shared<const Group>(TwoTensors(image.size()));
  for (const int helpers : {0, 1, 7}) {
    std::optional<Content> got;
    auto hash = std::make_shared<ContentHash>(
        group, image, [&got](const Content& content) { got = content; });
    EXPECT_EQ(hash->pieces(), 6u);
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < helpers; ++i) {
        threads.emplace_back([hash] { hash->Help(); });
      }
      hash->Help(/*last=*/true);
    }
    EXPECT_EQ(got, Expected(*group, image)) << helpers;
  }
}

TEST(ContentHash, ReportsAGroupWithoutBytesToo) {
  auto group = std::make_shared<Group>();
  group->tensors = {{"none", hoist::DType::kF32, {0}, {}, 0, 0}};
  std::optional<Content> got;
  ContentHash hash(group, {}, [&got](const Content& c) { got = c; });
  hash.Help(/*last=*/true);
  EXPECT_EQ(got, Expected(*group, {}));
}

}  // namespace hoistd::content_hash_test
