#include <filesystem>
#include <memory>

#include "tests/bench/basics.h"
#include "tests/bench/run_options.h"
#include "tests/bench/worker_modes.h"

namespace hoist::bench {

std::vector<std::string> WorkerCommandLine(const std::string& mode,
                                           const Json& arguments) {
  return {std::filesystem::read_symlink("/proc/self/exe"), "worker", mode,
          arguments.dump()};
}

Command WorkerCommand(CLI::App& app) {
  struct Given {
    std::string mode;
    std::string arguments;
  };
  auto given = std::make_shared<Given>();
  CLI::App* command = app.add_subcommand("worker", "");
  command->group("");  // Not in --help.
  command->add_option("mode", given->mode)->required();
  command->add_option("arguments", given->arguments)->required();
  return {command, [given](const RunOptions&) {
            const Json arguments =
                Json::parse(given->arguments, nullptr, false);
            if (given->mode == "stream") {
              RunStreamWorker(arguments);
            } else if (given->mode == "attach") {
              RunAttachWorker(arguments);
            } else {
              Fail("no worker does " + given->mode);
            }
          }};
}

}  // namespace hoist::bench
