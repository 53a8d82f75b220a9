#include "daemon/convert/types_convert.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "daemon/model/model.h"
#include "daemon/model/published_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/shared/image_layout.h"
#include "tests/support/status_matchers.h"

namespace hoistd::types_convert_test {

using ::hoistd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

pb::Group GoodGroup() {
  pb::Group group;
  group.set_name("encoder.layer.0");
  group.set_image_bytes(4096);
  pb::Tensor* tensor = group.add_tensors();
  tensor->set_name("w");
  tensor->set_dtype(pb::DTYPE_BF16);
  tensor->add_shape(3);
  tensor->add_shape(4);
  tensor->set_size_bytes(24);
  return group;
}

TEST(GroupFromProto, KeepsWhatIsThere) {
  pb::Group in = GoodGroup();
  in.mutable_tensors(0)->add_strides(4);
  in.mutable_tensors(0)->add_strides(1);
  in.mutable_tensors(0)->set_offset_bytes(256);
  in.mutable_tensors(0)->set_block_type("Q4_K");  // hoistd's to say.
  ASSERT_OK_AND_ASSIGN(const Group group, GroupFromProto(in));
  EXPECT_EQ(group.name, "encoder.layer.0");
  EXPECT_EQ(group.image_bytes, 4096u);
  ASSERT_EQ(group.tensors.size(), 1u);
  EXPECT_EQ(group.tensors[0].name, "w");
  EXPECT_EQ(group.tensors[0].dtype, hoist::DType::kBF16);
  EXPECT_THAT(group.tensors[0].shape, ElementsAre(3, 4));
  EXPECT_THAT(group.tensors[0].strides, ElementsAre(4, 1));
  EXPECT_EQ(group.tensors[0].offset, 256u);
  EXPECT_EQ(group.tensors[0].bytes, 24u);
  EXPECT_EQ(group.tensors[0].block_type, "");
}

TEST(GroupFromProto, RefusesTensorsOutsideTheImageWithoutWrapping) {
  pb::Group in = GoodGroup();
  in.mutable_tensors(0)->set_offset_bytes(4096 - 23);
  EXPECT_THAT(GroupFromProto(in), StatusIs(kInvalid, HasSubstr("outside")));
  in.mutable_tensors(0)->set_offset_bytes(kMax - 7);
  EXPECT_THAT(GroupFromProto(in), StatusIs(kInvalid, HasSubstr("outside")));
  in.mutable_tensors(0)->set_offset_bytes(8);
  in.mutable_tensors(0)->set_size_bytes(kMax);
  EXPECT_THAT(GroupFromProto(in), StatusIs(kInvalid, HasSubstr("outside")));
}

TEST(GroupFromProto, RefusesImagesThatAreNotWholePagesOrTooLarge) {
  pb::Group in = GoodGroup();
  in.set_image_bytes(4095);
  EXPECT_THAT(GroupFromProto(in), StatusIs(kInvalid, HasSubstr("multiple")));
  in.set_image_bytes(hoist::kMaxImageBytes + 4096);
  EXPECT_THAT(GroupFromProto(in), StatusIs(kInvalid, HasSubstr("at most")));
  in.set_image_bytes(hoist::kMaxImageBytes);
  EXPECT_OK(GroupFromProto(in));
}

TEST(GroupFromProto, RefusesDtypesThatAreNone) {
  pb::Group in = GoodGroup();
  for (int dtype : {0, 24, -1, 99}) {
    in.mutable_tensors(0)->set_dtype(static_cast<pb::DType>(dtype));
    EXPECT_THAT(GroupFromProto(in), StatusIs(kInvalid, HasSubstr("dtype")))
        << dtype;
  }
}

TEST(GroupFromProto, RefusesLyingShapes) {
  pb::Group in = GoodGroup();
  in.mutable_tensors(0)->set_shape(0, -1);
  EXPECT_THAT(GroupFromProto(in), StatusIs(kInvalid, HasSubstr("negative")));

  in = GoodGroup();
  in.mutable_tensors(0)->add_strides(1);
  EXPECT_THAT(GroupFromProto(in), StatusIs(kInvalid, HasSubstr("strides")));
  in.mutable_tensors(0)->add_strides(-4);
  EXPECT_THAT(GroupFromProto(in), StatusIs(kInvalid, HasSubstr("negative")));

  in = GoodGroup();
  while (in.tensors(0).shape_size() <= kMaxRank) {
    in.mutable_tensors(0)->add_shape(1);
  }
  EXPECT_THAT(GroupFromProto(in), StatusIs(kInvalid, HasSubstr("dimensions")));
}

TEST(GroupFromProto, RefusesATensorNamedTwice) {
  pb::Group in = GoodGroup();
  *in.add_tensors() = in.tensors(0);
  EXPECT_THAT(GroupFromProto(in), StatusIs(kInvalid, HasSubstr("twice")));
}

TEST(NameFromProto, TakesOddCharactersButNotNulOrBrokenUtf8) {
  EXPECT_OK(NameFromProto("name", "a b\n\xc3\xa4\xf0\x9f\x98\x80/..", 64));
  EXPECT_THAT(NameFromProto("name", "", 64),
              StatusIs(kInvalid, HasSubstr("name is empty")));
  EXPECT_THAT(NameFromProto("name", std::string("a\0b", 3), 64),
              StatusIs(kInvalid, HasSubstr("NUL")));
  EXPECT_THAT(NameFromProto("name", std::string(65, 'x'), 64),
              StatusIs(kInvalid, HasSubstr("at most 64")));
  // Cut short, overlong, a surrogate, beyond the last code point, a stray tail.
  for (const char* text : {"\xc3", "\xc0\xaf", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\x80", "\xff"}) {
    EXPECT_THAT(NameFromProto("name", text, 64),
                StatusIs(kInvalid, HasSubstr("UTF-8")));
  }
}

TEST(TierFromProto, LooksAtTheDeviceForTheDeviceTierOnly) {
  ASSERT_OK_AND_ASSIGN(const TierAt device, TierFromProto(pb::TIER_DEVICE, 3));
  EXPECT_TRUE(device == OnDevice(DeviceIndex(3)));
  ASSERT_OK_AND_ASSIGN(const TierAt host, TierFromProto(pb::TIER_HOST, 3));
  EXPECT_TRUE(host == OnHost());
  EXPECT_THAT(TierFromProto(pb::TIER_UNSPECIFIED, 0), StatusIs(kInvalid));
  ASSERT_OK_AND_ASSIGN(const TierAt fallback,
                       TierFromProto(pb::TIER_UNSPECIFIED, 0, OnHost()));
  EXPECT_TRUE(fallback == OnHost());
  EXPECT_THAT(TierFromProto(static_cast<pb::Tier>(9), 0), StatusIs(kInvalid));
}

TEST(ReadersFromProto, UnspecifiedIsAsConfigured) {
  ASSERT_OK_AND_ASSIGN(const auto none,
                       ReadersFromProto(pb::READERS_UNSPECIFIED));
  EXPECT_EQ(none, std::nullopt);
  ASSERT_OK_AND_ASSIGN(const auto everyone,
                       ReadersFromProto(pb::READERS_EVERYONE));
  EXPECT_EQ(everyone, Readers::kEveryone);
  EXPECT_THAT(ReadersFromProto(static_cast<pb::Readers>(-3)),
              StatusIs(kInvalid));
}

TEST(GroupingFromProto, ExplicitGroupsAreNamedOnce) {
  pb::Grouping in;
  in.set_rule(pb::Grouping::RULE_EXPLICIT);
  EXPECT_THAT(GroupingFromProto(in), StatusIs(kInvalid));
  pb::Grouping::Named* named = in.add_groups();
  named->set_name("a");
  named->add_tensors("x");
  named->add_tensors("y");
  ASSERT_OK_AND_ASSIGN(const GroupingSpec spec, GroupingFromProto(in));
  EXPECT_EQ(spec.rule, GroupingRule::kExplicit);
  ASSERT_EQ(spec.groups.size(), 1u);
  EXPECT_THAT(spec.groups[0].tensors, ElementsAre("x", "y"));
  *in.add_groups() = in.groups(0);
  EXPECT_THAT(GroupingFromProto(in), StatusIs(kInvalid, HasSubstr("twice")));
}

TEST(JoinedFromProto, KeepsWhatIsThere) {
  google::protobuf::RepeatedPtrField<pb::JoinedTensor> in;
  pb::JoinedTensor* joined = in.Add();
  joined->set_name("x");
  joined->add_shape(2);
  joined->add_parts()->set_tensor("a");
  pb::JoinedTensor::Part* part = joined->add_parts();
  part->set_tensor("b");
  part->set_offset_bytes(8);
  part->set_size_bytes(16);
  ASSERT_OK_AND_ASSIGN(const auto all, JoinedFromProto(in));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].name, "x");
  EXPECT_THAT(all[0].shape, ElementsAre(2));
  ASSERT_EQ(all[0].parts.size(), 2u);
  EXPECT_EQ(all[0].parts[0].tensor, "a");
  EXPECT_EQ(all[0].parts[1].offset, 8u);
  EXPECT_EQ(all[0].parts[1].bytes, 16u);
}

