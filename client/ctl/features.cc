#include "client/ctl/features.h"

#include <openssl/sha.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "client/ctl/text.h"

namespace hoist::ctl {
namespace {

constexpr char kPrefix[] = "feature.node.kubernetes.io/hoist-";
// A label's name may have 63 characters, of letters, digits, '-', '_', '.'.
constexpr size_t kHashBytes = 16;

// The fastest is the greatest.
int SpeedOf(std::string_view tier) {
  return tier == "device" ? 2 : tier == "host" ? 1 : 0;
}

std::string WordOf(v1::Tier tier) {
  if (tier == v1::TIER_DEVICE) return "device";
  return tier == v1::TIER_HOST ? "host" : "disk";
}

// Leased, pinned, and what would be lost; what is two of them counts twice, so
// that there may be more room than is told, and never less.
uint64_t RoomOf(const v1::TierStatus& tier) {
  const uint64_t stays = tier.leased_bytes() + tier.pinned_bytes() +
                         tier.unsaved_bytes() + tier.arena_bytes();
  return tier.capacity_bytes() - std::min(stays, tier.capacity_bytes());
}

}  // namespace

std::string ModelLabel(std::string_view name) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(name.data()), name.size(),
         digest);
  return std::string(kPrefix) + "model." +
         Hex({reinterpret_cast<const char*>(digest), kHashBytes});
}

std::string WeightsLabel(std::string_view fingerprint) {
  return std::string(kPrefix) + "weights." + Hex(fingerprint);
}

std::vector<v1::ModelSummary> ModelsToTell(const v1::ListModelsResponse& models,
                                           bool all) {
  std::vector<v1::ModelSummary> told;
  for (const v1::ModelSummary& model : models.models()) {
    if (all || model.readers() == v1::READERS_EVERYONE) told.push_back(model);
  }
  const auto rank = [](const v1::ModelSummary& model) {
    return std::make_tuple(model.device_bytes(), model.host_bytes(),
                           model.pageable_bytes(), model.disk_bytes(),
                           model.id());
  };
  std::sort(told.begin(), told.end(), [&rank](const auto& a, const auto& b) {
    return rank(a) > rank(b);
  });
  return told;
}

std::set<uint32_t> DevicesOnHost(const v1::NodeStatus& status) {
  std::set<uint32_t> found;
  for (const v1::Device& device : status.devices()) {
    if (device.kind() == v1::DEVICE_KIND_IN_PLACE) found.insert(device.index());
  }
  return found;
}

v1::Tier WholeOn(const v1::ModelSummary& model,
                 const v1::ListGroupsResponse& groups,
                 const std::set<uint32_t>& on_host) {
  using Place = std::pair<v1::Tier, uint32_t>;
  std::map<Place, int> there;
  for (const v1::GroupStatus& group : groups.groups()) {
    std::set<Place> places;
    for (const auto& copy : group.copies()) {
      if (copy.residency() == v1::RESIDENCY_PRESENT ||
          copy.residency() == v1::RESIDENCY_SPILLING) {
        places.insert({copy.tier(), copy.device()});
      }
    }
    for (const Place& place : places) ++there[place];
  }
  v1::Tier fastest = v1::TIER_UNSPECIFIED;
  // Files are on disk as they are.
  if (!model.published()) fastest = v1::TIER_DISK;
  for (const auto& [place, count] : there) {
    if (count < groups.groups_size()) continue;
    const auto& [tier, device] = place;
    const bool reads_in_place =
        tier == v1::TIER_DEVICE && on_host.count(device) > 0;
    const v1::Tier here = reads_in_place ? v1::TIER_HOST : tier;
    if (fastest == v1::TIER_UNSPECIFIED ||
        SpeedOf(WordOf(here)) > SpeedOf(WordOf(fastest))) {
      fastest = here;
    }
  }
  return fastest;
}

Labels RoomLabels(const v1::NodeStatus& status) {
  const std::set<uint32_t> on_host = DevicesOnHost(status);
  std::map<v1::Tier, uint64_t> room;
  for (const v1::TierStatus& tier : status.tiers()) {
    const bool device = tier.tier() == v1::TIER_DEVICE;
    if (!device && tier.tier() != v1::TIER_HOST) continue;
    if (device && on_host.count(tier.device()) > 0) continue;
    uint64_t& most = room[tier.tier()];
    most = std::max(most, RoomOf(tier));
  }
  Labels labels;
  for (const auto& [tier, bytes] : room) {
    labels[std::string(kPrefix) + "room." + WordOf(tier) + "-gib"] =
        std::to_string(bytes >> 30);
  }
  return labels;
}

bool AddModel(const v1::ModelSummary& model, v1::Tier tier, size_t limit,
              Labels* labels) {
  const std::string by_name = ModelLabel(model.name());
  const std::string by_weights = WeightsLabel(model.fingerprint());
  const size_t more = 2 - labels->count(by_name) - labels->count(by_weights);
  if (labels->size() + more > limit) return false;
  const std::string word = WordOf(tier);
  const auto named = labels->emplace(by_name, word).first;
  if (SpeedOf(word) < SpeedOf(named->second)) named->second = word;
  const auto weights = labels->emplace(by_weights, word).first;
  if (SpeedOf(word) > SpeedOf(weights->second)) weights->second = word;
  return true;
}

std::string FeatureFile(
    const Labels& labels,
    std::optional<std::chrono::system_clock::time_point> expires) {
  std::string file;
  if (expires.has_value()) {
    const time_t at = std::chrono::system_clock::to_time_t(*expires);
    tm parts = {};
    gmtime_r(&at, &parts);
    char text[32];
    strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
    file = std::string("# +expiry-time=") + text + "\n";
  }
  for (const auto& [name, value] : labels) file += name + "=" + value + "\n";
  return file;
}

}  // namespace hoist::ctl
