// slowdown: what a worker whose weights are resident loses while another
// session streams over the same GPU's link.
#include <functional>
#include <memory>
#include <string>
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

struct SlowdownOptions {
  double group_mib = 64;
  uint32_t groups = 48;
  int rounds = 5;
  double settle_seconds = 0.5;
  int gemm_ms = 2;  // Of a group.
};

// Rounds alone and rounds beside the stream take turns, so that clocks and
// temperature drift into both alike.
void MeasureOne(const std::string& what, LayerWork& work,
                const SyntheticSpec& model, const SlowdownOptions& options,
                const std::function<std::unique_ptr<StreamWorker>()>& start,
                double link, Report& report) {
  std::vector<double> alone, beside, rates;
  for (int round = 0; round < options.rounds; ++round) {
    alone.push_back(work.ResidentPassSeconds(model.groups, model.group_bytes));
    const auto worker = start();
    worker->WaitUntilStreams();
    SleepFor(options.settle_seconds);
    const double begin = Now();
    const uint64_t before = worker->bytes();
    beside.push_back(work.ResidentPassSeconds(model.groups, model.group_bytes));
    rates.push_back(double(worker->bytes() - before) / (Now() - begin));
    worker->Finish();
  }
  const double ratio = Median(beside) / Median(alone);
  report.Add({{"what", what},
              {"alone_ms", Median(alone) * 1e3},
              {"alone_max_ms", Quantile(alone, 1) * 1e3},
              {"beside_ms", Median(beside) * 1e3},
              {"beside_max_ms", Quantile(beside, 1) * 1e3},
              {"slower_by", ratio - 1},
              {"limit", 0.08},
              {"stream_gb_per_s", Median(rates) / 1e9},
              {"link_gb_per_s", link / 1e9},
              {"of_link", Median(rates) / link}});
}

void RunSlowdown(const RunOptions& run, const SlowdownOptions& options) {
  const DeviceKind kind = ChosenDevice(run);
  Report report("slowdown", {{"groups", options.groups},
                             {"group_mib", options.group_mib},
                             {"rounds", options.rounds}});
  SyntheticSpec model;
  model.groups = options.groups;
  model.group_bytes = static_cast<uint64_t>(options.group_mib * double(kMiB));
  DaemonSpec spec;
  spec.device = kind;
  spec.slab_bytes = (kind == DeviceKind::kCuda ? 64 : 2) * kMiB;
  spec.device_bytes =
      (4 * model.group_bytes / spec.slab_bytes + 4) * spec.slab_bytes;
  spec.host_bytes = model.bytes() + model.bytes() / 8 + 64 * kMiB;
  const Daemon daemon(run, spec);
  const Session session = Connect(daemon.socket(), "bench-slowdown");
  const Synthetic made = Publish(session, "synthetic", model);
  daemon.WaitWhole();
  std::unique_ptr<Gpu> gpu;
  if (kind == DeviceKind::kCuda) {
    gpu = std::make_unique<Gpu>(DeviceInfo(session).uuid);
  }
  report.SetDevice(gpu ? gpu->name() : DeviceInfo(session).name);
  const double link =
      MeasuredLink(gpu.get(), run, gpu ? 256 * kMiB : model.group_bytes);
  int number = 0;
  const auto start = [&] {
    StreamWorkerSpec worker;
    worker.socket = daemon.socket();
    worker.model = "synthetic";
    worker.device = kind;
    worker.plan.budget_bytes = 4 * model.group_bytes;
    return std::make_unique<StreamWorker>(run, worker, number++);
  };
  LayerWork read(gpu.get(), Compute::kRead, "", 1);
  MeasureOne("reads, bound by HBM", read, model, options, start, link, report);
  if (gpu != nullptr) {
    LayerWork gemm(gpu.get(), Compute::kGemm, run.cublas, 1);
    gemm.FitTokens(model.group_bytes, options.gemm_ms * 1e-3);
    MeasureOne("GEMMs, bound by arithmetic", gemm, model, options, start, link,
               report);
  } else {
    report.Note("no GEMMs without a GPU; both sides share its CPUs instead");
  }
  report.Finish(run.json);
}

}  // namespace

Command SlowdownCommand(CLI::App& app) {
  auto options = std::make_shared<SlowdownOptions>();
  CLI::App* command =
      app.add_subcommand("slowdown", "what streaming costs kernels of others");
  command->add_option("--group-mib", options->group_mib);
  command->add_option("--groups", options->groups);
  command->add_option("--rounds", options->rounds);
  command->add_option("--settle-seconds", options->settle_seconds);
  command->add_option("--gemm-ms", options->gemm_ms, "of each group's GEMMs");
  return {command,
          [options](const RunOptions& run) { RunSlowdown(run, *options); }};
}

}  // namespace hoist::bench
