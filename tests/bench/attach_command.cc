// attach: from exec to the first and the last staged group, for a first and a
// second worker on one model.
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "tests/bench/basics.h"
#include "tests/bench/client.h"
#include "tests/bench/daemon.h"
#include "tests/bench/gpu.h"
#include "tests/bench/report.h"
#include "tests/bench/run_options.h"
#include "tests/bench/synthetic.h"
#include "tests/bench/worker_modes.h"

namespace hoist::bench {
namespace {

struct AttachOptions {
  double group_mib = 64;
  uint32_t groups = 64;
  int second_workers = 5;
};

// A worker's answer, over its stdout; it holds its leases until killed.
class AttachWorker {
 public:
  AttachWorker(const RunOptions& run, const Daemon& daemon, DeviceKind kind,
               const std::string& path, int number) {
    const std::string log =
        run.scratch + "/attach-" + std::to_string(number) + ".log";
    int ends[2];
    if (pipe(ends) != 0) Fail("no pipe");
    const Json arguments = {{"socket", daemon.socket()},
                            {"path", path},
                            {"cuda", kind == DeviceKind::kCuda},
                            {"exec_at", Now()}};
    process_ = std::make_unique<ChildProcess>(
        ChildSpec{.arguments = WorkerCommandLine("attach", arguments),
                  .log = log,
                  .output_fd = ends[1]});
    close(ends[1]);
    FILE* answer = fdopen(ends[0], "r");
    char text[4096];
    if (fgets(text, sizeof(text), answer) == nullptr) {
      Fail("the attaching worker said: " + ReadText(log));
    }
    fclose(answer);
    found_ = Json::parse(text);
  }
  double operator[](const char* key) const { return found_[key].get<double>(); }

 private:
  std::unique_ptr<ChildProcess> process_;
  Json found_;
};

Json Row(const std::string& what, const AttachWorker& worker, uint64_t copied,
         uint64_t read) {
  return {{"worker", what},
          {"exec_to_main_ms", worker["main"] * 1e3},
          {"context_ms", worker["context"] * 1e3},
          {"connect_ms", worker["connect"] * 1e3},
          {"to_first_ms", worker["first"] * 1e3},
          {"to_all_ms", worker["all"] * 1e3},
          {"limit_ms", what == "second" ? Json(50) : Json()},
          {"of_limit",
           what == "second" ? Json(worker["first"] * 1e3 / 50) : Json()},
          {"copied_mib", double(copied) / double(kMiB)},
          {"read_mib", double(read) / double(kMiB)},
          {"rss_added_mib", worker["rss"] / double(kMiB)}};
}

void RunAttach(const RunOptions& run, const AttachOptions& options) {
  const DeviceKind kind = ChosenDevice(run);
  SyntheticSpec model;
  model.groups = options.groups;
  model.group_bytes = static_cast<uint64_t>(options.group_mib * double(kMiB));
  DaemonSpec spec;
  spec.device = kind;
  spec.slab_bytes = (kind == DeviceKind::kCuda ? 64 : 2) * kMiB;
  spec.device_bytes =
      (model.bytes() * 9 / 8 / spec.slab_bytes + 4) * spec.slab_bytes;
  spec.host_bytes = model.bytes() + model.bytes() / 8 + 64 * kMiB;
  const Daemon daemon(run, spec);
  const std::string path = run.scratch + "/model.safetensors";
  WriteFile(path, model);
  daemon.WaitWhole();
  Report report("attach", {{"groups", options.groups},
                           {"group_mib", options.group_mib},
                           {"second_workers", options.second_workers}});
  {
    const Session session = Connect(daemon.socket(), "bench-attach");
    report.SetDevice(DeviceInfo(session).name);
  }
  std::vector<std::unique_ptr<AttachWorker>> workers;
  for (int i = 0; i <= options.second_workers; ++i) {
    const uint64_t copied = daemon.Counter("host_to_device_bytes");
    const uint64_t read = daemon.Counter("file_read_bytes");
    workers.push_back(
        std::make_unique<AttachWorker>(run, daemon, kind, path, i));
    const uint64_t moved = daemon.Counter("host_to_device_bytes") - copied;
    report.Add(Row(i == 0 ? "first" : "second", *workers.back(), moved,
                   daemon.Counter("file_read_bytes") - read));
    if (i > 0 && moved != 0) Fail("a second worker's attach copied bytes");
    if (i > 1) workers.pop_back();  // The first one's leases keep the model.
  }
  report.Note(
      "Times begin at fork and exec; to_first and to_all leave out context_ms, "
      "which any CUDA program pays. The model's file is in the page cache.");
  report.Finish(run.json);
}

}  // namespace

void RunAttachWorker(const Json& arguments) {
  const double exec_at = arguments["exec_at"].get<double>();
  const double main_at = Now();
  std::unique_ptr<Gpu> gpu;
  if (arguments["cuda"].get<bool>()) gpu = std::make_unique<Gpu>();
  const double context = Now() - main_at;
  const uint64_t rss = RssBytes();
  const double connect_at = Now();
  const Session session =
      Connect(arguments["socket"].get<std::string>(), "attach");
  const double connected = Now();
  const Model model =
      RegisterFile(session, "bench", arguments["path"].get<std::string>());
  hoist_error* error = nullptr;
  hoist_lease* lease = nullptr;
  RequireOk(
      hoist_stage(session.get(), model.get(), 0, 0, 60'000, &lease, &error),
      error, "stage the first group");
  const Lease first(lease);
  const double first_at = Now();
  const std::vector<Lease> all = StageAll(session, model);
  const double all_at = Now();
  const Json found = {{"main", main_at - exec_at},
                      {"context", context},
                      {"connect", connected - connect_at},
                      {"first", first_at - exec_at - context},
                      {"all", all_at - exec_at - context},
                      {"rss", double(RssBytes()) - double(rss)}};
  std::printf("%s\n", found.dump().c_str());
  std::fflush(stdout);
  for (;;) pause();
}

Command AttachCommand(CLI::App& app) {
  auto options = std::make_shared<AttachOptions>();
  CLI::App* command =
      app.add_subcommand("attach", "what a second worker waits for");
  command->add_option("--group-mib", options->group_mib);
  command->add_option("--groups", options->groups);
  command->add_option("--second-workers", options->second_workers,
                      "second workers, one after another");
  return {command,
          [options](const RunOptions& run) { RunAttach(run, *options); }};
}

}  // namespace hoist::bench
