#ifndef HOIST_CLIENT_CTL_COMPLETION_H_
#define HOIST_CLIENT_CTL_COMPLETION_H_

#include <string>
#include <vector>

namespace hoist::ctl {

struct CompletedCommand {
  std::string name;
  std::string help;
  std::vector<std::string> options;  // "--tier" and so on.
};

// A script for "bash", "zsh" or "fish" that completes `commands` and their
// options; "" for another shell.
std::string CompletionScript(const std::string& shell,
                             const std::vector<CompletedCommand>& commands);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_COMPLETION_H_
