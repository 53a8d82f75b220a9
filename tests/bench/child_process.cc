#include "tests/bench/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "tests/bench/basics.h"

namespace hoist::bench {

ChildProcess::ChildProcess(const ChildSpec& spec) {
  std::vector<char*> argv;
  for (const std::string& argument : spec.arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ < 0) Fail("fork failed");
  if (pid_ > 0) return;
  // From here on only what is allowed between fork and exec.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int log = open(spec.log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(log, STDERR_FILENO);
  dup2(spec.output_fd >= 0 ? spec.output_fd : log, STDOUT_FILENO);
  if (spec.inherited_fd >= 0) fcntl(spec.inherited_fd, F_SETFD, 0);
  execv(argv[0], argv.data());
  _exit(127);
}

ChildProcess::~ChildProcess() { End(SIGKILL); }

void ChildProcess::Signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

bool ChildProcess::Running() {
  if (pid_ <= 0) return false;
  if (waitpid(pid_, nullptr, WNOHANG) == 0) return true;
  pid_ = -1;
  return false;
}

void ChildProcess::End(int number) {
  if (pid_ <= 0) return;
  kill(pid_, number);
  kill(pid_, SIGCONT);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace hoist::bench
