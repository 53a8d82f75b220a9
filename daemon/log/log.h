// hoistd's log.
#ifndef HOIST_DAEMON_LOG_LOG_H_
#define HOIST_DAEMON_LOG_LOG_H_

#include <memory>

#include "absl/status/status.h"
#include "daemon/config/config.h"

namespace hoistd {

class LimitedSink;

// Directs this process's log lines from now on. Its destructor reports
// suppressed lines.
//
// Threads:  made and destroyed while no other thread logs; KeepTelling starts
//           one.
class Log {
 public:
  explicit Log(const LogConfig& config);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // From now on, suppressed lines are reported even if no other line comes.
  // StartThread's errors.
  absl::Status KeepTelling();

 private:
  const std::shared_ptr<LimitedSink> sink_;
};

// Thread-safe.
void SetLogLevel(LogConfig::Level level);

}  // namespace hoistd

#endif  // HOIST_DAEMON_LOG_LOG_H_
