// stream: passes over a model larger than its plan's budget, beside the link.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/bench/basics.h"
#include "tests/bench/client.h"
#include "tests/bench/daemon.h"
#include "tests/bench/layer_work.h"
#include "tests/bench/recording.h"
#include "tests/bench/report.h"
#include "tests/bench/run_options.h"
#include "tests/bench/synthetic.h"

namespace hoist::bench {
namespace {

constexpr double kLeastGap = 2e-3;

struct StreamOptions {
  std::vector<double> group_mib = {4, 16, 64, 256, 629};
  uint32_t groups = 0;
  double gib = 8;
  std::vector<double> resident = {0, 0.25, 0.5, 0.75, 1};
  double ring_extra_mib = 32;
  int passes = 10;
  int warm_ups = 2;
  std::string compute = "none";
  double compute_ratio = 0.5;
  bool verify = false;
  bool gaps = false;
};

// One group size: its model, its daemon, its measured limits.
class StreamRun {
 public:
  StreamRun(const RunOptions& run, const StreamOptions& options,
            double group_mib, int number)
      : options_(options), spec_(SpecOf(options, group_mib)) {
    const DeviceKind kind = ChosenDevice(run);
    DaemonSpec spec;
    spec.device = kind;
    spec.slab_bytes = (kind == DeviceKind::kCuda ? 64 : 2) * kMiB;
    spec.device_bytes =
        (spec_.bytes() + RingBytes()) / spec.slab_bytes * spec.slab_bytes +
        4 * spec.slab_bytes;
    spec.host_bytes = spec_.bytes() + spec_.bytes() / 8 + 64 * kMiB;
    daemon_ = std::make_unique<Daemon>(run, spec, number);
    session_ = Connect(daemon_->socket(), "bench-stream");
    made_ = Publish(session_, "synthetic", spec_);
    daemon_->WaitWhole();
    if (kind == DeviceKind::kCuda) {
      gpu_ = std::make_unique<Gpu>(DeviceInfo(session_).uuid);
      stream_ = gpu_->NewStream();
    }
    link_ =
        MeasuredLink(gpu_.get(), run, gpu_ ? 256 * kMiB : spec_.group_bytes);
    same_size_link_ = MeasuredLink(gpu_.get(), run, spec_.group_bytes);
    const size_t sums = spec_.groups * (AllPasses() + 1);
    work_ = std::make_unique<LayerWork>(
        gpu_.get(), ParseCompute(options.compute), run.cublas, sums);
    if (options.compute == "gemm") {
      work_->FitTokens(
          spec_.group_bytes,
          options.compute_ratio * double(spec_.group_bytes) / link_);
    }
    compute_ = work_->ResidentPassSeconds(spec_.groups, spec_.group_bytes);
  }

  std::string device() const {
    return gpu_ ? gpu_->name() : std::string(DeviceInfo(session_).name);
  }

  // False: wrong bytes were seen.
  bool Measure(double fraction, Report& report) {
    PlanWish wish;
    wish.budget_bytes =
        static_cast<uint64_t>(fraction * static_cast<double>(spec_.bytes())) /
            kMiB * kMiB +
        RingBytes();
    const Plan plan = MakePlan(session_, made_.model, wish);
    const hoist_plan_info info = InfoOf(plan);
    const uint64_t copied = daemon_->Counter("host_to_device_bytes");
    const std::vector<double> seconds = Passes(plan);
    const double pass = Median(seconds);
    const double streamed = static_cast<double>(info.streamed_bytes);
    const double floor = std::max(compute_, streamed / link_);
    const uint64_t wrong = options_.verify ? WrongGroups() : 0;
    const hoist_plan_stats stats = StatsOf(plan);
    report.Add(
        {{"groups", spec_.groups},
         {"group_mib", double(spec_.group_bytes) / double(kMiB)},
         {"resident_wanted", fraction},
         {"resident", double(info.resident_bytes) / double(spec_.bytes())},
         {"ring_mib", double(info.ring_bytes) / double(kMiB)},
         {"lead", info.lead},
         {"compute", options_.compute},
         {"pass_ms", pass * 1e3},
         {"pass_min_ms", Quantile(seconds, 0) * 1e3},
         {"pass_max_ms", Quantile(seconds, 1) * 1e3},
         {"gb_per_s", streamed / pass / 1e9},
         {"link_gb_per_s", link_ / 1e9},
         {"of_link", streamed / pass / link_},
         {"same_size_link_gb_per_s", same_size_link_ / 1e9},
         {"compute_ms", compute_ * 1e3},
         {"floor_ms", floor * 1e3},
         {"of_floor", floor > 0 ? Json(pass / floor) : Json()},
         {"ready_at_once",
          Share(stats.ready_stages, stats.stages - stats.resident_stages)},
         {"copied_passes",
          Share(daemon_->Counter("host_to_device_bytes") - copied,
                info.streamed_bytes)},
         {"wrong", options_.verify ? Json(wrong) : Json()}});
    if (options_.gaps) AddGaps(plan, fraction, report);
    return wrong == 0;
  }

