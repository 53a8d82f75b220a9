// The content that libhoist computes is the one that hoistd finds.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "tests/support/real_hoistd.h"

namespace hoistd::testing {
namespace {

using hoist::Code;
using hoist::DType;

hoist::PublishOptions GroupOf(std::vector<hoist::PublishTensor> tensors) {
  hoist::PublishOptions options;
  options.model = "model";
  options.group = "group";
  options.tensors = std::move(tensors);
  return options;
}

class ContentTest : public ::testing::Test {
 protected:
  ContentTest() : bytes_((uint64_t{33} << 20) + 5) {
    std::iota(bytes_.begin(), bytes_.end(), uint8_t{0});
  }

  // Under a name of its own.
  void ExpectSame(std::vector<hoist::PublishTensor> tensors) {
    hoist::PublishOptions options = GroupOf(std::move(tensors));
    options.group = "group " + std::to_string(++groups_);
    const auto known = hoist::GroupContent(options);
    ASSERT_TRUE(known.ok()) << known.status().message();
    const auto model = session_.Publish(options);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const auto group = model->FindGroup(options.group);
    ASSERT_TRUE(group.ok());
    EXPECT_EQ(model->group_content(*group), *known) << options.group;
    contents_.push_back(*known);
  }

  RealHoistd hoistd_{HOISTD_BINARY};
  hoist::Session session_ = hoistd_.Connect().value();
  std::vector<uint8_t> bytes_;
  std::vector<hoist::Content> contents_;
  int groups_ = 0;
};

TEST_F(ContentTest, IsHoistds) {
  const uint8_t* const data = bytes_.data();
  // Every place of the end in a block of SHA-256.
  for (int64_t size = 0; size <= 130; ++size) {
    ExpectSame({{"w", DType::kU8, {size}, data}});
  }
  // Pieces of 16 MiB.
  for (const int64_t size : {16 << 20, (16 << 20) + 1, (33 << 20) + 5}) {
    ExpectSame({{"w", DType::kU8, {size}, data}});
  }
  // Types, ranks, strides, aliases, tensors without elements.
  ExpectSame({{"a", DType::kF32, {}, data},
              {"b", DType::kBF16, {3, 0, 4}, nullptr},
              {"c", DType::kF16, {3, 4}, data, {1, 3}},
              {"alias of c", DType::kF16, {3, 4}, data, {1, 3}},
              {"d", DType::kI64, {2, 3}, data + 64, {8, 2}},
              {"e", DType::kF4, {2, 8}, data}});
  // And the model's is of them all.
  const auto model = session_.FindContent(hoist::ModelContent(contents_));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->group_count(), contents_.size());
}

TEST_F(ContentTest, WhatCannotBePublishedHasNone) {
  const auto refused = [&](hoist::PublishTensor tensor) {
    return hoist::GroupContent(GroupOf({std::move(tensor)})).status().code();
  };
  EXPECT_EQ(refused({"w", DType::kU8, {4}, nullptr}), Code::kInvalidArgument);
  EXPECT_EQ(refused({"w", DType::kU8, {-4}, bytes_.data()}),
            Code::kInvalidArgument);
  EXPECT_EQ(refused({"w", DType::kU8, {4}, bytes_.data(), {1, 1}}),
            Code::kInvalidArgument);
  hoist::PublishOptions on_device =
      GroupOf({{"w", DType::kU8, {4}, bytes_.data()}});
  on_device.on_device = 0;
  EXPECT_EQ(hoist::GroupContent(on_device).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace hoistd::testing
