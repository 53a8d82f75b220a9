#include "daemon/metrics/process_stats.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "daemon/base/machine_files.h"

namespace hoistd {
namespace {

double SecondsOf(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) / 1e9;
}

// Since Linux 6.2 the size of the folder is the count; before, entries are
// counted.
uint64_t OpenFds() {
  struct stat info;
  if (stat("/proc/self/fd", &info) == 0 && info.st_size > 0) {
    return static_cast<uint64_t>(info.st_size);
  }
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  uint64_t entries = 0;
  while (readdir(folder) != nullptr) ++entries;
  closedir(folder);
  return entries - std::min<uint64_t>(entries, 3);  // ".", "..", the folder.
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  stats.cpu_seconds = SecondsOf(CLOCK_PROCESS_CPUTIME_ID);
  stats.open_fds = OpenFds();
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = limit.rlim_cur;
  // After the name, which may have any bytes: proc(5), from field 3 on.
  const std::string text = ReadKernelFile("/proc/self/stat");
  const size_t name_ends = text.rfind(") ");
  if (name_ends == std::string::npos) return stats;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(text).substr(name_ends + 2), ' ');
  const auto field = [&](size_t number) -> uint64_t {
    uint64_t value = 0;
    const size_t at = number - 3;
    return at < fields.size() && absl::SimpleAtoi(fields[at], &value) ? value
                                                                      : 0;
  };
  stats.threads = field(20);
  stats.virtual_bytes = field(23);
  stats.resident_bytes = field(24) * static_cast<uint64_t>(getpagesize());
  const double since_boot = static_cast<double>(field(22)) /
                            static_cast<double>(sysconf(_SC_CLK_TCK));
  stats.start_seconds =
      SecondsOf(CLOCK_REALTIME) - SecondsOf(CLOCK_BOOTTIME) + since_boot;
  return stats;
}

}  // namespace hoistd