 private:
  static SyntheticSpec SpecOf(const StreamOptions& options, double group_mib) {
    SyntheticSpec spec;
    spec.group_bytes =
        static_cast<uint64_t>(group_mib * double(kMiB)) / 256 * 256;
    spec.groups = options.groups;
    if (spec.groups == 0) {
      const double fit = options.gib * double(kGiB) / double(spec.group_bytes);
      spec.groups = static_cast<uint32_t>(std::clamp(fit, 24.0, 400.0));
    }
    return spec;
  }

  static Json Share(uint64_t part, uint64_t whole) {
    return whole ? Json(double(part) / double(whole)) : Json();
  }

  // Of the same passes once more, as a recording costs the link's thread some
  // time.
  void AddGaps(const Plan& plan, double fraction, Report& report) {
    Recording recording(*daemon_);
    const std::vector<double> seconds = Passes(plan);
    std::map<std::string, std::vector<double>> by_cause = {{"all", {}}};
    for (const LinkGap& gap : recording.Finish()) {
      if (gap.seconds < kLeastGap) continue;
      by_cause["all"].push_back(gap.seconds);
      by_cause[gap.cause].push_back(gap.seconds);
    }
    for (const auto& [cause, gaps] : by_cause) {
      report.Add(
          {{"group_mib", double(spec_.group_bytes) / double(kMiB)},
           {"resident_wanted", fraction},
           {"gaps_over_2_ms", gaps.size()},
           {"cause", cause},
           {"longest_ms", gaps.empty() ? 0 : Quantile(gaps, 1) * 1e3},
           {"all_ms", std::accumulate(gaps.begin(), gaps.end(), 0.0) * 1e3},
           {"recorded_pass_ms", Median(seconds) * 1e3},
           {"recorded_pass_max_ms", Quantile(seconds, 1) * 1e3}});
    }
  }

  uint64_t RingBytes() const {
    return 2 * spec_.group_bytes +
           static_cast<uint64_t>(options_.ring_extra_mib * double(kMiB));
  }
  size_t AllPasses() const {
    return static_cast<size_t>(options_.passes + options_.warm_ups);
  }

  // Each pass's time in steady state: from the end of one to the end of the
  // next, as the GPU sees it. Nothing waits between passes.
  std::vector<double> Passes(const Plan& plan) {
    std::vector<cuda::Event> ends;
    std::vector<double> host_ends;
    for (size_t pass = 0; pass < AllPasses(); ++pass) {
      for (uint32_t g = 0; g < spec_.groups; ++g) {
        const void* data = Stage(plan, g, stream_);
        work_->Run(stream_, data, spec_.group_bytes, SumOf(pass, g));
        Done(plan, g, stream_);
      }
      host_ends.push_back(Now());
      if (gpu_ == nullptr) continue;
      ends.push_back(gpu_->NewEvent());
      gpu_->Record(ends.back(), stream_);
    }
    if (gpu_ != nullptr) gpu_->Sync(stream_);
    Check(plan);
    std::vector<double> seconds;
    for (auto p = static_cast<size_t>(options_.warm_ups); p < AllPasses();
         ++p) {
      seconds.push_back(gpu_ ? gpu_->SecondsBetween(ends[p - 1], ends[p])
                             : host_ends[p] - host_ends[p - 1]);
    }
    for (cuda::Event event : ends) {
      gpu_->Require(gpu_->driver().event_destroy(event), "cuEventDestroy");
    }
    return seconds;
  }