TEST(JoinedFromProto, RefusesWhatIsHostile) {
  google::protobuf::RepeatedPtrField<pb::JoinedTensor> in;
  pb::JoinedTensor* joined = in.Add();
  EXPECT_THAT(JoinedFromProto(in), StatusIs(kInvalid, HasSubstr("name")));
  joined->set_name("x");
  joined->add_shape(-1);
  EXPECT_THAT(JoinedFromProto(in), StatusIs(kInvalid, HasSubstr("negative")));
  joined->set_shape(0, 1);
  for (int i = 0; i < kMaxRank; ++i) joined->add_shape(1);
  EXPECT_THAT(JoinedFromProto(in), StatusIs(kInvalid, HasSubstr("dimensions")));
  joined->clear_shape();
  joined->add_parts()->set_tensor(std::string("a\0b", 3));
  EXPECT_THAT(JoinedFromProto(in), StatusIs(kInvalid, HasSubstr("NUL")));
  joined->mutable_parts(0)->set_tensor("a");
  EXPECT_OK(JoinedFromProto(in));
}

TEST(GroupingFromProto, RefusesUnknownRulesAndStrayGroups) {
  pb::Grouping in;
  EXPECT_OK(GroupingFromProto(in));
  in.add_groups()->set_name("a");
  EXPECT_THAT(GroupingFromProto(in), StatusIs(kInvalid));
  in.set_rule(static_cast<pb::Grouping::Rule>(77));
  EXPECT_THAT(GroupingFromProto(in), StatusIs(kInvalid, HasSubstr("77")));
}

