#include "daemon/log/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/systemd_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "daemon/base/clock.h"
#include "daemon/base/start_thread.h"
#include "daemon/log/limited_sink.h"

namespace hoistd {
namespace {

constexpr char kName[] = "hoistd";  // And the journal's SYSLOG_IDENTIFIER.
constexpr std::chrono::seconds kTellEvery(5);

// Actions of admins. Refused attempts are warnings, and so limited.
bool IsAdminsAct(spdlog::level::level_enum level, absl::string_view text) {
  return level == spdlog::level::info && absl::StartsWith(text, "audit: ");
}

spdlog::sink_ptr SinkOf(const LogConfig& config) {
  const bool journal = config.sink == LogConfig::Sink::kJournal ||
                       (config.sink == LogConfig::Sink::kAuto &&
                        std::getenv("JOURNAL_STREAM") != nullptr);
  // The journal has its own fields for time, name and level.
  if (journal) return std::make_shared<spdlog::sinks::systemd_sink_mt>(kName);
  auto terminal = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  terminal->set_pattern("[%Y-%m-%d %H:%M:%S.%e] [%n] [%^%l%$] %v");
  return terminal;
}

LineLimits Limits() {
  LineLimits limits;
  limits.always = IsAdminsAct;
  return limits;
}

const Clock& MachineClock() {
  static const MonotonicClock clock;
  return clock;
}

}  // namespace

void SetLogLevel(LogConfig::Level level) {
  switch (level) {
    case LogConfig::Level::kDebug:
      return spdlog::set_level(spdlog::level::debug);
    case LogConfig::Level::kInfo:
      return spdlog::set_level(spdlog::level::info);
    case LogConfig::Level::kWarning:
      return spdlog::set_level(spdlog::level::warn);
    case LogConfig::Level::kError:
      return spdlog::set_level(spdlog::level::err);
  }
}

Log::Log(const LogConfig& config)
    : sink_(std::make_shared<LimitedSink>(SinkOf(config), MachineClock(),
                                          Limits())) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(kName, sink_));
  SetLogLevel(config.level);
  // Lines matter most right before a crash.
  spdlog::flush_on(spdlog::level::info);
}

Log::~Log() {
  spdlog::flush_every(std::chrono::seconds(0));  // No more.
  sink_->TellLeftOut();
}

absl::Status Log::KeepTelling() {
  try {
    spdlog::flush_every(kTellEvery);
  } catch (const std::system_error& thrown) {
    return NoThread(thrown);
  }
  return absl::OkStatus();
}

}  // namespace hoistd
