// beside: what a plan that streams keeps of the link, tenth of a second by
// tenth of a second, while something else is copied or pinned.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/bench/basics.h"
#include "tests/bench/client.h"
#include "tests/bench/daemon.h"
#include "tests/bench/layer_work.h"
#include "tests/bench/report.h"
#include "tests/bench/run_options.h"
#include "tests/bench/stream_worker.h"
#include "tests/bench/synthetic.h"

namespace hoist::bench {
namespace {

constexpr double kWindow = 0.1;

struct BesideOptions {
  double group_mib = 16;
  uint32_t groups = 96;
  uint32_t slots = 4;
  double load_gib = 4;
  int loads = 3;
  double seconds = 4;
  double pool_gib = 24;
  double load_rate_gb_per_s = 5;
  int devices = 1;
};

std::string LoadName(int i) { return "load-" + std::to_string(i); }

// A hoistd with a model that is streamed and some that are loaded.
class BesideRun {
 public:
  BesideRun(const RunOptions& run, const BesideOptions& options, Report& report,
            int number, double load_rate, bool whole)
      : run_(run), options_(options), report_(report) {
    spec_.groups = options.groups;
    spec_.group_bytes = static_cast<uint64_t>(options.group_mib * double(kMiB));
    load_.group_bytes = spec_.group_bytes;
    load_.groups = static_cast<uint32_t>(std::max(
        options.load_gib * double(kGiB) / double(spec_.group_bytes), 1.0));
    const auto loads = static_cast<uint64_t>(options.loads);
    DaemonSpec daemon;
    daemon.device = ChosenDevice(run);
    daemon.slab_bytes = (daemon.device == DeviceKind::kCuda ? 64 : 2) * kMiB;
    daemon.device_bytes = (Budget() + loads * load_.bytes()) * 5 / 4;
    daemon.device_bytes += 4 * daemon.slab_bytes;
    daemon.device_bytes -= daemon.device_bytes % daemon.slab_bytes;
    daemon.host_bytes = spec_.bytes() + loads * load_.bytes();
    daemon.host_bytes += daemon.host_bytes / 8 + 64 * kMiB;
    if (!whole) {
      daemon.host_bytes =
          static_cast<uint64_t>(options.pool_gib * double(kGiB));
    }
    daemon.devices = options.devices;
    daemon.load_rate = load_rate;
    daemon_ = std::make_unique<Daemon>(run, daemon, number);
    session_ = Connect(daemon_->socket(), "bench-beside");
    if (whole) daemon_->WaitWhole();
    made_ = Publish(session_, "synthetic", spec_);
    gpu_ = daemon.device == DeviceKind::kCuda;
    report.SetDevice(DeviceInfo(session_).name);
  }

