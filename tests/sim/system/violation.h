// The end of a simulated case with a violation.
#ifndef HOIST_TESTS_SIM_SYSTEM_VIOLATION_H_
#define HOIST_TESTS_SIM_SYSTEM_VIOLATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace hoistd::sim {

// The properties that are checked.
enum class Check {
  kBytes,      // A worker computes with the bytes of the file or publication,
               // from a kernel's beginning to its end.
  kOverwrite,  // No write to memory that a worker uses or a copy reads.
  kBooks,      // The ledger is consistent, agrees with a recount, and the next
               // hoistd's with the last one's.
  kAnswer,     // Each request is answered, once.
  kSlabs,      // Leases lie in slabs that the worker was given.
  kProgress,   // Work that can go on goes on.
  kGivenBack,  // After all is released, nothing is held.
  kProtocol,   // Answers are possible ones, and no number is given twice.
  kBudget,     // What a tensor in place has on its device fits its budget.
};
const char* NameOf(Check check);

// Events in cases, so that a test can show that they occurred.
enum class Seen {
  kKernels,   // On slots of plans.
  kCaptured,  // Of them, in graphs' form.
  kResidents,
  kLeases,
  kPlans,
  kReplaced,   // Plans.
  kFaults,     // Plans that ended by a fault.
  kPublished,  // Groups.
  kDeaths,     // With requests under way.
  kAsked,      // For slabs.
  kAskedForPlan,
  kKilled,  // Hoistds, between two steps.
  kKilledMidway,
  kKilledBeginning,  // Before the takeover of the last one's state.
  kGivenUp,          // Abandoned state, after too many of these.
  kResumed,          // Sessions with leases or plans.
  kLanesResumed,
  kUnfit,       // Plans whose lanes were left in another form.
  kAskedAgain,  // Requests.
  kColdPieces,  // In place, that passes read.
  kHotPieces,
  kPlacedHot,  // Of them.
  kPlacedCold,
  kInPlaceResumed,  // With some hot pieces.
  kInPlaceDeaths,   // Of workers with some hot pieces.
  kReadUnserved,    // In place, while there was no hoistd.
  kPlacedUnserved,
  kArenas,
  kArenasResumed,
};
inline constexpr size_t kSeen = static_cast<size_t>(Seen::kArenasResumed) + 1;
using Sights = std::array<uint64_t, kSeen>;

// Reports the violation, and ends the process of this case.
[[noreturn]] void Violation(Check check, const std::string& what);

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_VIOLATION_H_
