// hotpath: what staging a group costs the worker's host thread, and a CUDA
// graph's GPU time.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/basics.h"
#include "tests/bench/client.h"
#include "tests/bench/daemon.h"
#include "tests/bench/gpu.h"
#include "tests/bench/hotpath_words.h"
#include "tests/bench/report.h"
#include "tests/bench/run_options.h"
#include "tests/bench/synthetic.h"
#include "tests/bench/syscall_trap.h"

namespace hoist::bench {
namespace {

constexpr double kLimitUs = 4;  // Of a ready group, stage and done.

struct HotpathOptions {
  double group_mib = 1;
  uint32_t groups = 64;
  int pairs = 5000;
  int graph_replays = 50;
  bool words = true;
};

// Times of one kind of pair, a stage and its done.
struct Times {
  std::vector<double> seconds;
  uint64_t in_kernel = 0;  // Pairs that made a system call.
};

class HotpathRun {
 public:
  HotpathRun(const RunOptions& run, const HotpathOptions& options,
             Report& report)
      : options_(options), report_(report) {
    const DeviceKind kind = ChosenDevice(run);
    spec_.groups = options.groups;
    spec_.group_bytes =
        static_cast<uint64_t>(options.group_mib * double(kMiB)) / 256 * 256;
    DaemonSpec daemon;
    daemon.device = kind;
    daemon.slab_bytes = (kind == DeviceKind::kCuda ? 64 : 2) * kMiB;
    daemon.device_bytes =
        (spec_.bytes() / daemon.slab_bytes + 4) * daemon.slab_bytes;
    daemon.host_bytes = spec_.bytes() + spec_.bytes() / 8 + 64 * kMiB;
    daemon_ = std::make_unique<Daemon>(run, daemon);
    session_ = Connect(daemon_->socket(), "bench-hotpath");
    made_ = Publish(session_, "synthetic", spec_);
    daemon_->WaitWhole();
    if (kind == DeviceKind::kCuda) {
      gpu_ = std::make_unique<Gpu>(DeviceInfo(session_).uuid);
      stream_ = gpu_->NewStream();
    }
    report.SetDevice(gpu_ ? gpu_->name() : DeviceInfo(session_).name);
  }

  void Eager() {
    const Plan plan = HalfResident();
    // Pairs far apart find their group ready; pairs back to back find it on its
    // way. The plan's own count says which it was.
    Pairs(plan, 0.0005);
    Pairs(plan, 0);
    Check(plan);
    const hoist_plan_stats stats = StatsOf(plan);
    report_.Add({{"stages", stats.stages},
                 {"resident", stats.resident_stages},
                 {"ready", stats.ready_stages},
                 {"host_waits", stats.host_waits},
                 {"wake_ups", stats.wake_ups}});
  }

  // GPU time a group of a pass in a graph of spin kernels that hide the copies:
  // with hoist's words and without.
  void Graphs() {
    const double link_seconds = double(spec_.group_bytes) / 25e9;
    const auto cycles = static_cast<int64_t>(2e9 * link_seconds * 2);
    const Plan plan = HalfResident();
    for (uint32_t g = 0; g < spec_.groups; ++g) {  // Residents come up.
      Stage(plan, g, stream_);
      Done(plan, g, stream_);
    }
    gpu_->Sync(stream_);
    uint32_t streamed = 0;
    for (uint32_t g = 0; g < spec_.groups; ++g) streamed += IsStreamed(plan, g);
    const double bare =
        GraphSeconds([&](uint32_t) { gpu_->LaunchSpin(stream_, cycles); });
    const double with = GraphSeconds([&](uint32_t g) {
      Stage(plan, g, stream_);
      gpu_->LaunchSpin(stream_, cycles);
      Done(plan, g, stream_);
    });
    Check(plan);
    report_.Add({{"graph_groups", spec_.groups},
                 {"streamed", streamed},
                 {"bare_us", bare / spec_.groups * 1e6},
                 {"with_hoist_us", with / spec_.groups * 1e6},
                 {"added_per_streamed_us",
                  streamed ? Json((with - bare) / streamed * 1e6) : Json()}});
  }

  void Words() { MeasureWords(*gpu_, report_); }
  bool has_gpu() const { return gpu_ != nullptr; }

 private:
  Plan HalfResident() {
    PlanWish wish;
    wish.budget_bytes =
        std::max(spec_.bytes() / 2, 4 * spec_.group_bytes) / 4096 * 4096;
    return MakePlan(session_, made_.model, wish);
  }

