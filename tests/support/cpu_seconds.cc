// In every test program: its CPU time, as an attribute of its JUnit result,
// which scripts/tally.py holds to a limit.
#include <sys/resource.h>
#include <sys/time.h>

#include <string>

#include "gtest/gtest.h"

namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_usec) / 1e6;
}

// Of this process and of the children that it has waited for.
class CpuSeconds : public testing::Environment {
 public:
  void TearDown() override {
    double used = 0;
    for (const auto whose : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
      rusage usage{};
      getrusage(whose, &usage);
      used += Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
    }
    testing::Test::RecordProperty("cpu_seconds", std::to_string(used));
  }
};

// gtest owns it.
[[maybe_unused]] const testing::Environment* const kRegistered =
    testing::AddGlobalTestEnvironment(new CpuSeconds);

}  // namespace
