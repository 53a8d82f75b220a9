// disk: a cold file to the device, beside reading it with O_DIRECT.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/basics.h"
#include "tests/bench/client.h"
#include "tests/bench/daemon.h"
#include "tests/bench/report.h"
#include "tests/bench/run_options.h"
#include "tests/bench/synthetic.h"

namespace hoist::bench {
namespace {

constexpr uint64_t kBlock = kMiB;
constexpr int kReaders = 32;

struct DiskOptions {
  double gib = 2;
  double group_mib = 64;
  int rounds = 4;
};

void DropFromCache(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fsync(fd) != 0 ||
      posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0) {
    Fail("cannot drop " + path + " from the page cache");
  }
  close(fd);
}

// Bytes a second of O_DIRECT reads of 1 MiB, 32 of them under way.
double RawRate(const std::string& path, uint64_t bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd < 0) Fail("O_DIRECT is not possible in this folder; see --folder");
  std::atomic<uint64_t> next = 0;
  std::atomic<uint64_t> got = 0;
  const auto reader = [&] {
    void* buffer = std::aligned_alloc(4096, kBlock);
    for (;;) {
      const uint64_t at = next.fetch_add(kBlock);
      if (at >= bytes) break;
      const ssize_t read = pread(fd, buffer, kBlock, static_cast<off_t>(at));
      if (read <= 0) break;
      got += static_cast<uint64_t>(read);
    }
    std::free(buffer);
  };
  const double begin = Now();
  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) readers.emplace_back(reader);
  for (std::thread& thread : readers) thread.join();
  const double took = Now() - begin;
  close(fd);
  if (got < bytes) Fail("the file could not be read with O_DIRECT");
  return static_cast<double>(bytes) / took;
}

struct ColdLoad {
  double first = 0;   // A fresh hoistd: memory is touched for the first time.
  double later = 0;   // The same hoistd, everything forgotten.
  double second = 0;  // A second session, on what is resident.
  uint64_t second_moved = 0;
};

double BringUp(const Daemon& daemon, const std::string& path) {
  const Session session = Connect(daemon.socket(), "bench-disk");
  DropFromCache(path);
  const double begin = Now();
  const Model model = RegisterFile(session, "bench", path);
  const std::vector<Lease> leases = StageAll(session, model);
  return Now() - begin;
}

ColdLoad LoadCold(const RunOptions& run, const DaemonSpec& spec,
                  const std::string& path, int number) {
  const Daemon daemon(run, spec, number);
  daemon.WaitWhole();
  ColdLoad found;
  found.first = BringUp(daemon, path);
  daemon.Ctl("evict bench --forget");
  found.later = BringUp(daemon, path);
  const uint64_t before = daemon.Counter("host_to_device_bytes") +
                          daemon.Counter("file_read_bytes");
  found.second = BringUp(daemon, path);
  found.second_moved = daemon.Counter("host_to_device_bytes") +
                       daemon.Counter("file_read_bytes") - before;
  return found;
}

void RunDisk(const RunOptions& run, const DiskOptions& options) {
  Report report("disk", {{"gib", options.gib},
                         {"group_mib", options.group_mib},
                         {"rounds", options.rounds}});
  SyntheticSpec model;
  model.group_bytes = static_cast<uint64_t>(options.group_mib * double(kMiB));
  model.groups = static_cast<uint32_t>(options.gib * double(kGiB) /
                                       double(model.group_bytes));
  DaemonSpec spec;
  spec.device = ChosenDevice(run);
  spec.slab_bytes = (spec.device == DeviceKind::kCuda ? 64 : 2) * kMiB;
  spec.device_bytes =
      (model.bytes() * 9 / 8 / spec.slab_bytes + 4) * spec.slab_bytes;
  spec.host_bytes = model.bytes() + model.bytes() / 8 + 64 * kMiB;
  const std::string path = run.scratch + "/model.safetensors";
  WriteFile(path, model);
  std::vector<double> raw, first, later, second;
  uint64_t moved = 0;
  for (int round = 0; round < options.rounds; ++round) {
    // Below a virtual disk may be a cache that cannot be dropped: a read that
    // does not count goes before each that does.
    for (int i = 0; i < 2; ++i) {
      DropFromCache(path);
      const double rate = RawRate(path, model.bytes());
      if (i == 1) raw.push_back(rate);
    }
    const ColdLoad found = LoadCold(run, spec, path, round);
    first.push_back(double(model.bytes()) / found.first);
    later.push_back(double(model.bytes()) / found.later);
    second.push_back(found.second);
    moved += found.second_moved;
  }
  const auto row = [&](const std::string& what, std::vector<double> rates) {
    report.Add({{"what", what},
                {"gb_per_s", Median(rates) / 1e9},
                {"min_gb_per_s", Quantile(rates, 0) / 1e9},
                {"max_gb_per_s", Quantile(rates, 1) / 1e9},
                {"raw_gb_per_s", Median(raw) / 1e9},
                {"of_raw", Median(rates) / Median(raw)}});
  };
  row("raw: O_DIRECT, 1 MiB x 32 threads", raw);
  row("cold file to device, fresh hoistd", first);
  row("cold file to device, running hoistd", later);
  report.Add({{"what", "second session, all groups leased"},
              {"ms", Median(second) * 1e3},
              {"moved_bytes", moved}});
  report.Finish(run.json);
}

}  // namespace

Command DiskCommand(CLI::App& app) {
  auto options = std::make_shared<DiskOptions>();
  CLI::App* command =
      app.add_subcommand("disk", "a cold file, beside the disk");
  command->add_option("--gib", options->gib);
  command->add_option("--group-mib", options->group_mib);
  command->add_option("--rounds", options->rounds);
  return {command,
          [options](const RunOptions& run) { RunDisk(run, *options); }};
}

}  // namespace hoist::bench