  // The first row is what measuring the compute alone may add to.
  size_t SumOf(size_t pass, uint32_t group) const {
    return (pass + 1) * spec_.groups + group;
  }

  // Of all passes since the last call.
  uint64_t WrongGroups() {
    std::vector<uint64_t> sums = work_->Sums();
    if (seen_.empty()) seen_.resize(sums.size());
    uint64_t wrong = 0;
    for (size_t pass = 0; pass < AllPasses(); ++pass) {
      for (uint32_t g = 0; g < spec_.groups; ++g) {
        const size_t at = SumOf(pass, g);
        wrong += sums[at] - seen_[at] != made_.checksums[g];
      }
    }
    seen_ = std::move(sums);
    return wrong;
  }

  const StreamOptions& options_;
  const SyntheticSpec spec_;
  std::unique_ptr<Daemon> daemon_;
  Session session_;
  Synthetic made_;
  std::unique_ptr<Gpu> gpu_;
  cuda::Stream stream_ = nullptr;
  std::unique_ptr<LayerWork> work_;
  std::vector<uint64_t> seen_;
  double link_ = 0;
  double same_size_link_ = 0;
  double compute_ = 0;
};

void RunStream(const RunOptions& run, const StreamOptions& options) {
  if (options.verify && options.compute != "read") {
    Fail("--verify needs --compute read, which sums what it reads");
  }
  if (options.warm_ups < 1) Fail("--warm-ups: the first pass fills the ring");
  Report report("stream", {{"passes", options.passes},
                           {"warm_ups", options.warm_ups},
                           {"compute", options.compute},
                           {"compute_ratio", options.compute_ratio},
                           {"ring_extra_mib", options.ring_extra_mib}});
  bool right = true;
  int number = 0;
  for (double group_mib : options.group_mib) {
    StreamRun size(run, options, group_mib, number++);
    report.SetDevice(size.device());
    for (double fraction : options.resident) {
      right = size.Measure(fraction, report) && right;
    }
  }
  report.Finish(run.json);
  if (!right) Fail("groups with wrong bytes were seen");
}

}  // namespace

Command StreamCommand(CLI::App& app) {
  auto options = std::make_shared<StreamOptions>();
  CLI::App* command =
      app.add_subcommand("stream", "passes of a plan, beside the link");
  command->add_option("--group-mib", options->group_mib)->delimiter(',');
  command->add_option("--groups", options->groups,
                      "default: as many as --gib holds, 24 to 400");
  command->add_option("--gib", options->gib);
  command
      ->add_option("--resident", options->resident,
                   "parts of the model's bytes that may stay on the device")
      ->delimiter(',');
  command->add_option("--ring-extra-mib", options->ring_extra_mib,
                      "budget beyond that part and two groups");
  command->add_option("--passes", options->passes);
  command->add_option("--warm-ups", options->warm_ups, "passes not counted");
  command->add_option("--compute", options->compute)
      ->check(CLI::IsMember({"none", "gemm", "read"}));
  command->add_option("--compute-ratio", options->compute_ratio,
                      "gemm: of a group's copy time");
  command->add_flag("--gaps", options->gaps,
                    "also record passes: times of 2 ms and more in which the "
                    "link copied nothing, by cause");
  command->add_flag("--verify", options->verify, "read: compare checksums");
  return {command,
          [options](const RunOptions& run) { RunStream(run, *options); }};
}

}  // namespace hoist::bench
