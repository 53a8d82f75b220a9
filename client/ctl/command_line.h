#ifndef HOIST_CLIENT_CTL_COMMAND_LINE_H_
#define HOIST_CLIENT_CTL_COMMAND_LINE_H_

#include <iosfwd>

namespace hoist::ctl {

// hoistctl, but for main(): reads the command line, runs it, returns an
// ExitCode. `terminal`: `out` is one.
int RunCommandLine(int argc, const char* const* argv, std::ostream& out,
                   std::ostream& err, bool terminal);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_COMMAND_LINE_H_
