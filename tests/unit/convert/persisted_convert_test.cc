// What is written down for hoistd's successor comes back as it was.
#include "daemon/convert/persisted_convert.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hoistd::persisted_convert_test {

using ::testing::ElementsAre;
using testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(PersistedConvert, Instances) {
  PersistedInstance instance;
  instance.id.fill(3);
  instance.generation = 41;
  instance.devices.resize(2);
  instance.devices[1].fill(9);
  ASSERT_OK_AND_ASSIGN(const PersistedInstance back,
                       InstanceFromRecord(ToRecord(instance)));
  EXPECT_EQ(back.id, instance.id);
  EXPECT_EQ(back.generation, 41u);
  EXPECT_EQ(back.devices, instance.devices);
}

TEST(PersistedConvert, ModelsPublishedAndOfFiles) {
  ModelRecord model;
  model.owner = *User::Tenant("blue");
  model.readers = Readers::kEveryone;
  model.name = "llama";
  ASSERT_OK_AND_ASSIGN(ModelRecord back, ModelFromRecord(ToRecord(model)));
  EXPECT_EQ(back.owner, model.owner);
  EXPECT_EQ(back.readers, Readers::kEveryone);
  EXPECT_EQ(back.name, "llama");
  EXPECT_EQ(back.spec, 0u);
  model.files = {5, 6};
  model.spec = 7;
  model.spec_hash.fill(1);
  ASSERT_OK_AND_ASSIGN(back, ModelFromRecord(ToRecord(model)));
  EXPECT_THAT(back.files, ElementsAre(5, 6));
  EXPECT_EQ(back.spec, 7u);
  EXPECT_EQ(back.spec_hash, model.spec_hash);
}

