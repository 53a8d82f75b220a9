// fairness: several sessions stream at once; who gets how much of the link.
#include <signal.h>

#include <algorithm>
#include <memory>
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

struct FairnessOptions {
  double group_mib = 64;
  uint32_t groups = 48;
  double seconds = 5;
  double warm_up_seconds = 1;
  double cap_gb_per_s = 5;
  bool copies_alone = false;
};

class FairnessRun {
 public:
  FairnessRun(const RunOptions& run, const FairnessOptions& options,
              Report& report)
      : run_(run), options_(options), report_(report) {
    spec_.groups = options.groups;
    spec_.group_bytes = static_cast<uint64_t>(options.group_mib * double(kMiB));
    DaemonSpec daemon;
    daemon.device = ChosenDevice(run);
    daemon.slab_bytes = (daemon.device == DeviceKind::kCuda ? 64 : 2) * kMiB;
    // Four rings and no more than half of another.
    device_bytes_ = 4 * Budget() + Budget() / 2;
    device_bytes_ = device_bytes_ / daemon.slab_bytes * daemon.slab_bytes;
    daemon.device_bytes = device_bytes_;
    daemon.host_bytes = spec_.bytes() + spec_.bytes() / 8 + 64 * kMiB;
    daemon_ = std::make_unique<Daemon>(run, daemon);
    session_ = Connect(daemon_->socket(), "bench-fairness");
    made_ = Publish(session_, "synthetic", spec_);
    daemon_->WaitWhole();
    std::unique_ptr<Gpu> gpu;
    if (daemon.device == DeviceKind::kCuda) {
      gpu = std::make_unique<Gpu>(DeviceInfo(session_).uuid);
    }
    report.SetDevice(gpu ? gpu->name() : DeviceInfo(session_).name);
    link_ = MeasuredLink(gpu.get(), run, gpu ? 256 * kMiB : spec_.group_bytes);
  }

