#ifndef HOIST_TESTS_SUPPORT_CAPTURED_LOG_H_
#define HOIST_TESTS_SUPPORT_CAPTURED_LOG_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

namespace hoistd::testing {

// Captures this process's log lines for its lifetime, instead of their usual
// sink.
//
// Threads: lines() from any; make and destroy it while no thread logs.
class CapturedLog {
 public:
  CapturedLog() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("captured", sink_));
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  // The messages that start with `start`, oldest first.
  std::vector<std::string> lines(absl::string_view start) const {
    std::vector<std::string> found;
    for (std::string& line : sink_->All()) {
      if (absl::StartsWith(line, start)) found.push_back(std::move(line));
    }
    return found;
  }

 private:
  class Sink final : public spdlog::sinks::base_sink<std::mutex> {
   public:
    std::vector<std::string> All() {
      const std::lock_guard<std::mutex> lock(mutex_);
      return lines_;
    }

   private:
    void sink_it_(const spdlog::details::log_msg& message) override {
      lines_.emplace_back(message.payload.data(), message.payload.size());
    }
    void flush_() override {}

    std::vector<std::string> lines_;
  };

  const std::shared_ptr<spdlog::logger> before_;
  const std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_CAPTURED_LOG_H_
