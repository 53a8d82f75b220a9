// A hoistd for one run.
#ifndef HOIST_TESTS_BENCH_DAEMON_H_
#define HOIST_TESTS_BENCH_DAEMON_H_

#include <cstdint>
#include <memory>
#include <string>

#include "tests/bench/child_process.h"
#include "tests/bench/report.h"
#include "tests/bench/run_options.h"

namespace hoist::bench {

struct DaemonSpec {
  DeviceKind device = DeviceKind::kEmulated;
  uint64_t device_bytes = 0;  // Of each pool.
  uint64_t host_bytes = 0;
  // Slabs of the device's pool. An image occupies whole slabs, so small ones
  // waste less.
  uint64_t slab_bytes = uint64_t{64} << 20;
  int devices = 1;       // Of those that are emulated.
  double load_rate = 0;  // GB/s; 0: no cap.
};

// Owns: the process and its folder below the run's scratch folder.
class Daemon {
 public:
  // Returns once it listens. `number` distinguishes the daemons of one run.
  Daemon(const RunOptions& options, const DaemonSpec& spec, int number = 0);
  // Stops it and waits for its end.
  ~Daemon();

  std::string socket() const { return folder_ + "/hoistd.sock"; }
  const std::string& folder() const { return folder_; }
  const std::string& ctl() const { return ctl_; }  // hoistctl's path.
  pid_t pid() const { return process_->pid(); }
  // Time from its start to its socket's appearance.
  double start_seconds() const { return start_seconds_; }
  double started_at() const { return started_at_; }

  // Runs `hoistctl COMMAND...`; ignores its output.
  void Do(const std::string& command) const;
  // `hoistctl COMMAND... --json`, parsed.
  Json Ctl(const std::string& command) const;
  // Bytes so far: host_to_device_bytes and so on.
  uint64_t Counter(const std::string& name) const;
  // Waits until the host pool is complete, since pinning takes memory
  // bandwidth.
  void WaitWhole() const;

 private:
  std::string Run(const std::string& command) const;

  std::string folder_;
  std::string ctl_;
  std::unique_ptr<ChildProcess> process_;
  double started_at_ = 0;
  double start_seconds_ = 0;
};

// Reads a number of Protobuf's JSON, which omits zeroes, quotes 64-bit numbers,
// and writes snake_case or camelCase.
uint64_t ProtoNumber(const Json& object, const std::string& name);

// hoistd's path by RunOptions::hoistd's rule.
std::string FindHoistd(const RunOptions& options);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_DAEMON_H_
