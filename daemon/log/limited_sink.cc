#include "daemon/log/limited_sink.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "hoist/shared/printable.h"

namespace hoistd {
namespace {

constexpr size_t kExampleBytes = 200;
constexpr size_t kKindBytes = 80;

absl::string_view TextOf(const spdlog::details::log_msg& message) {
  return {message.payload.data(), message.payload.size()};
}

std::string NameOfKind(const spdlog::details::log_msg& message) {
  if (!message.source.empty()) {
    return absl::StrCat(message.source.filename, ":", message.source.line);
  }
  const absl::string_view text = TextOf(message).substr(0, kKindBytes);
  return std::string(text.substr(0, text.find_first_of("0123456789")));
}

// The length of printable text at the start of `text`, which is not empty; 0:
// it starts with a byte to be escaped.
size_t PlainLength(absl::string_view text) {
  return hoist::PrintableLength({text.data(), text.size()});
}

bool IsPlain(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = PlainLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace

LimitedSink::LimitedSink(spdlog::sink_ptr to, const Clock& clock,
                         LineLimits limits)
    : to_(std::move(to)), clock_(clock), limits_(std::move(limits)) {}

LimitedSink::~LimitedSink() { TellEnded(absl::InfiniteFuture()); }

void LimitedSink::TellLeftOut() {
  const std::lock_guard<std::mutex> lock(mutex_);
  TellEnded(absl::InfiniteFuture());
  to_->flush();
}

void LimitedSink::sink_it_(const spdlog::details::log_msg& message) {
  if (limits_.always != nullptr &&
      limits_.always(message.level, TextOf(message))) {
    return Write(message);
  }
  const absl::Time now = clock_.Now();
  TellEnded(now);
  Kind& kind = KindOf(message, now);
  const uint64_t room = message.level <= spdlog::level::debug
                            ? limits_.debug_lines
                            : limits_.lines;
  if (kind.written < room) {
    ++kind.written;
    return Write(message);
  }
  ++kind.left_out;
  kind.level = std::max(kind.level, message.level);
  kind.text = OneLogLine(TextOf(message), kExampleBytes);
  kind.logger.assign(message.logger_name.data(), message.logger_name.size());
  kind.source = message.source;
}

LimitedSink::Kind& LimitedSink::KindOf(const spdlog::details::log_msg& message,
                                       absl::Time now) {
  std::string name = NameOfKind(message);
  if (kinds_.size() >= limits_.kinds && !kinds_.contains(name)) name.clear();
  Kind& kind = kinds_[name];
  if (kind.written == 0 && kind.left_out == 0) {
    kind.begin = now;
    next_end_ = std::min(next_end_, now + limits_.window);
  }
  return kind;
}

void LimitedSink::Write(const spdlog::details::log_msg& message) {
  const absl::string_view text = TextOf(message);
  if (text.size() <= limits_.bytes && IsPlain(text)) {
    if (to_->should_log(message.level)) to_->log(message);
    return;
  }
  const std::string line = OneLogLine(text, limits_.bytes);
  spdlog::details::log_msg other = message;
  other.payload = line;
  if (to_->should_log(other.level)) to_->log(other);
}

void LimitedSink::TellEnded(absl::Time now) {
  if (now < next_end_) return;
  next_end_ = absl::InfiniteFuture();
  for (auto it = kinds_.begin(); it != kinds_.end();) {
    const absl::Time end = it->second.begin + limits_.window;
    if (now < end) {
      next_end_ = std::min(next_end_, end);
      ++it;
      continue;
    }
    if (it->second.left_out > 0) Tell(it->second, now);
    it = kinds_.erase(it);
  }
}

void LimitedSink::Tell(const Kind& kind, absl::Time now) {
  const absl::Duration passed = now == absl::InfiniteFuture()
                                    ? clock_.Now() - kind.begin
                                    : now - kind.begin;
  const std::string line = absl::StrFormat(
      "%d more line%s like this in the last %d s: %s", kind.left_out,
      kind.left_out == 1 ? "" : "s",
      absl::ToInt64Seconds(absl::Ceil(passed, absl::Seconds(1))), kind.text);
  to_->log(
      spdlog::details::log_msg(kind.source, kind.logger, kind.level, line));
}

void LimitedSink::flush_() {
  TellEnded(clock_.Now());
  to_->flush();
}

void LimitedSink::set_pattern_(const std::string& pattern) {
  to_->set_pattern(pattern);
}

void LimitedSink::set_formatter_(std::unique_ptr<spdlog::formatter> formatter) {
  to_->set_formatter(std::move(formatter));
}

std::string OneLogLine(absl::string_view text, size_t most_bytes) {
  std::string line;
  line.reserve(std::min(text.size(), most_bytes) + 3);
  while (!text.empty()) {
    const size_t length = PlainLength(text);
    // Never cuts inside a character.
    if (line.size() + std::max<size_t>(length, 1) > most_bytes) {
      return line + "...";
    }
    if (text[0] == '\n') {
      line += "\\n";
    } else if (length == 0) {
      absl::StrAppendFormat(&line, "\\x%02x",
                            static_cast<unsigned char>(text[0]));
    } else {
      absl::StrAppend(&line, text.substr(0, length));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return line;
}

}  // namespace hoistd
