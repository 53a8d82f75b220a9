#include <stdlib.h>
#include <unistd.h>

#include <iostream>

#include "client/ctl/command_line.h"

int main(int argc, char** argv) {
  // A refusal is one line; gRPC's own log would add to it. 0: unless asked for.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  return hoist::ctl::RunCommandLine(argc, argv, std::cout, std::cerr,
                                    isatty(STDOUT_FILENO) == 1);
}
