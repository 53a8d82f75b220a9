// A rate limit on lines of one kind, in front of another sink.
#ifndef HOIST_DAEMON_LOG_LIMITED_SINK_H_
#define HOIST_DAEMON_LOG_LIMITED_SINK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "spdlog/sinks/base_sink.h"

namespace hoistd {

struct LineLimits {
  absl::Duration window = absl::Seconds(30);
  uint64_t lines = 60;          // Of a kind in a window; more are counted.
  uint64_t debug_lines = 5000;  // Enabled on request, so wanted.
  size_t kinds = 512;           // Tracked at once; the rest is one.
  size_t bytes = 4096;          // Of a line; the rest is cut.
  // Lines that are always written; empty: none.
  std::function<bool(spdlog::level::level_enum, absl::string_view)> always;
};

// A kind is a place in the code or, for lines without one, the text before the
// first digit. The first `lines` of a kind in a window are written. The window
// begins with the first of them; after its end, one line reports the number of
// suppressed ones. That line is written with the next line of any kind, or in
// flush(), which must be called now and then.
//
// Threads:  thread-safe, like spdlog's sinks.
// Owns:     unreported suppressed lines; the destructor reports them.
// Bounds:   `kinds` records, each with one line cut to 200 bytes.
class LimitedSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // `clock` outlives it.
  LimitedSink(spdlog::sink_ptr to, const Clock& clock, LineLimits limits);
  ~LimitedSink() override;

  // Reports suppressed lines now, before their window ends.
  void TellLeftOut();

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override;
  void set_pattern_(const std::string& pattern) override;
  void set_formatter_(std::unique_ptr<spdlog::formatter> formatter) override;

 private:
  struct Kind {
    absl::Time begin;
    uint64_t written = 0;
    uint64_t left_out = 0;
    // The worst level of the suppressed lines, and the last line.
    spdlog::level::level_enum level = spdlog::level::trace;
    std::string text;
    std::string logger;
    spdlog::source_loc source;
  };

  Kind& KindOf(const spdlog::details::log_msg& message, absl::Time now);
  void Write(const spdlog::details::log_msg& message);
  void TellEnded(absl::Time now);
  void Tell(const Kind& kind, absl::Time now);

  const spdlog::sink_ptr to_;
  const Clock& clock_;
  const LineLimits limits_;
  std::map<std::string, Kind> kinds_;
  absl::Time next_end_ = absl::InfiniteFuture();
};

// `text` on one line, cut to `most_bytes`, with control characters escaped.
// Other text is unchanged.
std::string OneLogLine(absl::string_view text, size_t most_bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_LOG_LIMITED_SINK_H_
