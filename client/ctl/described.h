#ifndef HOIST_CLIENT_CTL_DESCRIBED_H_
#define HOIST_CLIENT_CTL_DESCRIBED_H_

#include <CLI/CLI.hpp>
#include <vector>

#include "client/ctl/completion.h"

namespace hoist::ctl {

// A command's options, or its positional arguments, for completion.
std::vector<CompletedArgument> ArgumentsOf(const CLI::App& command,
                                           bool positional);

}  // namespace hoist::ctl

#endif  // HOIST_CLIENT_CTL_DESCRIBED_H_
