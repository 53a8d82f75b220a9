// hoistd's log.
#ifndef HOIST_DAEMON_LOG_H_
#define HOIST_DAEMON_LOG_H_

#include "daemon/config/config.h"

namespace hoistd {

// Before there are threads.
void SetUpLog(const LogConfig& config);
// Thread-safe.
void SetLogLevel(LogConfig::Level level);

}  // namespace hoistd

#endif  // HOIST_DAEMON_LOG_H_
