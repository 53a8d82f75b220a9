// Constants shared by deaths_test.cc and its worker.
#ifndef HOIST_TESTS_FAULT_DEATHS_DEATH_WORKER_H_
#define HOIST_TESTS_FAULT_DEATHS_DEATH_WORKER_H_

#include <cstdint>

namespace hoistd::testing {

inline constexpr uint64_t kGroupBytes = uint64_t{256} << 10;
inline constexpr uint64_t kPlanBudget = 3 * kGroupBytes;
// PatternModel's numbers.
inline constexpr uint64_t kDyingModel = 7;
inline constexpr uint64_t kDyingGroups = 5;
inline constexpr uint64_t kLivingModel = 1;
inline constexpr uint64_t kLivingGroups = 8;
inline constexpr char kDyingFile[] = "dying-file";

// Exit code of a worker refused with RESOURCE_EXHAUSTED.
inline constexpr int kRefused = 1;

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_FAULT_DEATHS_DEATH_WORKER_H_
