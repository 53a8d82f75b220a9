// Basics of every bench: failure, time, medians, lists on the command line.
#ifndef HOIST_TESTS_BENCH_BASICS_H_
#define HOIST_TESTS_BENCH_BASICS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hoist/shared/status.h"

namespace hoist::bench {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// Ends a bench that cannot measure, with the reason. Its supervisor (main.cc)
// ends the bench's processes and removes its files.
[[noreturn]] void Fail(const std::string& why);
void Require(const Status& status, const std::string& what);

// Seconds of CLOCK_MONOTONIC, which all processes share.
double Now();
void SleepFor(double seconds);

// 0 <= q <= 1; `values` may not be empty.
double Quantile(std::vector<double> values, double q);
inline double Median(const std::vector<double>& values) {
  return Quantile(values, 0.5);
}

// "54.6 GB/s" is Rate's 54.6: 10^9 bytes.
inline double GbPerS(double bytes, double seconds) {
  return bytes / seconds / 1e9;
}

// Resident memory of this process, from /proc.
uint64_t RssBytes();

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_BASICS_H_