TEST(DeadlineFromProto, IsBounded) {
  EXPECT_EQ(DeadlineFromProto(0), absl::ZeroDuration());
  EXPECT_EQ(DeadlineFromProto(1500), absl::Milliseconds(1500));
  EXPECT_EQ(DeadlineFromProto(kMax), kMaxDeadline);
}

TEST(ModelToProto, AGroupSurvivesTheRoundTrip) {
  ASSERT_OK_AND_ASSIGN(Group group, GroupFromProto(GoodGroup()));
  auto spec = std::make_shared<ModelSpec>();
  spec->name = "m";
  spec->published = true;
  spec->image_bytes = group.image_bytes;
  spec->groups.push_back(std::make_shared<Group>(group));
  spec->group_contents.emplace_back().fill(0xcd);
  const Model model = {ModelId(7), User(1000), Readers::kEveryone, spec};
  pb::Model out;
  ModelToProto(model, &out);
  EXPECT_EQ(out.id(), 7u);
  EXPECT_EQ(out.name(), "m");
  const Fingerprint fingerprint =
      FingerprintOf(ModelContent(model.spec->group_contents));
  EXPECT_EQ(out.fingerprint(),
            std::string(fingerprint.begin(), fingerprint.end()));
  EXPECT_EQ(out.readers(), pb::READERS_EVERYONE);
  EXPECT_EQ(out.owner_uid(), 1000u);
  EXPECT_TRUE(out.published());
  EXPECT_EQ(out.image_bytes(), 4096u);
  ASSERT_EQ(out.groups_size(), 1);
  pb::Group expected = GoodGroup();
  expected.set_content(std::string(32, '\xcd'));
  EXPECT_EQ(out.groups(0).SerializeAsString(), expected.SerializeAsString());
}

