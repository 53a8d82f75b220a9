#ifndef HOIST_DAEMON_METRICS_SCRAPE_REQUEST_H_
#define HOIST_DAEMON_METRICS_SCRAPE_REQUEST_H_

#include <string>

#include "absl/strings/string_view.h"
#include "daemon/metrics/exposition.h"

namespace hoistd {

// The relevant part of an HTTP request's head.
struct ScrapeRequest {
  int code = 200;          // Of HTTP; else than 200: it is refused so,
  std::string why;         // and told this.
  bool head_only = false;  // HEAD: no body is sent.
  MetricsFormat format = MetricsFormat::kText;
};

// The end of the head in the bytes so far, after its empty line; npos: not
// received yet.
size_t EndOfHead(absl::string_view bytes);
// `head`: untrusted; the server bounds its length.
ScrapeRequest ParseScrape(absl::string_view head);
// "HTTP/1.1 200 OK" and so on. `body` is used if the request is answered.
std::string ScrapeResponse(const ScrapeRequest& request,
                           absl::string_view body);

}  // namespace hoistd

#endif  // HOIST_DAEMON_METRICS_SCRAPE_REQUEST_H_
