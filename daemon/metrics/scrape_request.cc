#include "daemon/metrics/scrape_request.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace hoistd {
namespace {

ScrapeRequest Refuse(int code, absl::string_view why) {
  ScrapeRequest request;
  request.code = code;
  request.why = std::string(why);
  return request;
}

const char* ReasonOf(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    default:
      return "Service Unavailable";
  }
}

// Prometheus lists accepted formats, the best first, with version 1.0.0 among
// them.
bool TakesOpenMetrics(absl::string_view accept) {
  for (const absl::string_view one : absl::StrSplit(accept, ',')) {
    const std::string type = absl::AsciiStrToLower(one);
    if (absl::StrContains(type, "application/openmetrics-text") &&
        absl::StrContains(type, "version=1.0.0") &&
        !absl::StrContains(type, "q=0;") && !absl::EndsWith(type, "q=0")) {
      return true;
    }
  }
  return false;
}

}  // namespace

size_t EndOfHead(absl::string_view bytes) {
  size_t end = absl::string_view::npos;
  for (const absl::string_view empty : {"\r\n\r\n", "\n\n"}) {
    const size_t at = bytes.find(empty);
    if (at != absl::string_view::npos) end = std::min(end, at + empty.size());
  }
  return end;
}

ScrapeRequest ParseScrape(absl::string_view head) {
  std::vector<absl::string_view> lines = absl::StrSplit(head, '\n');
  for (absl::string_view& line : lines) absl::ConsumeSuffix(&line, "\r");
  const std::vector<absl::string_view> first = absl::StrSplit(lines[0], ' ');
  if (first.size() != 3 || !absl::StartsWith(first[2], "HTTP/1.")) {
    return Refuse(400, "this is no HTTP/1 request; GET /metrics");
  }
  ScrapeRequest request;
  request.head_only = first[0] == "HEAD";
  if (!request.head_only && first[0] != "GET") {
    return Refuse(405, "metrics are only read: GET /metrics");
  }
  if (first[1].substr(0, first[1].find('?')) != "/metrics") {
    ScrapeRequest refused = Refuse(404, "there is nothing here but /metrics");
    refused.head_only = request.head_only;
    return refused;
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    const size_t colon = lines[i].find(':');
    if (colon == absl::string_view::npos) continue;
    if (absl::EqualsIgnoreCase(lines[i].substr(0, colon), "accept") &&
        TakesOpenMetrics(lines[i].substr(colon + 1))) {
      request.format = MetricsFormat::kOpenMetrics;
    }
  }
  return request;
}

std::string ScrapeResponse(const ScrapeRequest& request,
                           absl::string_view body) {
  const bool ok = request.code == 200;
  std::string refusal;
  if (!ok) {
    refusal = absl::StrCat(request.why, "\n");
    body = refusal;
  }
  return absl::StrCat(
      "HTTP/1.1 ", request.code, " ", ReasonOf(request.code),
      "\r\nContent-Type: ",
      ok ? ContentTypeOf(request.format) : "text/plain; charset=utf-8",
      "\r\nContent-Length: ", body.size(),
      request.code == 405 ? "\r\nAllow: GET, HEAD" : "",
      "\r\nCache-Control: no-store\r\nConnection: close"
      "\r\n\r\n",
      request.head_only ? "" : body);
}

}  // namespace hoistd
