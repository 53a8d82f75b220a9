// hoistd's log.
#ifndef HOIST_DAEMON_LOG_LOG_H_
#define HOIST_DAEMON_LOG_LOG_H_

#include <memory>

#include "absl/status/status.h"
#include "daemon/config/config.h"

namespace hoistd {

class LimitedSink;

// Where this process's lines go, from now on. Its end tells what was left out
// until then.
//
// Threads:  made and ended while there are no others that log; KeepTelling
//           starts one.
class Log {
 public:
  explicit Log(const LogConfig& config);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // From now on lines that are left out are told of though no other comes.
  // StartThread's errors.
  absl::Status KeepTelling();

 private:
  const std::shared_ptr<LimitedSink> sink_;
};

// Thread-safe.
void SetLogLevel(LogConfig::Level level);

}  // namespace hoistd

#endif  // HOIST_DAEMON_LOG_LOG_H_