  // What is loaded, in the host tier.
  void BringToHost() {
    for (int i = 0; i < options_.loads; ++i) {
      const std::string path =
          run_.scratch + "/" + LoadName(i) + ".safetensors";
      if (!std::filesystem::exists(path)) WriteFile(path, load_);
      Load(i, "host");
    }
  }
  void Load(int i, const std::string& tier, int device = 0) {
    daemon_->Do("load '" + run_.scratch + "/" + LoadName(i) +
                ".safetensors' --tier " + tier + " --device " +
                std::to_string(device));
  }
  void LoadAll() {
    std::vector<std::thread> threads;
    for (int i = 0; i < options_.loads; ++i) {
      threads.emplace_back([this, i] { Load(i, "device"); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void EvictLoads() {
    for (int i = 0; i < options_.loads; ++i) {
      daemon_->Do("evict " + LoadName(i) + " --tier device");
    }
  }
  void StageByMessage() {
    const Session other = Connect(daemon_->socket(), "bench-leases");
    StageAll(other, Describe(other, LoadName(0)));
  }
  void WaitWhole() { daemon_->WaitWhole(); }

  // `what` without a plan beside it; hoistctl's own time is taken off.
  void Alone(const std::string& what, const std::function<void()>& act) {
    std::vector<double> nothing;
    for (int i = 0; i < 5; ++i) {
      const double begin = Now();
      daemon_->Ctl("status");
      nothing.push_back(Now() - begin);
    }
    const uint64_t before = daemon_->Counter("host_to_device_bytes");
    const double begin = Now();
    act();
    const double took = std::max(Now() - begin - Median(nothing), 1e-6);
    const uint64_t bytes = daemon_->Counter("host_to_device_bytes") - before;
    report_.Add({{"what", what},
                 {"gb_per_s", GbPerS(double(bytes), took)},
                 {"link_gb_per_s", Link() / 1e9},
                 {"of_link", double(bytes) / took / Link()}});
  }

  // What plans on so many devices could reach: copies to all at once.
  void BareCopies(int devices) {
    if (!gpu_) return;  // Emulated links have no part in common.
    const double link = Link();
    std::vector<double> rates(static_cast<size_t>(devices));
    std::vector<std::thread> threads;
    for (size_t d = 0; d < rates.size(); ++d) {
      threads.emplace_back([this, &rates, d] {
        rates[d] = Gpu(DeviceInfo(session_, d).uuid).LinkRate(256 * kMiB);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t d = 0; d < rates.size(); ++d) {
      report_.Add({{"what", "bare copies to each device"},
                   {"device", d},
                   {"gb_per_s", rates[d] / 1e9},
                   {"link_gb_per_s", link / 1e9},
                   {"of_link", rates[d] / link}});
    }
  }

  // Plans on so many devices while `act` runs, for options.seconds at most:
  // then they end, so that `act` does.
  void Beside(const std::string& what, const std::function<void()>& act,
              int devices = 1) {
    std::vector<std::unique_ptr<StreamWorker>> workers;
    for (int d = 0; d < devices; ++d) workers.push_back(Start(d));
    for (auto& worker : workers) worker->WaitUntilStreams();
    SleepFor(3 * kWindow);
    const uint64_t before = daemon_->Counter("host_to_device_bytes");
    const uint64_t plans_before = Sum(workers);
    std::atomic<bool> over = false;
    std::thread thread([&] {
      act();
      over = true;
    });
    const double begin = Now();
    std::vector<std::vector<double>> rates(workers.size());
    while (!over && Now() - begin < options_.seconds) {
      for (size_t w = 0; w < workers.size(); ++w) {
        rates[w].push_back(-double(workers[w]->bytes()));
      }
      const double from = Now();
      SleepFor(kWindow);
      const double took = Now() - from;
      for (size_t w = 0; w < workers.size(); ++w) {
        rates[w].back() =
            (rates[w].back() + double(workers[w]->bytes())) / took;
      }
    }
    const double took = Now() - begin;
    // In the order of the first time, so that they are as far apart.
    const uint64_t all = daemon_->Counter("host_to_device_bytes") - before;
    const uint64_t plans = Sum(workers) - plans_before;
    for (auto& worker : workers) worker->Finish();
    thread.join();
    for (size_t w = 0; w < workers.size(); ++w) {
      AddRow(what, w, rates[w], double(all - std::min(all, plans)) / took);
    }
  }

 private:
  uint64_t Budget() const { return options_.slots * spec_.group_bytes; }
  // Only when nothing streams.
  double Link() {
    if (link_ == 0) {
      std::unique_ptr<Gpu> gpu;
      if (gpu_) gpu = std::make_unique<Gpu>(DeviceInfo(session_).uuid);
      link_ =
          MeasuredLink(gpu.get(), run_, gpu_ ? 256 * kMiB : spec_.group_bytes);
    }
    return link_;
  }

  std::unique_ptr<StreamWorker> Start(int device) {
    StreamWorkerSpec spec;
    spec.socket = daemon_->socket();
    spec.model = "synthetic";
    spec.device = ChosenDevice(run_);
    spec.plan.device = static_cast<uint32_t>(device);
    spec.plan.budget_bytes = Budget();
    return std::make_unique<StreamWorker>(run_, spec, started_++);
  }

  static uint64_t Sum(
      const std::vector<std::unique_ptr<StreamWorker>>& workers) {
    uint64_t sum = 0;
    for (const auto& worker : workers) sum += worker->bytes();
    return sum;
  }

  void AddRow(const std::string& what, size_t device,
              const std::vector<double>& rates, double beside) {
    const double link = Link();
    const double least = *std::ranges::min_element(rates);
    report_.Add({{"what", what},
                 {"device", device},
                 {"windows", rates.size()},
                 {"least_gb_per_s", least / 1e9},
                 {"p10_gb_per_s", Quantile(rates, 0.1) / 1e9},
                 {"median_gb_per_s", Median(rates) / 1e9},
                 {"least_of_link", least / link},
                 {"median_of_link", Median(rates) / link},
                 {"others_gb_per_s", beside / 1e9},
                 {"link_gb_per_s", link / 1e9}});
  }

  const RunOptions& run_;
  const BesideOptions& options_;
  Report& report_;
  SyntheticSpec spec_;
  SyntheticSpec load_;
  std::unique_ptr<Daemon> daemon_;
  Session session_;
  Synthetic made_;
  bool gpu_ = false;
  double link_ = 0;
  int started_ = 0;
};

void RunBeside(const RunOptions& run, const BesideOptions& options) {
  Report report("beside", {{"group_mib", options.group_mib},
                           {"groups", options.groups},
                           {"slots", options.slots},
                           {"load_gib", options.load_gib},
                           {"loads", options.loads},
                           {"seconds", options.seconds},
                           {"pool_gib", options.pool_gib},
                           {"load_rate_gb_per_s", options.load_rate_gb_per_s}});
  const auto wait = [&] { SleepFor(options.seconds); };
  {
    BesideRun beside(run, options, report, 0, 0, /*whole=*/true);
    beside.BringToHost();
    beside.Beside("nothing", wait);
    beside.Beside("one load, slabs yet to be made",
                  [&] { beside.Load(0, "device"); });
    beside.Beside("the other loads, slabs yet to be made",
                  [&] { beside.LoadAll(); });
    beside.EvictLoads();
    beside.Beside("one load", [&] { beside.Load(0, "device"); });
    beside.EvictLoads();
    beside.Beside("all loads", [&] { beside.LoadAll(); });
    beside.EvictLoads();
    beside.Beside("stages by message", [&] { beside.StageByMessage(); });
    beside.EvictLoads();
    beside.Alone("one load, alone", [&] { beside.Load(0, "device"); });
    beside.EvictLoads();
    beside.Alone("all loads, alone", [&] { beside.LoadAll(); });
    if (options.devices > 1) {
      beside.BareCopies(options.devices);
      beside.Beside("a plan on each device", wait, options.devices);
    }
  }
  {
    BesideRun beside(run, options, report, 1, options.load_rate_gb_per_s,
                     /*whole=*/true);
    beside.BringToHost();
    beside.Alone("one load, capped", [&] { beside.Load(0, "device"); });
    beside.EvictLoads();
    beside.Beside("one load, capped", [&] { beside.Load(0, "device"); });
  }
  {
    BesideRun beside(run, options, report, 2, 0, /*whole=*/false);
    beside.Beside("the host pool coming up", [&] { beside.WaitWhole(); });
  }
  report.Note(
      "Rates are of the plan's groups that were used, in windows of 100 ms; "
      "others_gb_per_s is what else was copied meanwhile. Plans end after "
      "--seconds, so that a load beside them does.");
  report.Finish(run.json);
}

}  // namespace

Command BesideCommand(CLI::App& app) {
  auto options = std::make_shared<BesideOptions>();
  CLI::App* command = app.add_subcommand(
      "beside", "a plan that streams, while something else is copied");
  command->add_option("--group-mib", options->group_mib);
  command->add_option("--groups", options->groups, "of the plan's model");
  command->add_option("--slots", options->slots, "groups that its ring holds");
  command->add_option("--load-gib", options->load_gib, "of each load");
  command->add_option("--loads", options->loads)->check(CLI::Range(1, 64));
  command->add_option("--seconds", options->seconds, "each, at most");
  command->add_option("--pool-gib", options->pool_gib,
                      "host pool that comes up beside a plan");
  command->add_option("--load-rate", options->load_rate_gb_per_s,
                      "device.load_rate of the capped loads, in GB/s");
  command->add_option("--devices", options->devices,
                      "plans at once, one on each; emulated ones are made");
  return {command,
          [options](const RunOptions& run) { RunBeside(run, *options); }};
}

}  // namespace hoist::bench
