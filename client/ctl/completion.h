// What a shell offers when Tab is hit. The shells' scripts know nothing: each
// asks `hoistctl __complete WORD...`, so that there is one place that knows
// commands, and the daemon is asked for names of models, groups and plans.
#ifndef HOIST_CLIENT_CTL_COMPLETION_H_
#define HOIST_CLIENT_CTL_COMPLETION_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace hoist::ctl {

// Something that can stand in one place of a command line.
struct Candidate {
  std::string word;
  std::string help;
};

// An option, or a positional argument.
struct CompletedArgument {
  std::string name;  // "--tier", "MODEL".
  std::string help;
  bool takes_value = true;
  std::vector<std::string> values;  // Empty: by its name, or anything.
};

struct CompletedCommand {
  std::string name;
  std::string help;
  std::vector<CompletedArgument> options;
  std::vector<CompletedArgument> positionals;
};

struct CompletedLine {
  std::vector<CompletedArgument> options;  // Of all commands.
  std::vector<CompletedCommand> commands;
};

// What the daemon knows by the name of an argument, such as "MODEL" or "GROUP".
// `before`: the positional arguments that are there already. `socket`: "" or
// what --socket says.
using AskDaemon = std::function<std::vector<Candidate>(
    const std::string& argument, const std::vector<std::string>& before,
    const std::string& socket)>;

// The first line that is written where the shell should offer files.
inline constexpr char kCompleteFiles[] = ":files";

// Writes, one a line, "word<Tab>help" of all that the last of `words` can
// become. `words`: what follows "hoistctl", up to where Tab was hit.
void WriteCandidates(const CompletedLine& line,
                     const std::vector<std::string>& words,
                     const AskDaemon& ask, std::ostream& out);

// Asks the daemon at that socket, and offers nothing where it does not answer
// at once, or refuses.
std::vector<Candidate> NamesOfDaemon(const std::string& argument,
                                     const std::vector<std::string>& before,
                                     const std::string& socket);

// A script for "bash", "zsh" or "fish"; "" for another shell.
std::string CompletionScript(const std::string& shell);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_COMPLETION_H_
