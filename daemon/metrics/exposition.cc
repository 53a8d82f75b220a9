#include "daemon/metrics/exposition.h"

#include <charconv>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace hoistd {
namespace {

// The shortest text that reads back as the same value.
std::string Exact(double value) {
  char text[32];
  const auto end = std::to_chars(std::begin(text), std::end(text), value);
  return std::string(text, end.ptr);
}

// Like Go and Python write floats: OpenMetrics requires that form for bounds.
std::string Bound(double value) {
  std::string text = absl::StrCat(value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

bool IsContinuation(char c) { return (c & 0xc0) == 0x80; }

// The length of the UTF-8 character at `at`; 0: not a valid one.
size_t CharacterAt(absl::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xf0   ? 4
                       : first >= 0xe0 ? 3
                       : first >= 0xc2 ? 2
                                       : 0;
  if (bytes == 0 || first > 0xf4 || at + bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if (!IsContinuation(text[at + i])) return 0;
  }
  const auto second = static_cast<unsigned char>(text[at + 1]);
  const bool overlong =
      (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool beyond = (first == 0xed && second >= 0xa0) ||  // Surrogates.
                      (first == 0xf4 && second >= 0x90);
  return overlong || beyond ? 0 : bytes;
}

// Scrapers drop the whole scrape if a value is not UTF-8.
void AppendValue(absl::string_view value, std::string& text) {
  for (size_t at = 0; at < value.size();) {
    const size_t bytes = CharacterAt(value, at);
    if (bytes == 0) {
      text += "\xef\xbf\xbd";
      ++at;
      continue;
    }
    switch (value[at]) {
      case '\\':
        text += "\\\\";
        break;
      case '"':
        text += "\\\"";
        break;
      case '\n':
        text += "\\n";
        break;
      default:
        text.append(value.data() + at, bytes);
    }
    at += bytes;
  }
}

}  // namespace

const char* ContentTypeOf(MetricsFormat format) {
  return format == MetricsFormat::kOpenMetrics
             ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8";
}

void Exposition::Gauge(absl::string_view name, absl::string_view help) {
  Begin(name, "gauge", help);
}

void Exposition::Counter(absl::string_view name, absl::string_view help) {
  Begin(name, "counter", help);
}

void Exposition::Histogram(absl::string_view name, absl::string_view help) {
  Begin(name, "histogram", help);
}

void Exposition::Begin(absl::string_view name, absl::string_view type,
                       absl::string_view help) {
  name_ = std::string(name);
  // In OpenMetrics a counter's family lacks its samples' suffix.
  if (format_ == MetricsFormat::kOpenMetrics) {
    absl::ConsumeSuffix(&name, "_total");
  }
  absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ",
                  type, "\n");
}

void Exposition::Line(absl::string_view suffix, Labels labels,
                      absl::string_view bound, absl::string_view value) {
  absl::StrAppend(&text_, name_, suffix);
  char before = '{';
  const auto add = [&](absl::string_view name, absl::string_view label) {
    text_ += std::exchange(before, ',');
    absl::StrAppend(&text_, name, "=\"");
    AppendValue(label, text_);
    text_ += '"';
  };
  for (const auto& [name, label] : labels) {
    if (!label.empty()) add(name, label);
  }
  if (!bound.empty()) add("le", bound);
  if (before == ',') text_ += '}';
  absl::StrAppend(&text_, " ", value, "\n");
}

void Exposition::Sample(uint64_t value, Labels labels) {
  Line("", labels, "", absl::StrCat(value));
}

void Exposition::Seconds(double value, Labels labels) {
  Line("", labels, "", Exact(value));
}

void Exposition::Times(const TimeHistogram& times, Labels labels) {
  uint64_t up_to = 0;
  for (size_t i = 0; i < TimeHistogram::kBounds.size(); ++i) {
    up_to += times.counts[i];
    Line("_bucket", labels, Bound(TimeHistogram::kBounds[i]),
         absl::StrCat(up_to));
  }
  Line("_bucket", labels, "+Inf", absl::StrCat(times.total));
  Line("_sum", labels, "", Exact(times.seconds));
  Line("_count", labels, "", absl::StrCat(times.total));
}

std::string Exposition::Take() {
  if (format_ == MetricsFormat::kOpenMetrics) text_ += "# EOF\n";
  return std::move(text_);
}

}  // namespace hoistd
