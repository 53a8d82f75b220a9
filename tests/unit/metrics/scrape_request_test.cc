#include "daemon/metrics/scrape_request.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoistd::scrape_request_test {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ScrapeRequest, PrometheusGetsOpenMetrics) {
  const ScrapeRequest request = ParseScrape(
      "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nACCEPT: "
      "application/openmetrics-text;version=1.0.0,application/"
      "openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5\r\n\r\n");
  EXPECT_EQ(request.code, 200);
  EXPECT_EQ(request.format, MetricsFormat::kOpenMetrics);
  EXPECT_FALSE(request.head_only);
}

TEST(ScrapeRequest, OthersGetText) {
  EXPECT_EQ(ParseScrape("GET /metrics HTTP/1.0\n\n").format,
            MetricsFormat::kText);
  EXPECT_EQ(ParseScrape("GET /metrics HTTP/1.1\r\nAccept: "
                        "application/openmetrics-text;version=0.0.1\r\n\r\n")
                .format,
            MetricsFormat::kText);
  EXPECT_EQ(
      ParseScrape("GET /metrics HTTP/1.1\r\nAccept: "
                  "application/openmetrics-text;version=1.0.0;q=0\r\n\r\n")
          .format,
      MetricsFormat::kText);
}

TEST(ScrapeRequest, WhatIsNotAScrapeIsRefusedWithWhatWouldBe) {
  EXPECT_EQ(ParseScrape("").code, 400);
  EXPECT_EQ(ParseScrape("GET /metrics\r\n\r\n").code, 400);
  EXPECT_EQ(ParseScrape("GET /metrics HTTP/2\r\n\r\n").code, 400);
  EXPECT_EQ(ParseScrape("GET /metrics/ HTTP/1.1\r\n\r\n").code, 404);
  const ScrapeRequest post = ParseScrape("POST /metrics HTTP/1.1\r\n\r\n");
  EXPECT_EQ(post.code, 405);
  EXPECT_THAT(ScrapeResponse(post, "never"),
              AllOf(StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"),
                    HasSubstr("\r\nAllow: GET, HEAD\r\n"),
                    EndsWith("\r\n\r\nmetrics are only read: GET /metrics\n")));
}

TEST(ScrapeRequest, AHeadIsAnsweredWithoutItsBody) {
  const ScrapeRequest request = ParseScrape("HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(
      ScrapeResponse(request, "12345"),
      AllOf(HasSubstr("\r\nContent-Length: 5\r\n"), EndsWith("\r\n\r\n")));
}

TEST(ScrapeRequest, TheHeadEndsAtTheFirstEmptyLine) {
  EXPECT_EQ(EndOfHead("GET / HTTP/1.1\r\nA: b\r\n"), std::string::npos);
  EXPECT_EQ(EndOfHead("G\r\n\r\nmore\n\n"), 5u);
  EXPECT_EQ(EndOfHead("G\n\nmore\r\n\r\n"), 3u);
}

// Whatever comes, it is read to an end and answered with one line of our own.
TEST(ScrapeRequest, AnyBytesGetAnAnswer) {
  std::mt19937_64 random(7);
  const std::string alphabet = "GET /metrics HTTP/1.1\r\n\0:;q=\xff";
  for (int i = 0; i < 20000; ++i) {
    std::string head;
    for (size_t n = random() % 80; n > 0; --n) {
      head += alphabet[random() % alphabet.size()];
    }
    if (i % 3 == 0) head = "GET /metrics HTTP/1.1\r\n" + head;
    const ScrapeRequest request = ParseScrape(head);
    EXPECT_THAT(ScrapeResponse(request, "body"), StartsWith("HTTP/1.1 "));
    EXPECT_EQ(request.code == 200, request.why.empty()) << head;
  }
}

}  // namespace hoistd::scrape_request_test
