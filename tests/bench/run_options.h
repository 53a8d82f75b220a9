// Options shared by all subcommands, and how to add one.
#ifndef HOIST_TESTS_BENCH_RUN_OPTIONS_H_
#define HOIST_TESTS_BENCH_RUN_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace hoist::bench {

enum class DeviceKind { kEmulated, kCuda };

struct RunOptions {
  std::string hoistd;  // Empty: beside this program, ../bin, $PATH.
  std::string device = "auto";
  std::string share = "vmm";
  std::string link = "0";  // Of the emulated device.
  std::string cublas;      // libcublas.so; empty: the loader's, Python's.
  std::string json;
  std::string folder = "/tmp";  // For a run's own files.

  // Set by main: a folder below `folder`, always removed at the end.
  std::string scratch;
};

// Adds a subcommand whose body runs after parsing, in a process of its own.
struct Command {
  CLI::App* app = nullptr;
  std::function<void(const RunOptions&)> run;
};

Command StreamCommand(CLI::App& app);
Command SlowdownCommand(CLI::App& app);
Command HotpathCommand(CLI::App& app);
Command AttachCommand(CLI::App& app);
Command PolicyCommand(CLI::App& app);
Command FairnessCommand(CLI::App& app);
Command BesideCommand(CLI::App& app);
Command PoolCommand(CLI::App& app);
Command DiskCommand(CLI::App& app);
// A hidden subcommand: a process started by another one.
Command WorkerCommand(CLI::App& app);

// The requested device; "auto": CUDA if there is a GPU.
DeviceKind ChosenDevice(const RunOptions& options);

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_RUN_OPTIONS_H_