TEST(LeaseToProto, NumbersDescriptorsByTheirPlaceAndSkipsIpc) {
  LeaseGrant grant;
  grant.id = LeaseId(5);
  grant.key = {ModelId(2), GroupIndex(3)};
  grant.device = DeviceIndex(1);
  grant.offset = 4096;
  grant.bytes = 8192;
  SlabUse memfd;
  memfd.slab.id = SlabId(11);
  memfd.share.fd = 42;
  SlabUse ipc;
  ipc.slab.id = SlabId(12);
  ipc.share.backing = Backing::kIpc;
  ipc.share.ipc_handle.fill(9);
  grant.new_slabs = {ipc, memfd};
  std::vector<int> fds = {40};
  pb::Lease out;
  LeaseToProto(grant, &out, &fds);
  EXPECT_THAT(fds, ElementsAre(40, 42));
  ASSERT_EQ(out.slabs_size(), 2);
  EXPECT_EQ(out.slabs(0).ipc_handle(), std::string(64, '\x09'));
  EXPECT_EQ(out.slabs(1).fd_index(), 1u);
  EXPECT_EQ(out.slabs(1).backing(), pb::BACKING_MEMFD);
  EXPECT_EQ(out.slabs(1).device(), 1u);
  EXPECT_EQ(out.group(), 3u);
  EXPECT_EQ(out.offset_bytes(), 4096u);
}

TEST(ShareFromProto, UnsetIsWeightOneWithoutPriorityOrCap) {
  ASSERT_OK_AND_ASSIGN(const ShareOptions share, ShareFromProto(pb::Share()));
  EXPECT_EQ(share.weight, 1u);
  EXPECT_EQ(share.priority, 0);
  EXPECT_EQ(share.max_bytes_per_second, 0u);
}

TEST(ShareFromProto, TheBoundsThemselvesAreAllowed) {
  for (const uint32_t weight : {1u, ShareOptions::kMaxWeight}) {
    pb::Share in;
    in.set_weight(weight);
    ASSERT_OK_AND_ASSIGN(const ShareOptions share, ShareFromProto(in));
    EXPECT_EQ(share.weight, weight);
  }
  for (const int32_t priority :
       {-ShareOptions::kMaxPriority, ShareOptions::kMaxPriority}) {
    pb::Share in;
    in.set_priority(priority);
    ASSERT_OK_AND_ASSIGN(const ShareOptions share, ShareFromProto(in));
    EXPECT_EQ(share.priority, priority);
  }
  pb::Share in;
  in.set_max_bytes_per_second(kMax);
  ASSERT_OK_AND_ASSIGN(const ShareOptions share, ShareFromProto(in));
  EXPECT_EQ(share.max_bytes_per_second, kMax);
}

TEST(ShareFromProto, WhatIsBeyondTheBoundsIsToldThem) {
  for (const uint32_t weight : {ShareOptions::kMaxWeight + 1, UINT32_MAX}) {
    pb::Share in;
    in.set_weight(weight);
    EXPECT_THAT(ShareFromProto(in),
                StatusIs(kInvalid, AllOf(HasSubstr(std::to_string(weight)),
                                         HasSubstr("1 to 1000 are allowed"))));
  }
  for (const int32_t priority :
       {ShareOptions::kMaxPriority + 1, -ShareOptions::kMaxPriority - 1,
        INT32_MAX, INT32_MIN}) {
    pb::Share in;
    in.set_priority(priority);
    EXPECT_THAT(ShareFromProto(in),
                StatusIs(kInvalid, AllOf(HasSubstr(std::to_string(priority)),
                                         HasSubstr("-10 to 10 are allowed"))));
  }
}

TEST(ShareToProto, AShareSurvivesTheRoundTrip) {
  ShareOptions share;
  share.weight = 999;
  share.priority = -10;
  share.max_bytes_per_second = kMax - 1;
  pb::Share out;
  ShareToProto(share, &out);
  EXPECT_EQ(out.weight(), 999u);
  EXPECT_EQ(out.priority(), -10);
  EXPECT_EQ(out.max_bytes_per_second(), kMax - 1);
  ASSERT_OK_AND_ASSIGN(const ShareOptions back, ShareFromProto(out));
  EXPECT_EQ(back.weight, share.weight);
  EXPECT_EQ(back.priority, share.priority);
  EXPECT_EQ(back.max_bytes_per_second, share.max_bytes_per_second);
}

