#include "daemon/metrics/exposition.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::exposition_test {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Exposition, ACountersFamilyIsNamedAsItsFormatHasIt) {
  Exposition text(MetricsFormat::kText);
  text.Counter("a_total", "What.");
  text.Sample(3, {{"x", "y"}});
  EXPECT_EQ(text.Take(),
            "# HELP a_total What.\n# TYPE a_total counter\n"
            "a_total{x=\"y\"} 3\n");
  Exposition open(MetricsFormat::kOpenMetrics);
  open.Counter("a_total", "What.");
  open.Sample(3, {{"x", "y"}});
  EXPECT_EQ(open.Take(),
            "# HELP a What.\n# TYPE a counter\na_total{x=\"y\"} 3\n# EOF\n");
}

TEST(Exposition, NumbersLoseNothing) {
  Exposition text(MetricsFormat::kText);
  text.Gauge("g", "G.");
  text.Sample(UINT64_MAX);
  text.Seconds(1795552526.1952112);
  EXPECT_THAT(text.Take(), AllOf(HasSubstr("\ng 18446744073709551615\n"),
                                 HasSubstr("\ng 1795552526.1952112\n")));
}

TEST(Exposition, BucketsAddUpAndBoundsHaveOneForm) {
  TimeHistogram times;
  times.Add(absl::Microseconds(100));  // On its bound.
  times.Add(absl::Microseconds(101));
  times.Add(absl::Seconds(2));
  times.Add(absl::Minutes(1));
  times.Add(-absl::Seconds(1));  // Clocks of two threads: no time at all.
  Exposition text(MetricsFormat::kText);
  text.Histogram("h", "H.");
  text.Times(times, {{"from", "disk"}});
  EXPECT_THAT(text.Take(),
              AllOf(HasSubstr("h_bucket{from=\"disk\",le=\"0.0001\"} 2\n"),
                    HasSubstr("h_bucket{from=\"disk\",le=\"0.001\"} 3\n"),
                    HasSubstr("h_bucket{from=\"disk\",le=\"1.0\"} 3\n"),
                    HasSubstr("h_bucket{from=\"disk\",le=\"2.5\"} 4\n"),
                    HasSubstr("h_bucket{from=\"disk\",le=\"30.0\"} 4\n"),
                    HasSubstr("h_bucket{from=\"disk\",le=\"+Inf\"} 5\n"),
                    HasSubstr("h_count{from=\"disk\"} 5\n")));
}

std::string Labelled(absl::string_view value) {
  Exposition text(MetricsFormat::kText);
  text.Gauge("g", "G.");
  text.Sample(1, {{"x", value}});
  const std::string all = text.Take();
  return all.substr(all.rfind("\ng") + 1);
}

TEST(Exposition, ValuesOfLabelsAreEscaped) {
  EXPECT_EQ(Labelled("a\"b\\c\nd} 2"), "g{x=\"a\\\"b\\\\c\\nd} 2\"} 1\n");
  EXPECT_EQ(Labelled("grüße €"), "g{x=\"grüße €\"} 1\n");
}

TEST(Exposition, WhatIsNotUtf8IsReplaced) {
  const std::string bad = "\xef\xbf\xbd";
  // A lone byte, a cut character, an overlong one, a surrogate, beyond all.
  EXPECT_EQ(Labelled("a\xff"), "g{x=\"a" + bad + "\"} 1\n");
  EXPECT_EQ(Labelled("\xe2\x82"), "g{x=\"" + bad + bad + "\"} 1\n");
  EXPECT_EQ(Labelled("\xc0\xaf"), "g{x=\"" + bad + bad + "\"} 1\n");
  EXPECT_EQ(Labelled("\xed\xa0\x80"), "g{x=\"" + bad + bad + bad + "\"} 1\n");
  EXPECT_EQ(Labelled("\xf4\x90\x80\x80"),
            "g{x=\"" + bad + bad + bad + bad + "\"} 1\n");
}

TEST(Exposition, ALabelWithoutAValueIsLeftOut) {
  EXPECT_EQ(Labelled(""), "g 1\n");
}

}  // namespace hoistd::exposition_test