  double GraphSeconds(const std::function<void(uint32_t)>& group) {
    const GraphExec graph = gpu_->Capture(stream_, [&] {
      for (uint32_t g = 0; g < spec_.groups; ++g) group(g);
    });
    const double seconds =
        gpu_->GraphSeconds(graph, stream_, options_.graph_replays);
    gpu_->Require(gpu_->extras().graph_exec_destroy(graph), "destroy a graph");
    return seconds;
  }

  // `apart`: seconds between pairs, waited without a system call.
  void Pairs(const Plan& plan, double apart) {
    Times resident, ready, waited;
    std::vector<double> clock;
    std::vector<bool> streamed;
    for (uint32_t g = 0; g < spec_.groups; ++g) {
      streamed.push_back(IsStreamed(plan, g));
    }
    const int warm_up = static_cast<int>(2 * spec_.groups);
    SyscallTrap trap;
    for (int i = -warm_up; i < options_.pairs; ++i) {
      const auto group = static_cast<uint32_t>(i + warm_up) % spec_.groups;
      for (const double until = Now() + apart; Now() < until;) {
      }
      const uint64_t ready_before = StatsOf(plan).ready_stages;
      const uint64_t calls_before = trap.count();
      if (trap.works()) trap.Arm();
      const double begin = Now();
      const double middle = Now();
      Stage(plan, group, stream_);
      Done(plan, group, stream_);
      const double end = Now();
      trap.Disarm();
      if (i % 64 == 0 && gpu_) gpu_->Sync(stream_);  // No queue fills up.
      if (i < 0) continue;
      clock.push_back(middle - begin);
      Times& kind = !streamed[group]                            ? resident
                    : StatsOf(plan).ready_stages > ready_before ? ready
                                                                : waited;
      kind.seconds.push_back(end - middle);
      kind.in_kernel += trap.count() - calls_before;
    }
    const std::string how = apart > 0 ? "apart" : "back to back";
    const double overhead = Median(clock);
    AddTimes(how, "resident", resident, overhead, trap);
    AddTimes(how, "streamed, ready", ready, overhead, trap);
    AddTimes(how, "streamed, on its way", waited, overhead, trap);
  }

  void AddTimes(const std::string& how, const std::string& what,
                const Times& times, double overhead, const SyscallTrap& trap) {
    const size_t count = times.seconds.size();
    const auto us = [&](double q) {
      return count ? Json((Quantile(times.seconds, q) - overhead) * 1e6)
                   : Json();
    };
    const Json median = us(0.5);
    report_.Add(
        {{"pairs", how},
         {"group", what},
         {"count", count},
         {"median_us", median},
         {"p99_us", us(0.99)},
         {"limit_us", kLimitUs},
         {"of_limit", count ? Json(median.get<double>() / kLimitUs) : Json()},
         {"with_system_call", trap.works() ? Json(times.in_kernel) : Json()},
         {"last_call",
          trap.works() && times.in_kernel ? Json(trap.last()) : Json()}});
  }

  const HotpathOptions& options_;
  Report& report_;
  SyntheticSpec spec_;
  std::unique_ptr<Daemon> daemon_;
  Session session_;
  Synthetic made_;
  std::unique_ptr<Gpu> gpu_;
  cuda::Stream stream_ = nullptr;
};

void RunHotpath(const RunOptions& run, const HotpathOptions& options) {
  Report report("hotpath", {{"groups", options.groups},
                            {"group_mib", options.group_mib},
                            {"pairs", options.pairs}});
  HotpathRun hotpath(run, options, report);
  hotpath.Eager();
  if (hotpath.has_gpu()) {
    hotpath.Graphs();
    if (options.words) hotpath.Words();
  } else {
    report.Note(
        "On an emulated device a stage waits on the CPU until the bytes are "
        "there: \"on its way\" holds the copy's time. Graphs and words need a "
        "GPU.");
  }
  report.Note(
      "median_us and p99_us: stage and done together, less the clock's own "
      "time. with_system_call: pairs that entered the kernel at all.");
  report.Finish(run.json);
}

}  // namespace

Command HotpathCommand(CLI::App& app) {
  auto options = std::make_shared<HotpathOptions>();
  CLI::App* command =
      app.add_subcommand("hotpath", "host time of stage and done");
  command->add_option("--group-mib", options->group_mib);
  command->add_option("--groups", options->groups);
  command->add_option("--pairs", options->pairs);
  command->add_option("--graph-replays", options->graph_replays);
  command->add_flag("!--no-words", options->words,
                    "leave the table of single operations out");
  return {command,
          [options](const RunOptions& run) { RunHotpath(run, *options); }};
}

}  // namespace hoist::bench
