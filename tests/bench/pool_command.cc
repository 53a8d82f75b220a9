// pool: how long the pinned host pool takes to come up, beside what this
// process needs to touch, or pin, as much memory with one thread.
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/bench/basics.h"
#include "tests/bench/daemon.h"
#include "tests/bench/gpu.h"
#include "tests/bench/report.h"
#include "tests/bench/run_options.h"

namespace hoist::bench {
namespace {

struct PoolOptions {
  double gib = 16;
  double plain_gib = 2;
  int rounds = 3;
};

// Bytes a second: mapped, touched and, with a GPU, registered.
double PlainRate(Gpu* gpu, uint64_t bytes) {
  const double begin = Now();
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) Fail("cannot map that much; see --plain-gib");
  if (gpu != nullptr) {
    gpu->Require(
        gpu->driver().host_register(memory, bytes, cuda::kHostRegisterPortable),
        "cuMemHostRegister");
  }
  const double took = Now() - begin;
  if (gpu != nullptr) {
    gpu->Require(gpu->driver().host_unregister(memory), "cuMemHostUnregister");
  }
  munmap(memory, bytes);
  return static_cast<double>(bytes) / took;
}

void RunPool(const RunOptions& run, const PoolOptions& options) {
  const DeviceKind kind = ChosenDevice(run);
  Report report("pool", {{"gib", options.gib},
                         {"plain_gib", options.plain_gib},
                         {"rounds", options.rounds}});
  std::unique_ptr<Gpu> gpu;
  if (kind == DeviceKind::kCuda) gpu = std::make_unique<Gpu>();
  report.SetDevice(gpu ? gpu->name() : "emulated");
  DaemonSpec spec;
  spec.device = kind;
  spec.device_bytes = 256 * kMiB;
  spec.host_bytes = static_cast<uint64_t>(options.gib * double(kGiB));
  const auto plain = static_cast<uint64_t>(
      std::min(options.plain_gib, options.gib) * double(kGiB));
  for (int round = 0; round < options.rounds; ++round) {
    const double limit = PlainRate(gpu.get(), plain);
    const Daemon daemon(run, spec, round);
    daemon.WaitWhole();
    const double whole = Now() - daemon.started_at();
    const double rate = static_cast<double>(spec.host_bytes) / whole;
    report.Add({{"round", round},
                {"gib", options.gib},
                {"serves_ms", daemon.start_seconds() * 1e3},
                {"whole_ms", whole * 1e3},
                {"gb_per_s", rate / 1e9},
                {"one_thread_gb_per_s", limit / 1e9},
                {"of_one_thread", rate / limit}});
  }
  report.Note(
      "whole_ms begins with hoistd's start and is seen by hoistctl, to about "
      "20 ms. The first round may be the first touch of a virtual machine's "
      "memory.");
  report.Finish(run.json);
}

}  // namespace

Command PoolCommand(CLI::App& app) {
  auto options = std::make_shared<PoolOptions>();
  CLI::App* command = app.add_subcommand("pool", "the host pool's start");
  command->add_option("--gib", options->gib);
  command->add_option("--plain-gib", options->plain_gib,
                      "what this process touches to compare");
  command->add_option("--rounds", options->rounds);
  return {command,
          [options](const RunOptions& run) { RunPool(run, *options); }};
}

}  // namespace hoist::bench
