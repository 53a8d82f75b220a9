#include "daemon/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/systemd_sink.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

namespace hoistd {

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

void SetUpLog(const LogConfig& config) {
  const bool journal = config.sink == LogConfig::Sink::kJournal ||
                       (config.sink == LogConfig::Sink::kAuto &&
                        std::getenv("JOURNAL_STREAM") != nullptr);
  spdlog::set_default_logger(journal ? spdlog::systemd_logger_mt("hoistd")
                                     : spdlog::stderr_color_mt("hoistd"));
  SetLogLevel(config.level);
  // A line is worth most right before a crash.
  spdlog::flush_on(spdlog::level::info);
}

}  // namespace hoistd
