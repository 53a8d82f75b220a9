#include <unistd.h>

#include <iostream>

#include "client/ctl/command_line.h"

int main(int argc, char** argv) {
  return hoist::ctl::RunCommandLine(argc, argv, std::cout, std::cerr,
                                    isatty(STDOUT_FILENO) == 1);
}
