// A recording of what the links of a hoistd do, by hoistctl trace.
#ifndef HOIST_TESTS_BENCH_RECORDING_H_
#define HOIST_TESTS_BENCH_RECORDING_H_

#include <memory>
#include <string>
#include <vector>

#include "tests/bench/child_process.h"
#include "tests/bench/daemon.h"

namespace hoist::bench {

// A time in which device 0 copied nothing.
struct LinkGap {
  std::string cause;  // As hoistctl trace names it.
  double seconds = 0;
};

// Owns: the process, and a file in the daemon's folder.
class Recording {
 public:
  // Returns once it records.
  explicit Recording(const Daemon& daemon);
  // Ends it. The gaps between the first copy and the last, of 1 ms and more.
  std::vector<LinkGap> Finish();

 private:
  const std::string path_;
  const std::string log_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_RECORDING_H_
