#ifndef HOIST_DAEMON_METRICS_SCRAPE_REQUEST_H_
#define HOIST_DAEMON_METRICS_SCRAPE_REQUEST_H_

#include <string>

#include "absl/strings/string_view.h"
#include "daemon/metrics/exposition.h"

namespace hoistd {

// What of an HTTP request's head matters here.
struct ScrapeRequest {
  int code = 200;          // Of HTTP; else than 200: it is refused so,
  std::string why;         // and told this.
  bool head_only = false;  // HEAD: no body is sent.
  MetricsFormat format = MetricsFormat::kText;
};

// Where the head ends in what has come so far, behind its empty line; npos: it
// is still to come.
size_t EndOfHead(absl::string_view bytes);
// `head`: hostile, as long as the server lets it be.
ScrapeRequest ParseScrape(absl::string_view head);
// "HTTP/1.1 200 OK" and so on, with the body that is meant for `request`.
std::string ScrapeResponse(const ScrapeRequest& request,
                           absl::string_view body);

}  // namespace hoistd

#endif  // HOIST_DAEMON_METRICS_SCRAPE_REQUEST_H_