  // Sessions with these weights; each one's share beside its fair share.
  void Shares(const std::string& what, const std::vector<uint32_t>& weights) {
    Workers workers;
    for (uint32_t weight : weights)
      workers.push_back(Start({.weight = weight}));
    const std::vector<double> rates = Rates(workers);
    uint32_t all_weights = 0;
    double all = 0;
    for (uint32_t weight : weights) all_weights += weight;
    for (double rate : rates) all += rate;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double fair = double(weights[i]) / all_weights;
      AddRow(what, i, weights[i], rates[i], all, fair);
    }
    for (auto& worker : workers) worker->Finish();
  }

  // One of four stops while the others stream on, then goes on.
  void OneStops() {
    Workers workers;
    for (int i = 0; i < 4; ++i) workers.push_back(Start({}));
    Rates(workers);
    workers[0]->process().Signal(SIGSTOP);
    SleepFor(options_.warm_up_seconds);  // What it had queued runs out.
    const std::vector<double> rates = Rates(workers);
    double all = 0;
    for (double rate : rates) all += rate;
    for (size_t i = 0; i < rates.size(); ++i) {
      AddRow("one of four stopped", i, 1, rates[i], all,
             i == 0 ? 0.0 : 1.0 / 3);
    }
    workers[0]->process().Signal(SIGCONT);
    const uint64_t before = workers[0]->bytes();
    const double begin = Now();
    while (workers[0]->bytes() == before) {
      if (Now() - begin > 30) Fail("a stopped worker does not go on");
      SleepFor(0.001);
    }
    report_.Add({{"what", "stopped worker goes on after SIGCONT"},
                 {"ms", (Now() - begin) * 1e3}});
    for (auto& worker : workers) worker->Finish();
  }

  // The pool holds four rings: a fifth fits only once a dead one's is back.
  void OneDies() {
    Workers workers;
    for (int i = 0; i < 4; ++i) workers.push_back(Start({}));
    for (auto& worker : workers) worker->WaitUntilStreams();
    const double begin = Now();
    workers[0]->process().End(SIGKILL);
    const auto fifth = Start({.deadline_ms = 30'000});
    fifth->WaitUntilStreams();
    report_.Add({{"what", "kill -9 until a newcomer streams in its ring"},
                 {"ms", (Now() - begin) * 1e3}});
    fifth->Finish();
    for (size_t i = 1; i < workers.size(); ++i) workers[i]->Finish();
  }

  // Session 0 streams a plan, session 1 copies memory of its own to the same
  // device.
  void BesideCopies(const std::string& what, Copies copies, PlanWish plan,
                    PlanWish permit) {
    Workers workers;
    workers.push_back(Start(plan));
    workers.push_back(Start(permit, copies));
    const std::vector<double> rates = Rates(workers);
    const double all = rates[0] + rates[1];
    const double fair =
        plan.priority > permit.priority
            ? 1.0
            : double(plan.weight) / (plan.weight + permit.weight);
    AddRow(what, 0, plan.weight, rates[0], all, fair);
    AddRow(what, 1, permit.weight, rates[1], all, 1 - fair);
    for (auto& worker : workers) worker->Finish();
  }

  void BesideCopies() {
    Shares("a plan alone", {1});
    BesideCopies("beside copies at will", Copies::kAtWill, {}, {});
    BesideCopies("beside granted copies", Copies::kGranted, {}, {});
    BesideCopies("beside granted copies, 3 to 1", Copies::kGranted,
                 {.weight = 3}, {});
    BesideCopies("beside granted copies, 1 to 3", Copies::kGranted, {},
                 {.weight = 3});
    BesideCopies("beside granted copies, priority 1 to 0", Copies::kGranted,
                 {.priority = 1}, {});
    Workers workers;
    workers.push_back(Start({}, Copies::kGranted));
    const double rate = Rates(workers)[0];
    AddRow("granted copies alone", 0, 1, rate, rate, 1);
    for (auto& worker : workers) worker->Finish();
  }

  void Cap() {
    const double cap = options_.cap_gb_per_s * 1e9;
    Workers workers;
    workers.push_back(
        Start({.max_bytes_per_second = static_cast<uint64_t>(cap)}));
    const double rate = Rates(workers)[0];
    report_.Add({{"what", "one session, capped"},
                 {"gb_per_s", rate / 1e9},
                 {"cap_gb_per_s", cap / 1e9},
                 {"of_cap", rate / cap}});
    for (auto& worker : workers) worker->Finish();
  }

 private:
  using Workers = std::vector<std::unique_ptr<StreamWorker>>;

  uint64_t Budget() const { return 4 * spec_.group_bytes; }

  std::unique_ptr<StreamWorker> Start(PlanWish wish,
                                      Copies copies = Copies::kPlan) {
    StreamWorkerSpec spec;
    spec.socket = daemon_->socket();
    spec.model = "synthetic";
    spec.device = ChosenDevice(run_);
    spec.copies = copies;
    spec.copy_bytes = spec_.group_bytes;
    spec.plan = wish;
    spec.plan.budget_bytes = Budget();
    return std::make_unique<StreamWorker>(run_, spec, started_++);
  }

  // Bytes a second of each over the measured time, all at once.
  std::vector<double> Rates(const Workers& workers) {
    for (const auto& worker : workers) worker->WaitUntilStreams();
    SleepFor(options_.warm_up_seconds);
    std::vector<double> rates;
    const double begin = Now();
    for (const auto& w : workers) rates.push_back(-double(w->bytes()));
    SleepFor(options_.seconds);
    const double seconds = Now() - begin;
    for (size_t i = 0; i < workers.size(); ++i) {
      rates[i] = (rates[i] + double(workers[i]->bytes())) / seconds;
    }
    return rates;
  }

  void AddRow(const std::string& what, size_t session, uint32_t weight,
              double rate, double all, double fair) {
    const double share = all > 0 ? rate / all : 0;
    report_.Add({{"what", what},
                 {"session", session},
                 {"weight", weight},
                 {"gb_per_s", rate / 1e9},
                 {"share", share},
                 {"fair_share", fair},
                 {"of_fair", fair > 0 ? Json(share / fair) : Json()},
                 {"all_gb_per_s", all / 1e9},
                 {"link_gb_per_s", link_ / 1e9},
                 {"all_of_link", all / link_}});
  }

  const RunOptions& run_;
  const FairnessOptions& options_;
  Report& report_;
  SyntheticSpec spec_;
  uint64_t device_bytes_ = 0;
  std::unique_ptr<Daemon> daemon_;
  Session session_;
  Synthetic made_;
  double link_ = 0;
  int started_ = 0;
};

void RunFairness(const RunOptions& run, const FairnessOptions& options) {
  Report report("fairness", {{"groups", options.groups},
                             {"group_mib", options.group_mib},
                             {"seconds", options.seconds},
                             {"warm_up_seconds", options.warm_up_seconds}});
  FairnessRun fairness(run, options, report);
  fairness.BesideCopies();
  if (options.copies_alone) return report.Finish(run.json);
  fairness.Shares("one", {1});
  fairness.Shares("two equal", {1, 1});
  fairness.Shares("four equal", {1, 1, 1, 1});
  fairness.Shares("two, 3 to 1", {3, 1});
  fairness.Shares("four, 4 to 1", {4, 3, 2, 1});
  fairness.OneStops();
  fairness.OneDies();
  fairness.Cap();
  report.Finish(run.json);
}

}  // namespace

Command FairnessCommand(CLI::App& app) {
  auto options = std::make_shared<FairnessOptions>();
  CLI::App* command =
      app.add_subcommand("fairness", "several sessions on one link");
  command->add_option("--group-mib", options->group_mib);
  command->add_option("--groups", options->groups);
  command->add_option("--seconds", options->seconds, "each is measured");
  command->add_option("--warm-up-seconds", options->warm_up_seconds);
  command->add_flag("--copies-alone", options->copies_alone,
                    "a plan beside a worker's own copies, and nothing else");
  command->add_option("--cap", options->cap_gb_per_s,
                      "GB/s of the session that is capped");
  return {command,
          [options](const RunOptions& run) { RunFairness(run, *options); }};
}

}  // namespace hoist::bench
