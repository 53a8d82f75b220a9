#include "daemon/metrics/node_metrics.h"

#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::node_metrics_test {

using ::testing::HasSubstr;
using ::testing::Not;

MetricsFacts Facts() {
  MetricsFacts facts;
  facts.node.version = "1.2.3";
  facts.revision = "abc";
  facts.degraded = {{"no_io_uring", true}, {"no_vmm_export", false}};
  DeviceView gpu;
  gpu.info.kind = DeviceKind::kCuda;
  gpu.info.uuid = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
                   0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef};
  DeviceView in_place;
  in_place.info.kind = DeviceKind::kInPlace;
  in_place.info.index = DeviceIndex(1);
  facts.node.devices = {gpu, in_place};
  return facts;
}

NodeMeasure Measure() {
  NodeMeasure node;
  for (const TierAt at : {OnDevice(DeviceIndex(0)), OnDevice(DeviceIndex(1)),
                          OnHost(), OnPageable(), OnDisk()}) {
    TierMeasure tier = {.at = at, .capacity_bytes = 100, .used_bytes = 70};
    tier.of(Holding::kLeased) = 40;
    tier.of(Holding::kCache) = 30;
    node.tiers.push_back(tier);
    if (at.tier == Tier::kDevice) {
      node.engine.waits.push_back({.seconds = 1.5, .count = 2});
      node.engine.links.push_back({.device = at.device, .plan_bytes = 9});
    }
  }
  return node;
}

std::string Render(const NodeMeasure& node,
                   MetricsFormat format = MetricsFormat::kText) {
  return RenderMetrics(Facts(), 4, node, {.open_fds = 12}, format);
}

constexpr char kGpu[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";

TEST(NodeMetrics, DevicesAreNamedByUuidAndInPlaceIsATier) {
  const std::string text = Render(Measure());
  EXPECT_THAT(
      text, HasSubstr(absl::StrCat("\nhoist_tier_capacity_bytes{tier=\"device\""
                                   ",device=\"",
                                   kGpu, "\"} 100\n")));
  EXPECT_THAT(
      text, HasSubstr("\nhoist_tier_capacity_bytes{tier=\"in_place\"} 100\n"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("\nhoist_link_bytes_total{device=\"",
                                           kGpu, "\",class=\"plans\"} 9\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat(
                        "\nhoist_stream_wait_seconds_total{device=\"", kGpu,
                        "\"} 1.5\n")));
  EXPECT_THAT(text, Not(HasSubstr("{device=\"\"")));
}

TEST(NodeMetrics, WhatHoldsATierAndWhatIsFreeAddUpToIt) {
  uint64_t sum = 0;
  for (const absl::string_view line : absl::StrSplit(Render(Measure()), '\n')) {
    uint64_t bytes = 0;
    if (line.substr(0, 30) != "hoist_tier_bytes{tier=\"host\",h") continue;
    ASSERT_TRUE(absl::SimpleAtoi(line.substr(line.rfind(' ') + 1), &bytes));
    sum += bytes;
  }
  EXPECT_EQ(sum, 100u);
}

TEST(NodeMetrics, WhatIsDegradedIsOneAndWhatIsNotIsZero) {
  const std::string text = Render(Measure());
  EXPECT_THAT(text, HasSubstr("\nhoist_degraded{what=\"no_io_uring\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nhoist_degraded{what=\"no_vmm_export\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("{version=\"1.2.3\",revision=\"abc\"} 1\n"));
}

TEST(NodeMetrics, ModelsAreNamedWithTheirOwnerAndTheOthersAreOne) {
  NodeMeasure node = Measure();
  node.models.push_back(
      {.owner = User(1000), .name = "a \"b\"", .host_bytes = 5});
  node.models.push_back(
      {.owner = *User::Tenant("team"), .name = "other", .device_bytes = 6});
  node.other_models.disk_bytes = 7;
  EXPECT_THAT(
      Render(node),
      AllOf(HasSubstr("{model=\"a \\\"b\\\"\",user=\"1000\",tier=\"host\"} 5"),
            HasSubstr("{model=\"other\",user=\"team\",tier=\"device\"} 6"),
            HasSubstr("{model=\"other\",tier=\"disk\"} 7")));
}

// A scraper drops all of an answer in which a sample comes twice, or a family
// in two pieces.
TEST(NodeMetrics, NoSampleComesTwiceAndNoFamilyInPieces) {
  for (const auto format :
       {MetricsFormat::kText, MetricsFormat::kOpenMetrics}) {
    std::set<std::string> samples, families;
    const std::vector<std::string> lines =
        absl::StrSplit(Render(Measure(), format), '\n');
    for (const std::string& line : lines) {
      if (line.empty() || line == "# EOF") continue;
      if (line.substr(0, 7) == "# TYPE ") {
        EXPECT_TRUE(families.insert(line).second) << line;
      } else if (line[0] != '#') {
        EXPECT_TRUE(samples.insert(line.substr(0, line.rfind(' '))).second)
            << line;
      }
    }
    EXPECT_GT(families.size(), 30u);
  }
}

TEST(NodeMetrics, OfThisProcessTheNumbersAreTrue) {
  const ProcessStats stats = ReadProcessStats();
  EXPECT_GT(stats.resident_bytes, 100'000u);
  EXPECT_GT(stats.virtual_bytes, stats.resident_bytes);
  EXPECT_GE(stats.open_fds, 3u);
  EXPECT_GE(stats.max_fds, stats.open_fds);
  EXPECT_GE(stats.threads, 1u);
  EXPECT_GT(stats.start_seconds, 1.6e9);
}

}  // namespace hoistd::node_metrics_test