// Groups 4 and 2 take turns in a ring at 1 MiB; group 9 is resident.
PlanGrant StreamingGrant() {
  PlanGrant grant;
  grant.id = PlanId(8);
  grant.model = ModelId(3);
  grant.device = DeviceIndex(1);
  grant.budget_bytes = 100;
  grant.ring_offset = uint64_t{1} << 20;
  grant.ring_bytes = 12288;
  grant.resident_bytes = 102;
  grant.streamed_bytes = 103;
  grant.lead = 4;
  grant.groups = {{GroupIndex(4), false, {0, 8192}, 8000},
                  {GroupIndex(9), true, {77, 77}, 4096},
                  {GroupIndex(2), false, {8192, 4096}, 4096}};
  grant.lane_order = {0, 1, 0};
  return grant;
}

TEST(PlanToProto, SaysTheGrantAndEachSlotsPlaceInTheDevicesSpan) {
  pb::Plan out;
  std::vector<int> fds;
  PlanToProto(StreamingGrant(), &out, &fds);
  EXPECT_EQ(out.id(), 8u);
  EXPECT_EQ(out.budget_bytes(), 100u);
  EXPECT_EQ(out.ring_bytes(), 12288u);
  EXPECT_EQ(out.resident_bytes(), 102u);
  EXPECT_EQ(out.streamed_bytes(), 103u);
  EXPECT_EQ(out.lead(), 4u);
  EXPECT_EQ(out.slabs_size(), 0);
  EXPECT_THAT(fds, IsEmpty());
  ASSERT_EQ(out.groups_size(), 3);
  EXPECT_EQ(out.groups(0).group(), 4u);
  EXPECT_FALSE(out.groups(0).resident());
  EXPECT_EQ(out.groups(0).offset_bytes(), uint64_t{1} << 20);
  EXPECT_EQ(out.groups(0).slot_bytes(), 8192u);
  EXPECT_EQ(out.groups(2).group(), 2u);
  EXPECT_EQ(out.groups(2).offset_bytes(), (uint64_t{1} << 20) + 8192);
  EXPECT_EQ(out.groups(2).slot_bytes(), 4096u);
}

TEST(PlanToProto, AResidentHasNoSlot) {
  pb::Plan out;
  std::vector<int> fds;
  PlanToProto(StreamingGrant(), &out, &fds);
  ASSERT_EQ(out.groups_size(), 3);
  EXPECT_EQ(out.groups(1).group(), 9u);
  EXPECT_TRUE(out.groups(1).resident());
  EXPECT_EQ(out.groups(1).offset_bytes(), 0u);
  EXPECT_EQ(out.groups(1).slot_bytes(), 0u);
}

TEST(PlanToProto, NumbersSlabDescriptorsByTheirPlaceAndSkipsIpc) {
  PlanGrant grant = StreamingGrant();
  SlabUse memfd;
  memfd.slab.id = SlabId(11);
  memfd.slab.offset = uint64_t{1} << 20;
  memfd.slab.bytes = uint64_t{2} << 20;
  memfd.share.fd = 42;
  SlabUse ipc;
  ipc.slab.id = SlabId(12);
  ipc.share.backing = Backing::kIpc;
  ipc.share.ipc_handle.fill(9);
  SlabUse vmm;
  vmm.slab.id = SlabId(13);
  vmm.share.backing = Backing::kVmm;
  vmm.share.fd = 43;
  grant.new_slabs = {memfd, ipc, vmm};
  std::vector<int> fds = {40};
  pb::Plan out;
  PlanToProto(grant, &out, &fds);
  EXPECT_THAT(fds, ElementsAre(40, 42, 43));
  ASSERT_EQ(out.slabs_size(), 3);
  EXPECT_EQ(out.slabs(0).id(), 11u);
  EXPECT_EQ(out.slabs(0).device(), 1u);
  EXPECT_EQ(out.slabs(0).offset_bytes(), uint64_t{1} << 20);
  EXPECT_EQ(out.slabs(0).size_bytes(), uint64_t{2} << 20);
  EXPECT_EQ(out.slabs(0).backing(), pb::BACKING_MEMFD);
  EXPECT_EQ(out.slabs(0).fd_index(), 1u);
  EXPECT_EQ(out.slabs(1).backing(), pb::BACKING_IPC);
  EXPECT_EQ(out.slabs(1).ipc_handle(), std::string(64, '\x09'));
  EXPECT_EQ(out.slabs(1).fd_index(), 0u);
  EXPECT_EQ(out.slabs(2).backing(), pb::BACKING_VMM);
  EXPECT_EQ(out.slabs(2).fd_index(), 2u);
}

}  // namespace hoistd::types_convert_test