// Each would keep a place of the next hoistd's memory.
TEST(PersistedConvert, PlacesOfMissingGroupsRiseAndAreBounded) {
  const auto read = [](std::vector<uint32_t> missing) {
    ModelRecord model;
    model.name = "m";
    model.missing_groups = std::move(missing);
    return ModelFromRecord(ToRecord(model));
  };
  ASSERT_OK_AND_ASSIGN(const ModelRecord model, read({0, 2, 999'999}));
  EXPECT_THAT(model.missing_groups, ElementsAre(0, 2, 999'999));
  EXPECT_FALSE(read({2, 2}).ok());
  EXPECT_FALSE(read({2, 1}).ok());
  EXPECT_FALSE(read({1'000'000}).ok());
}

TEST(PersistedConvert, SpecsOfFiles) {
  ModelSpec spec;
  spec.name = "m";
  spec.content.fill(4);
  spec.files = {"a.safetensors"};
  spec.identities = {{1, 2, 3, -4, 5, {}}};
  spec.identities[0].header_hash.fill(6);
  auto sheet = std::make_shared<Sheet>();
  sheet->runs = {{0, 100, 4096}};
  sheet->bytes = 4096;
  spec.sheets = {sheet};
  auto group = std::make_shared<Group>();
  group->name = "g";
  group->image_bytes = 8192;
  group->tensors = {
      {"w", hoist::DType::kBF16, {2, 3}, {3, 1}, 64, 12, "Q4_K"},
      {"empty", hoist::DType::kF32, {0}, {}, 0, 0},
  };
  group->runs = {{{0, 64, 4000}, 128}};
  spec.groups = {group};
  ASSERT_OK_AND_ASSIGN(const auto back, SpecFromRecord(ToRecord(spec)));
  EXPECT_EQ(back->name, "m");
  EXPECT_EQ(back->content, spec.content);
  EXPECT_FALSE(back->published);
  EXPECT_EQ(back->files, spec.files);
  EXPECT_EQ(back->identities, spec.identities);
  EXPECT_EQ(back->sheets[0]->bytes, 4096u);
  EXPECT_EQ(back->sheets[0]->runs[0].file_offset, 100u);
  EXPECT_EQ(back->image_bytes, 8192u);
  EXPECT_EQ(back->tensors, 2u);
  EXPECT_EQ(back->book_bytes, BookBytesOf(*group) + BookBytesOf(*sheet));
  const Group& same = *back->groups[0];
  EXPECT_EQ(same.tensors[0].name, "w");
  EXPECT_EQ(same.tensors[0].dtype, hoist::DType::kBF16);
  EXPECT_THAT(same.tensors[0].shape, ElementsAre(2, 3));
  EXPECT_THAT(same.tensors[0].strides, ElementsAre(3, 1));
  EXPECT_EQ(same.tensors[0].offset, 64u);
  EXPECT_EQ(same.tensors[0].bytes, 12u);
  EXPECT_EQ(same.tensors[0].block_type, "Q4_K");
  EXPECT_EQ(same.runs[0].from.offset, 64u);
  EXPECT_EQ(same.runs[0].image_offset, 128u);
  EXPECT_EQ(same.runs[0].from.bytes, 4000u);
  // The same again makes the same bytes.
  EXPECT_EQ(ToRecord(*back), ToRecord(spec));
}

TEST(PersistedConvert, SlabsCopiesAndLeases) {
  PersistedSlab slab;
  slab.device = DeviceIndex(1);
  slab.slab = {SlabId(uint64_t{3} << 40 | 5), 1 << 21, 2 << 21, Backing::kVmm};
  slab.reader = User(1000);
  ASSERT_OK_AND_ASSIGN(PersistedSlab slab_back, SlabFromRecord(ToRecord(slab)));
  EXPECT_EQ(slab_back.device, slab.device);
  EXPECT_EQ(slab_back.slab.id, slab.slab.id);
  EXPECT_EQ(slab_back.slab.offset, slab.slab.offset);
  EXPECT_EQ(slab_back.slab.bytes, slab.slab.bytes);
  EXPECT_EQ(slab_back.slab.backing, Backing::kVmm);
  EXPECT_EQ(slab_back.reader, User(1000));
  slab.reader = std::nullopt;
  ASSERT_OK_AND_ASSIGN(slab_back, SlabFromRecord(ToRecord(slab)));
  EXPECT_EQ(slab_back.reader, std::nullopt);
  EXPECT_FALSE(slab_back.slab.apart);
  slab.slab.apart = true;
  ASSERT_OK_AND_ASSIGN(slab_back, SlabFromRecord(ToRecord(slab)));
  EXPECT_TRUE(slab_back.slab.apart);
  EXPECT_FALSE(slab_back.slab.writable);
  slab.slab.writable = true;
  ASSERT_OK_AND_ASSIGN(slab_back, SlabFromRecord(ToRecord(slab)));
  EXPECT_TRUE(slab_back.slab.writable);

  PersistedCopy copy;
  copy.key = GroupKey{ModelId(4), GroupIndex(2)};
  copy.group = "layers.2";
  copy.damaged = true;
  ASSERT_OK_AND_ASSIGN(const PersistedCopy copy_back,
                       CopyFromRecord(ToRecord(copy)));
  EXPECT_EQ(copy_back.key, copy.key);
  EXPECT_EQ(copy_back.group, "layers.2");
  EXPECT_TRUE(copy_back.damaged);

  PersistedLease lease;
  lease.session = SessionId(8);
  lease.copy = CopyRef{*copy.key, {OnDevice(DeviceIndex(1)), false}};
  for (const bool apart : {false, true}) {
    lease.copy->place.apart = apart;
    ASSERT_OK_AND_ASSIGN(const PersistedLease lease_back,
                         LeaseFromRecord(LeaseId(9), ToRecord(lease)));
    EXPECT_EQ(lease_back.id, LeaseId(9));
    EXPECT_EQ(lease_back.session, lease.session);
    EXPECT_EQ(lease_back.copy, lease.copy);
  }
}

TEST(PersistedConvert, SessionsAndPlans) {
  PersistedSession session;
  session.id = SessionId(3);
  session.args = OpenSessionArgs();
  session.args->client_name = "worker";
  session.args->device_budget_bytes = 77;
  session.args->closes_slabs = true;
  session.args->peer = {User(5), 123, true, "socket"};
  session.args->protocol = 7;
  ASSERT_OK_AND_ASSIGN(const PersistedSession back,
                       SessionFromRecord(SessionId(3), ToRecord(session)));
  EXPECT_EQ(back.args->client_name, "worker");
  EXPECT_EQ(back.args->device_budget_bytes, 77u);
  EXPECT_TRUE(back.args->closes_slabs);
  EXPECT_EQ(back.args->peer.uid, User(5));
  EXPECT_EQ(back.args->peer.pid, 123);
  EXPECT_TRUE(back.args->peer.admin);
  EXPECT_EQ(back.args->peer.via, "socket");
  EXPECT_EQ(back.args->protocol, 7u);
  // Those who did not write it down spoke the first.
  session.args->protocol = 0;
  ASSERT_OK_AND_ASSIGN(const PersistedSession old,
                       SessionFromRecord(SessionId(3), ToRecord(session)));
  EXPECT_EQ(old.args->protocol, 1u);

  PlanRecord plan;
  plan.session = SessionId(3);
  PlanGrant& grant = plan.grant;
  grant.model = ModelId(2);
  grant.device = DeviceIndex(1);
  grant.budget_bytes = 1000;
  grant.groups = {{GroupIndex(4), true, {}, 10},
                  {GroupIndex(5), false, {6, 7}, 7}};
  grant.lane_order = {0, 0};
  grant.ring_offset = 4096;
  grant.ring_bytes = 20;
  grant.resident_bytes = 10;
  grant.streamed_bytes = 14;
  grant.lead = 2;
  grant.gives_way = true;
  plan.share = {3, -1, 5000};
  plan.stage_deadline = absl::Milliseconds(1500);
  ASSERT_OK_AND_ASSIGN(const PlanRecord same,
                       PlanFromRecord(PlanId(6), ToRecord(plan)));
  EXPECT_EQ(same.session, plan.session);
  EXPECT_EQ(same.grant.id, PlanId(6));
  EXPECT_EQ(same.grant.model, grant.model);
  EXPECT_EQ(same.grant.device, grant.device);
  EXPECT_EQ(same.grant.groups.size(), 2u);
  EXPECT_TRUE(same.grant.groups[0].resident);
  EXPECT_EQ(same.grant.groups[1].slot.offset, 6u);
  EXPECT_EQ(same.grant.groups[1].slot.bytes, 7u);
  EXPECT_EQ(same.grant.groups[1].image_bytes, 7u);
  EXPECT_THAT(same.grant.lane_order, ElementsAre(0, 0));
  EXPECT_EQ(same.grant.ring_offset, 4096u);
  EXPECT_EQ(same.grant.lead, 2u);
  EXPECT_TRUE(same.grant.gives_way);
  EXPECT_EQ(same.share.priority, -1);
  EXPECT_EQ(same.stage_deadline, absl::Milliseconds(1500));
}

TEST(PersistedConvert, WhatNoHoistdWroteIsRefused) {
  const std::string junk = "\xff\xff\xff junk";
  EXPECT_THAT(InstanceFromRecord(junk), StatusIs(kInvalid));
  EXPECT_THAT(ModelFromRecord(junk), StatusIs(kInvalid));
  EXPECT_THAT(SpecFromRecord(junk), StatusIs(kInvalid));
  EXPECT_THAT(SlabFromRecord(junk), StatusIs(kInvalid));
  EXPECT_THAT(CopyFromRecord(junk), StatusIs(kInvalid));
  EXPECT_THAT(SessionFromRecord(SessionId(1), junk), StatusIs(kInvalid));
  EXPECT_THAT(LeaseFromRecord(LeaseId(1), junk), StatusIs(kInvalid));
  EXPECT_THAT(PlanFromRecord(PlanId(1), junk), StatusIs(kInvalid));
  // Whose it is must be said.
  EXPECT_THAT(SlabFromRecord(""), StatusIs(kInvalid));
  EXPECT_THAT(ModelFromRecord(""), StatusIs(kInvalid));
}

TEST(PersistedConvert, Arenas) {
  const PersistedArena arena = {
      ArenaId(9), SessionId(8), DeviceIndex(2), {3 << 21, 1 << 21}};
  ASSERT_OK_AND_ASSIGN(const PersistedArena back,
                       ArenaFromRecord(ArenaId(9), ToRecord(arena)));
  EXPECT_EQ(back.id, arena.id);
  EXPECT_EQ(back.session, arena.session);
  EXPECT_EQ(back.device, arena.device);
  EXPECT_EQ(back.offsets, arena.offsets);  // In their order.
  EXPECT_THAT(ArenaFromRecord(ArenaId(9), "\xff"), StatusIs(kInvalid));
  // One of nothing is none.
  EXPECT_THAT(ArenaFromRecord(ArenaId(9), ""), StatusIs(kInvalid));
}

TEST(PersistedConvert, Pins) {
  const CopyRef on_host = {{ModelId(uint64_t{3} << 40), GroupIndex(7)}, kHost};
  ASSERT_OK_AND_ASSIGN(PersistedPin back,
                       PinFromRecord(ToRecord(PersistedPin{on_host})));
  EXPECT_EQ(back.copy, on_host);
  EXPECT_TRUE(back.pinned);
  const CopyRef on_device = {on_host.key, {OnDevice(DeviceIndex(1)), false}};
  ASSERT_OK_AND_ASSIGN(back, PinFromRecord(ToRecord(PersistedPin{on_device})));
  EXPECT_EQ(back.copy, on_device);
  EXPECT_THAT(PinFromRecord("\xff"), StatusIs(kInvalid));
}

TEST(PersistedConvert, CapsOnLoads) {
  ASSERT_OK_AND_ASSIGN(const LoadCap back,
                       LoadCapFromRecord(ToRecord(LoadCap{5, 7})));
  EXPECT_EQ(back.set, 5u);
  EXPECT_EQ(back.configured, 7u);
  EXPECT_THAT(LoadCapFromRecord("\xff"), StatusIs(kInvalid));
}

}  // namespace hoistd::persisted_convert_test
