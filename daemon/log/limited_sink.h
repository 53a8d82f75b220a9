// A limit on the lines of one kind, before any other sink.
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
  uint64_t debug_lines = 5000;  // Who asked for these wants them.
  size_t kinds = 512;           // Known at once; the others are one.
  size_t bytes = 4096;          // Of a line; the rest is cut.
  // Lines that are always written; none.
  std::function<bool(spdlog::level::level_enum, absl::string_view)> always;
};

// A kind is a place in the code; of lines that name none, the text before the
// first digit. The first `lines` of a kind are written; when the window that
// began with the first of them ends, a line says how many there were beyond.
// That is seen when any line comes, and at flush(): somebody must call that now
// and then.
//
// Threads:  thread-safe, as spdlog's sinks are.
// Owns:     what was left out and not yet told; the destructor tells it.
// Bounds:   `kinds` records, each with one line cut to 200 bytes.
class LimitedSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // `clock` outlives it.
  LimitedSink(spdlog::sink_ptr to, const Clock& clock, LineLimits limits);
  ~LimitedSink() override;

  // What was left out so far, though its window has not ended.
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
    // Of those that were left out: the worst, and the last.
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

// `text` on one line, cut to so many bytes: control characters are escaped.
// Text that needs none of it is as it was.
std::string OneLogLine(absl::string_view text, size_t most_bytes);

}  // namespace hoistd

#endif  // HOIST_DAEMON_LOG_LIMITED_SINK_H_
