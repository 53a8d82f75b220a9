// The text for scrapers: Prometheus' own format, or OpenMetrics.
#ifndef HOIST_DAEMON_METRICS_EXPOSITION_H_
#define HOIST_DAEMON_METRICS_EXPOSITION_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "daemon/base/time_histogram.h"

namespace hoistd {

enum class MetricsFormat { kText, kOpenMetrics };

// The format's HTTP content type.
const char* ContentTypeOf(MetricsFormat format);

// Families in sequence, each with its samples. Names and label names are ours,
// and valid; label values may be any bytes.
class Exposition {
 public:
  using Labels =
      std::initializer_list<std::pair<absl::string_view, absl::string_view>>;

  explicit Exposition(MetricsFormat format) : format_(format) {}

  void Gauge(absl::string_view name, absl::string_view help);
  // `name` ends with "_total", like its samples.
  void Counter(absl::string_view name, absl::string_view help);
  void Histogram(absl::string_view name, absl::string_view help);

  // A sample of the last family. Labels without a value are omitted.
  void Sample(uint64_t value, Labels labels = {});
  void Seconds(double value, Labels labels = {});
  void Times(const TimeHistogram& times, Labels labels = {});

  // Call once, at the end.
  std::string Take();

 private:
  void Begin(absl::string_view name, absl::string_view type,
             absl::string_view help);
  void Line(absl::string_view suffix, Labels labels, absl::string_view bound,
            absl::string_view value);

  const MetricsFormat format_;
  std::string name_;
  std::string text_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_METRICS_EXPOSITION_H_
