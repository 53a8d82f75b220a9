#include "tests/bench/basics.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace hoist::bench {

void Fail(const std::string& why) {
  std::fprintf(stderr, "hoist-bench: %s\n", why.c_str());
  std::exit(1);
}

void Require(const Status& status, const std::string& what) {
  if (!status.ok()) Fail(what + ": " + status.ToString());
}

double Now() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

void SleepFor(double seconds) {
  timespec left = {};
  left.tv_sec = static_cast<time_t>(seconds);
  left.tv_nsec =
      static_cast<long>((seconds - static_cast<double>(left.tv_sec)) * 1e9);
  while (nanosleep(&left, &left) != 0) {
  }
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) Fail("nothing was measured: give more passes");
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(std::floor(at));
  const size_t above = std::min(below + 1, values.size() - 1);
  const double part = at - static_cast<double>(below);
  return values[below] * (1 - part) + values[above] * part;
}

uint64_t RssBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    uint64_t kib = 0;
    if (word == "VmRSS:" && status >> kib) return kib * 1024;
  }
  Fail("no VmRSS in /proc/self/status");
}

}  // namespace hoist::bench
