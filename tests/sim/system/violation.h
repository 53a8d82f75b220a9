// How a simulated case ends that shows something wrong.
#ifndef HOIST_TESTS_SIM_SYSTEM_VIOLATION_H_
#define HOIST_TESTS_SIM_SYSTEM_VIOLATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace hoistd::sim {

// What is looked at.
enum class Check {
  kBytes,      // What a worker computes with is what the file, or the
               // publication, holds; when it begins and when it is done.
  kOverwrite,  // Nobody writes to what a worker uses, or a copy reads.
  kBooks,      // The ledger agrees with itself, and with what was counted; the
               // next hoistd's with the last one's.
  kAnswer,     // Each request is answered, once.
  kSlabs,      // What is leased lies in slabs that the worker was given.
  kProgress,   // What can go on goes on.
  kGivenBack,  // Who gave all back holds nothing.
  kProtocol,   // Answers say what can be, and no number is given twice.
};
const char* NameOf(Check check);

// What cases did, so that a test can say that they did it.
enum class Seen {
  kKernels,   // On slots of plans.
  kCaptured,  // Of them, in graphs' form.
  kResidents,
  kLeases,
  kPlans,
  kReplaced,   // Plans.
  kFaults,     // Plans that ended by one.
  kPublished,  // Groups.
  kDeaths,     // With requests under way.
  kAsked,      // For slabs.
  kKilled,     // Hoistds, between two steps.
  kKilledMidway,
  kKilledBeginning,  // Before they had taken over what the last one left.
  kGivenUp,          // What was left, after too many of these.
  kResumed,          // Sessions with leases or plans.
  kLanesResumed,
  kUnfit,       // Plans whose lanes were left in another form.
  kAskedAgain,  // Requests.
  kColdPieces,  // In place, that passes read.
  kHotPieces,
  kPlacedHot,  // Of them.
  kPlacedCold,
  kInPlaceResumed,  // Of whom some pieces are hot.
};
inline constexpr size_t kSeen = static_cast<size_t>(Seen::kInPlaceResumed) + 1;
using Sights = std::array<uint64_t, kSeen>;

// Cases run in processes of their own: says what is wrong, and ends this one.
[[noreturn]] void Violation(Check check, const std::string& what);

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_VIOLATION_H_
