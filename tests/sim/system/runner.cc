#include "tests/sim/system/runner.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/base/check.h"
#include "spdlog/spdlog.h"
#include "tests/sim/system/violation.h"
#include "tests/sim/system/world.h"

namespace hoistd::sim {
namespace {

constexpr size_t kReport = 8192;
constexpr unsigned kLongestCase = 300;  // Seconds of this machine's time.
constexpr int kViolated = 7;

// Where Violation, which knows nobody, writes to.
char* the_report = nullptr;
Check* the_check = nullptr;

struct Weight {
  Op op;
  uint32_t weight;
};
constexpr std::array kWeights = {
    Weight{Op::kEngine, 300},     Weight{Op::kLink, 300},
    Weight{Op::kDevice, 150},     Weight{Op::kRead, 80},
    Weight{Op::kReadFails, 1},    Weight{Op::kTask, 80},
    Weight{Op::kStream, 200},     Weight{Op::kWait, 60},
    Weight{Op::kLongWait, 1},     Weight{Op::kOpen, 8},
    Weight{Op::kKill, 2},         Weight{Op::kBegin, 40},
    Weight{Op::kResume, 60},      Weight{Op::kDie, 2},
    Weight{Op::kRegister, 8},     Weight{Op::kDescribe, 4},
    Weight{Op::kPublish, 8},      Weight{Op::kStage, 30},
    Weight{Op::kCompute, 20},     Weight{Op::kRelease, 24},
    Weight{Op::kPrefetch, 8},     Weight{Op::kForget, 1},
    Weight{Op::kAnswerAsk, 20},   Weight{Op::kSetPlan, 12},
    Weight{Op::kReplacePlan, 3},  Weight{Op::kClearPlan, 3},
    Weight{Op::kUse, 150},        Weight{Op::kDone, 130},
    Weight{Op::kCapture, 1},      Weight{Op::kReplay, 20},
    Weight{Op::kOpenArena, 4},    Weight{Op::kCloseArena, 4},
    Weight{Op::kWriteArena, 20},  Weight{Op::kOpenInPlace, 20},
    Weight{Op::kCloseInPlace, 1}, Weight{Op::kPass, 200},
    Weight{Op::kChooseHot, 100},  Weight{Op::kPlace, 200},
    Weight{Op::kLoad, 3},         Weight{Op::kEvict, 4},
    Weight{Op::kForgetAny, 1},    Weight{Op::kPin, 1},
    Weight{Op::kUnpin, 2},        Weight{Op::kShare, 1}};

using Weights = std::array<Weight, kWeights.size()>;

// What is rare meets what else is rare too seldom: in every second case some of
// it is common.
Weights WeightsOf(std::mt19937_64& random) {
  constexpr uint32_t kRare = 12;
  constexpr std::array<uint32_t, 4> kTimes = {1, 1, 4, 10};
  Weights weights = kWeights;
  if (random() % 2 == 0) return weights;
  for (Weight& of : weights) {
    const uint32_t times = kTimes[random() % kTimes.size()];
    if (of.weight <= kRare) of.weight *= times;
  }
  return weights;
}

Step RandomStep(World& world, const Weights& weights, std::mt19937_64& random) {
  uint32_t sum = 0;
  for (const Weight& of : weights) sum += of.weight;
  Step step;
  while (true) {
    uint64_t at = random() % sum;
    size_t i = 0;
    while (at >= weights[i].weight) at -= weights[i++].weight;
    step.op = weights[i].op;
    if (world.Useful(step.op)) break;
  }
  for (uint32_t& number : step.with) {
    number = static_cast<uint32_t>(random() % 1000);
  }
  return step;
}

}  // namespace

const char* NameOf(Check check) {
  constexpr std::array kNames = {"bytes",      "overwrite", "books",
                                 "answer",     "slabs",     "progress",
                                 "given back", "protocol",  "budget"};
  return kNames[static_cast<size_t>(check)];
}

void Violation(Check check, const std::string& what) {
  if (the_report == nullptr) {
    std::fprintf(stderr, "%s: %s\n", NameOf(check), what.c_str());
    std::abort();
  }
  *the_check = check;
  std::snprintf(the_report, kReport, "%s", what.c_str());
  _exit(kViolated);
}

Mutation& TheMutation() {
  static Mutation mutation;
  return mutation;
}

struct Runner::Shared {
  uint32_t steps = 0;
  uint64_t trace = 0;
  Sights sights = {};
  std::array<Step, kMostSteps> script;
  Check check = Check::kBytes;
  std::array<char, kReport> report = {};
};

Runner::Runner()
    : shared_(static_cast<Shared*>(mmap(nullptr, sizeof(Shared),
                                        PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  HOIST_CHECK(shared_ != MAP_FAILED);
}

Runner::~Runner() { munmap(shared_, sizeof(Shared)); }

template <typename Case>
Outcome Runner::InChild(Mutation mutation, Case&& run_case) {
  new (shared_) Shared();
  const int errors = memfd_create("stderr", MFD_CLOEXEC);
  std::fflush(nullptr);
  const pid_t child = fork();
  HOIST_CHECK(child >= 0);
  if (child == 0) {
    if (getenv("HOIST_SIM_LOUD") == nullptr) dup2(errors, STDERR_FILENO);
    alarm(kLongestCase);
    spdlog::set_level(spdlog::level::off);
    the_report = shared_->report.data();
    the_check = &shared_->check;
    TheMutation() = mutation;
    run_case();
    _exit(0);
  }
  int ended = 0;
  HOIST_CHECK(waitpid(child, &ended, 0) == child);
  Outcome outcome;
  outcome.steps = shared_->steps;
  outcome.trace = shared_->trace;
  outcome.sights = shared_->sights;
  outcome.script.assign(shared_->script.begin(),
                        shared_->script.begin() + shared_->steps);
  outcome.failed = !WIFEXITED(ended) || WEXITSTATUS(ended) != 0;
  if (WIFEXITED(ended) && WEXITSTATUS(ended) == kViolated) {
    outcome.check = NameOf(shared_->check);
    outcome.what = shared_->report.data();
  } else if (outcome.failed) {
    std::array<char, 4096> text = {};
    const ssize_t got = pread(errors, text.data(), text.size() - 1, 0);
    outcome.what = got > 0 ? text.data() : "it said nothing";
    const bool hung = WIFSIGNALED(ended) && WTERMSIG(ended) == SIGALRM;
    // What the daemon itself looks at.
    const bool checked = outcome.what.find("check failed") != std::string::npos;
    outcome.check = hung ? "hang" : checked ? NameOf(Check::kBooks) : "crash";
  }
  close(errors);
  return outcome;
}

Outcome Runner::Random(uint64_t seed, uint32_t steps, Mutation mutation) {
  HOIST_CHECK(steps < kMostSteps);
  return InChild(mutation, [&] {
    std::mt19937_64 random(seed);
    Step first;
    for (uint32_t& number : first.with) {
      number = static_cast<uint32_t>(random() % 1000);
    }
    shared_->script[shared_->steps++] = first;
    World world(first, models_);
    const Weights weights = WeightsOf(random);
    for (uint32_t i = 1; i < steps; ++i) {
      const Step step = RandomStep(world, weights, random);
      shared_->script[shared_->steps++] = step;
      world.Do(step);
    }
    world.Finish();
    shared_->trace = world.trace();
    shared_->sights = world.sights();
  });
}

Outcome Runner::Replay(const Script& script, Mutation mutation) {
  HOIST_CHECK(!script.empty() && script.size() <= kMostSteps);
  return InChild(mutation, [&] {
    shared_->script[shared_->steps++] = script.front();
    World world(script.front(), models_);
    for (size_t i = 1; i < script.size(); ++i) {
      shared_->script[shared_->steps++] = script[i];
      world.Do(script[i]);
    }
    world.Finish();
    shared_->trace = world.trace();
    shared_->sights = world.sights();
  });
}

Script Runner::Shrink(Script script, const std::string& check, int most_runs,
                      Mutation mutation) {
  size_t part = script.size() / 2;
  while (part > 0 && most_runs > 0) {
    bool smaller = false;
    // From the end: what is behind is needed least.
    for (size_t end = script.size(); end > 1 && most_runs > 0;) {
      const size_t begin = end > part + 1 ? end - part : 1;
      Script fewer(script.begin(),
                   script.begin() + static_cast<std::ptrdiff_t>(begin));
      fewer.insert(fewer.end(),
                   script.begin() + static_cast<std::ptrdiff_t>(end),
                   script.end());
      --most_runs;
      const Outcome outcome = Replay(fewer, mutation);
      if (outcome.failed && outcome.check == check) {
        script = outcome.script;
        smaller = true;
      }
      end = std::min(begin, script.size());
    }
    if (part > 1) {
      part /= 2;
    } else if (!smaller) {
      break;
    }
  }
  return script;
}

std::string Report(const Outcome& outcome, uint64_t seed,
                   const Script& shrunk) {
  return absl::StrCat("seed ", seed, ", step ", outcome.steps, ": ",
                      outcome.check, ": ", outcome.what,
                      "\nThe same by fewer steps, for a test to replay:\n",
                      ToText(shrunk));
}

}  // namespace hoistd::sim
