// The worker that deaths_test.cc ends, by what it is told to do:
//
//   script SOCKET FILE [traced]  everything once, short; 0: all was right
//   stream SOCKET FILE           passes for ever; a byte to descriptor 3 each
//   busy SOCKET FILE             stages and releases for ever; tells 'b' once
//   hold SOCKET FILE HOW         has a session, a lease and a plan; tells 'h'
//   fds                          tells 'k' if it inherited nothing, else 'x'
//   starve SOCKET FILE LEFT      the script, with so many descriptors left
//
// 2 and up: what went wrong, by its place below.
#include "tests/fault/deaths/death_worker.h"

#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

#include "tests/component/plans/pattern_model.h"

namespace hoistd::testing {
namespace {

constexpr int kTell = 3;

void Tell(char what) {
  if (write(kTell, &what, 1) != 1) _exit(99);
}

// Errors that say what is lacking are what a starving worker may get.
int Failed(int code, const hoist::Status& status) {
  std::fprintf(stderr, "%d: %d %s\n", code, static_cast<int>(status.code()),
               status.message().c_str());
  return status.code() == hoist::Code::kResourceExhausted ? kRefused : code;
}

hoist::Result<hoist::Session> Connect(const std::string& socket) {
  hoist::ConnectOptions options;
  options.socket_path = socket;
  options.connect_deadline = std::chrono::seconds(60);
  options.call_deadline = std::chrono::seconds(60);
  return hoist::Session::Connect(options);
}

hoist::Result<hoist::Plan> PlanOf(hoist::Session& session,
                                  const hoist::Model& model) {
  hoist::PlanOptions options;
  options.budget_bytes = kPlanBudget;
  options.order.resize(model.group_count());
  std::iota(options.order.begin(), options.order.end(), 0);
  options.deadline = std::chrono::seconds(60);
  return session.SetPlan(model, options);
}

int Pass(hoist::Plan& plan, const hoist::Model& model, uint64_t number) {
  for (uint32_t group = 0; group < model.group_count(); ++group) {
    auto data = plan.Stage(group);
    if (!data.ok()) return Failed(20, data.status());
    if (WrongWords(*data, number, group, kGroupBytes) != 0) return 21;
    if (auto s = plan.Done(group); !s.ok()) return Failed(22, s);
  }
  return 0;
}

int Script(const std::string& socket, const std::string& file) {
  auto session = Connect(socket);
  if (!session.ok()) return Failed(2, session.status());
  auto model = PublishPattern(*session, kDyingModel,
                              std::vector<uint64_t>(kDyingGroups, kGroupBytes));
  if (!model.ok()) return Failed(3, model.status());
  hoist::RegisterOptions registered;
  registered.name = kDyingFile;
  registered.path = file;
  auto from_file = session->RegisterModel(registered);
  if (!from_file.ok()) return Failed(4, from_file.status());
  auto read = session->Stage(*from_file, 0, {0, std::chrono::seconds(60)});
  if (!read.ok()) return Failed(5, read.status());
  auto lease = session->Stage(*model, 0, {0, std::chrono::seconds(60)});
  if (!lease.ok()) return Failed(6, lease.status());
  if (WrongWords(lease->data(), kDyingModel, 0, kGroupBytes) != 0) return 7;
  if (auto s = lease->Release(); !s.ok()) return Failed(8, s);
  auto plan = PlanOf(*session, *model);
  if (!plan.ok()) return Failed(9, plan.status());
  if (int code = Pass(*plan, *model, kDyingModel); code != 0) return code;
  auto image = session->ReserveHostImage(*model, 1);
  if (!image.ok()) return Failed(10, image.status());
  if (auto s = image->Load(); !s.ok()) return Failed(11, s);
  if (WrongWords(image->data(), kDyingModel, 1, kGroupBytes) != 0) return 12;
  return Pass(*plan, *model, kDyingModel);
}

int Stream(const std::string& socket) {
  auto session = Connect(socket);
  if (!session.ok()) return Failed(2, session.status());
  auto model =
      PublishPattern(*session, kLivingModel,
                     std::vector<uint64_t>(kLivingGroups, kGroupBytes));
  if (!model.ok()) return Failed(3, model.status());
  auto plan = PlanOf(*session, *model);
  if (!plan.ok()) return Failed(4, plan.status());
  while (true) {
    if (int code = Pass(*plan, *model, kLivingModel); code != 0) return code;
    if (auto s = plan->Check(); !s.ok()) return Failed(5, s);
    const char pass = 'p';
    // It is let go by the end of the pipe; one that is full is left alone.
    if (write(kTell, &pass, 1) != 1 && errno != EAGAIN) return 0;
  }
}

int Busy(const std::string& socket) {
  auto session = Connect(socket);
  if (!session.ok()) return Failed(2, session.status());
  auto model =
      session->DescribeModel("pattern-" + std::to_string(kLivingModel));
  if (!model.ok()) return Failed(3, model.status());
  for (uint64_t turn = 0;; ++turn) {
    const auto group = static_cast<uint32_t>(turn % model->group_count());
    auto lease = session->Stage(*model, group, {0, std::chrono::seconds(60)});
    if (!lease.ok()) return Failed(4, lease.status());
    if (auto s = lease->Release(); !s.ok()) return Failed(5, s);
    if (turn == model->group_count()) Tell('b');
  }
}

[[noreturn]] void Pause() {
  while (true) pause();
}

int Hold(const std::string& socket, const std::string& how) {
  auto session = Connect(socket);
  if (!session.ok()) return Failed(2, session.status());
  auto model = PublishPattern(*session, kDyingModel,
                              std::vector<uint64_t>(kDyingGroups, kGroupBytes));
  if (!model.ok()) return Failed(3, model.status());
  auto lease = session->Stage(*model, 0, {0, std::chrono::seconds(60)});
  if (!lease.ok()) return Failed(4, lease.status());
  auto plan = PlanOf(*session, *model);
  if (!plan.ok()) return Failed(5, plan.status());
  if (int code = Pass(*plan, *model, kDyingModel); code != 0) return code;
  // Without what libhoist does in the child of a fork.
  const long forked = how == "raw-fork" ? syscall(SYS_fork)
                      : how == "fork"   ? fork()
                                        : -1;
  if (forked == 0) {
    if (how == "fork") {
      auto again = session->Stage(*model, 0);
      const bool refused =
          again.status().code() == hoist::Code::kFailedPrecondition;
      Tell(refused ? 'f' : 'x');
    }
    Pause();
  }
  Tell('h');
  if (how != "exec") Pause();
  execl("/proc/self/exe", "death_worker", "fds", nullptr);
  return 6;
}

int CheckFds() {
  bool inherited = false;
  for (int fd = kTell + 1; fd < 1024; ++fd) {
    inherited = inherited || fcntl(fd, F_GETFD) >= 0;
  }
  Tell(inherited ? 'x' : 'k');
  Pause();
}

int Starve(const std::string& socket, const std::string& file, int left) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = static_cast<rlim_t>(kTell + 1 + left);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 3;
  const int starved = Script(socket, file);
  if (starved != 0 && starved != kRefused) return starved;
  limit.rlim_cur = before;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 4;
  const int fed = Script(socket, file);
  return fed != 0 ? fed : starved;
}

}  // namespace

int Run(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  const std::string socket = argc > 2 ? argv[2] : "";
  const std::string file = argc > 3 ? argv[3] : "";
  const std::string last = argc > 4 ? argv[4] : "";
  if (verb == "script" && last == "traced") {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
  }
  if (verb == "script") return Script(socket, file);
  if (verb == "stream") return Stream(socket);
  if (verb == "busy") return Busy(socket);
  if (verb == "hold") return Hold(socket, last);
  if (verb == "fds") return CheckFds();
  if (verb == "starve") return Starve(socket, file, std::atoi(last.c_str()));
  return 1;
}

}  // namespace hoistd::testing

int main(int argc, char** argv) { return hoistd::testing::Run(argc, argv); }
