#include "client/ctl/features.h"

#include <regex>
#include <string>

#include "client/ctl/commands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::ctl::features_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr char kPrefix[] = "feature.node.kubernetes.io/";

v1::ModelSummary MakeModel(const std::string& name, char weights,
                           uint64_t device_bytes = 0) {
  v1::ModelSummary model;
  model.set_name(name);
  model.set_fingerprint(std::string(16, weights));
  model.set_readers(v1::READERS_EVERYONE);
  model.set_published(true);
  model.set_device_bytes(device_bytes);
  return model;
}

// One group for each list of copies.
v1::ListGroupsResponse Groups(
    const std::vector<std::vector<std::pair<v1::Tier, uint32_t>>>& all) {
  v1::ListGroupsResponse groups;
  for (const auto& copies : all) {
    v1::GroupStatus* group = groups.add_groups();
    for (const auto& [tier, device] : copies) {
      auto* copy = group->add_copies();
      copy->set_tier(tier);
      copy->set_device(device);
      copy->set_residency(v1::RESIDENCY_PRESENT);
    }
  }
  return groups;
}

// sha256sum says so, too: deploy/kubernetes/README.md.
TEST(Features, ANameIsHashedWhateverItIs) {
  EXPECT_EQ(
      ModelLabel("llama"),
      std::string(kPrefix) + "hoist-model.fc5a1047f5919892fcdf8aa79ea5d6bb");
  const std::regex allowed("[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?");
  for (const std::string& label :
       {ModelLabel(""), ModelLabel("a/b \x1b[31m\n=x"),
        ModelLabel(std::string(1000, 'n')),
        WeightsLabel(std::string(16, '\xff'))}) {
    EXPECT_TRUE(std::regex_match(label.substr(sizeof(kPrefix) - 1), allowed))
        << label;
  }
}

TEST(Features, AModelIsWhereAllOfItIs) {
  const auto device0 = std::pair(v1::TIER_DEVICE, 0u);
  const auto device1 = std::pair(v1::TIER_DEVICE, 1u);
  const auto host = std::pair(v1::TIER_HOST, 0u);
  const v1::ModelSummary published = MakeModel("m", 'w');
  EXPECT_EQ(WholeOn(published, Groups({{device0, host}, {device0}}), {}),
            v1::TIER_DEVICE);
  // Half on each device is on none.
  EXPECT_EQ(WholeOn(published, Groups({{device0, host}, {device1, host}}), {}),
            v1::TIER_HOST);
  EXPECT_EQ(WholeOn(published, Groups({{device0}, {host}}), {}),
            v1::TIER_UNSPECIFIED);
  EXPECT_EQ(WholeOn(published, Groups({{device1}}), {1}), v1::TIER_HOST);
  v1::ModelSummary of_files = published;
  of_files.set_published(false);
  EXPECT_EQ(WholeOn(of_files, Groups({{device0}, {host}}), {}), v1::TIER_DISK);
  v1::ListGroupsResponse coming = Groups({{host}});
  coming.mutable_groups(0)->mutable_copies(0)->set_residency(
      v1::RESIDENCY_FILLING);
  EXPECT_EQ(WholeOn(of_files, coming, {}), v1::TIER_DISK);
}

TEST(Features, WhatOnlyItsOwnerMayReadIsNotTold) {
  v1::ListModelsResponse models;
  *models.add_models() = MakeModel("small", 'a', 1);
  *models.add_models() = MakeModel("secret", 'b', 9);
  models.mutable_models(1)->set_readers(v1::READERS_OWNER);
  *models.add_models() = MakeModel("large", 'c', 5);
  const auto told = ModelsToTell(models, /*all=*/false);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].name(), "large");
  EXPECT_EQ(told[1].name(), "small");
  EXPECT_EQ(ModelsToTell(models, /*all=*/true)[0].name(), "secret");
}

TEST(Features, LabelsAreBounded) {
  Labels labels = {{"room", "1"}};
  EXPECT_TRUE(AddModel(MakeModel("a", 'a'), v1::TIER_HOST, 4, &labels));
  EXPECT_FALSE(AddModel(MakeModel("b", 'b'), v1::TIER_HOST, 4, &labels));
  // The same weights under another name.
  EXPECT_TRUE(AddModel(MakeModel("c", 'a'), v1::TIER_DEVICE, 4, &labels));
  EXPECT_EQ(labels.size(), 4u);
  EXPECT_EQ(labels[WeightsLabel(std::string(16, 'a'))], "device");

  Labels most;
  for (int i = 0; most.size() < kMostLabels; ++i) {
    v1::ModelSummary model = MakeModel(std::to_string(i), 'x');
    std::string weights = std::to_string(i);
    weights.resize(16);
    model.set_fingerprint(weights);
    ASSERT_TRUE(AddModel(model, v1::TIER_DEVICE, kMostLabels, &most));
  }
  EXPECT_LT(FeatureFile(most, std::chrono::system_clock::now()).size(),
            size_t{64} << 10);
}

TEST(Features, OfSeveralModelsOfOneNameTheSlowestIsTold) {
  Labels labels;
  AddModel(MakeModel("m", 'a'), v1::TIER_DEVICE, 9, &labels);
  AddModel(MakeModel("m", 'b'), v1::TIER_DISK, 9, &labels);
  EXPECT_EQ(labels[ModelLabel("m")], "disk");
}

TEST(Features, RoomIsWhatMayBeEvictedOfTheDeviceThatHasMost) {
  v1::NodeStatus status;
  const auto add = [&status](v1::Tier tier, uint64_t gib, uint64_t leased) {
    v1::TierStatus* made = status.add_tiers();
    made->set_tier(tier);
    made->set_capacity_bytes(gib << 30);
    made->set_used_bytes(gib << 30);
    made->set_leased_bytes(leased << 30);
  };
  EXPECT_THAT(RoomLabels(status), IsEmpty());
  add(v1::TIER_DEVICE, 80, 70);
  add(v1::TIER_DEVICE, 80, 20);
  add(v1::TIER_DEVICE, 500, 0);
  status.mutable_tiers(2)->set_device(2);
  v1::Device* in_place = status.add_devices();
  in_place->set_index(2);
  in_place->set_kind(v1::DEVICE_KIND_IN_PLACE);
  add(v1::TIER_HOST, 100, 101);
  add(v1::TIER_DISK, 1000, 0);
  EXPECT_THAT(
      RoomLabels(status),
      ElementsAre(Pair(std::string(kPrefix) + "hoist-room.device-gib", "60"),
                  Pair(std::string(kPrefix) + "hoist-room.host-gib", "0")));
}

TEST(Features, TheFileIsNfds) {
  const Labels labels = {{"a", "host"}, {"b", "2"}};
  EXPECT_EQ(FeatureFile(labels, std::nullopt), "a=host\nb=2\n");
  EXPECT_EQ(FeatureFile(labels, std::chrono::system_clock::from_time_t(0)),
            "# +expiry-time=1970-01-01T00:00:00Z\na=host\nb=2\n");
}

}  // namespace hoist::ctl::features_test
