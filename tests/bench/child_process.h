// A program started by a bench; it ends with its starter at the latest.
#ifndef HOIST_TESTS_BENCH_CHILD_PROCESS_H_
#define HOIST_TESTS_BENCH_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace hoist::bench {

struct ChildSpec {
  std::vector<std::string> arguments;  // The first is the program's path.
  std::string log;        // Gets stderr, and stdout unless that is `output_fd`.
  int output_fd = -1;     // Its stdout.
  int inherited_fd = -1;  // Stays open in it, under the same number.
};

// Owns: the process; killed and waited for at the end.
class ChildProcess {
 public:
  explicit ChildProcess(const ChildSpec& spec);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  void Signal(int number) const;
  bool Running();
  // Sends signal `number`, waits for the end. A second call has no effect.
  void End(int number);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

// The readable text of a file.
std::string ReadText(const std::string& path);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_CHILD_PROCESS_H_
