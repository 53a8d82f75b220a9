#ifndef HOIST_DAEMON_METRICS_PROCESS_STATS_H_
#define HOIST_DAEMON_METRICS_PROCESS_STATS_H_

#include <cstdint>

namespace hoistd {

// Statistics of this process, from /proc. 0: a value that cannot be read.
struct ProcessStats {
  double start_seconds = 0;  // Since the Unix epoch.
  double cpu_seconds = 0;
  uint64_t resident_bytes = 0;
  uint64_t virtual_bytes = 0;
  uint64_t threads = 0;
  uint64_t open_fds = 0;
  uint64_t max_fds = 0;
};

ProcessStats ReadProcessStats();

}  // namespace hoistd

#endif  // HOIST_DAEMON_METRICS_PROCESS_STATS_H_
