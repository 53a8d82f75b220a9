// Faults injected into the simulation, to show that its checks find them.
#ifndef HOIST_TESTS_SIM_SYSTEM_MUTANT_H_
#define HOIST_TESTS_SIM_SYSTEM_MUTANT_H_

namespace hoistd::sim {

enum class Mutant {
  kNone,
  // In the device.
  kDroppedCopy,  // Reports a copy as done without doing it.
  kLateCopy,     // Copies after the words that follow the copy.
  kTornCopy,     // Does not write the last page.
  kNotZeroed,    // Leaves an arena's bytes for the next one.
  // In the I/O engine.
  kOtherRange,  // Reads another range of the file.
  kShortRead,   // Reports ok before the end is read.
  kNoAnswer,    // Never reports the end of a read.
  // In the worker.
  kEarlyDone,       // Reports done while its kernel runs.
  kPersistedLease,  // A release gets lost on its way to the engine.
  kEarlyLeave,      // Releases a hot piece that its tensor shows.
  kOtherPiece,      // Remaps another piece than the one that came.
  // In libhoist: see mutant_wraps.cc.
  kOverBudget,  // Brings pieces beside those that are still to leave.
  // In the daemon: see mutant_wraps.cc.
  kIgnoredDone,   // A done word is not seen.
  kInventedDone,  // A done word is seen before it is written.
  kFreedTwice,    // An extent of the host is freed again, one step later.
  kNeverFreed,    // An extent of the host is not freed.
  kKeptQuota,     // Released holdings still count.
  kLostWake,      // A post does not wake the link.
  // In the state that one hoistd leaves to the next:
  kLostRecord,      // A record is missing from the book.
  kKeptRecord,      // A deleted record is still there.
  kLostDescriptor,  // A descriptor is not held.
  kStaleIds,        // The next one's numbers start over.
  kNoCopyAgain,     // A slot that no word vouches for counts as loaded.
  kDoneAgain,       // The done word of a position counts for the next one.
  kLostDone,        // In the next one's life, as kIgnoredDone.
};
inline constexpr int kMutants = static_cast<int>(Mutant::kLostDone) + 1;
const char* NameOf(Mutant mutant);

// The mutation of this process, which runs one case. Global, since wrapped
// functions of the daemon have no other access to it.
struct Mutation {
  Mutant mutant = Mutant::kNone;
  int after = 0;  // Opportunities before it shows.
  int lives = 1;  // The number of the current hoistd.

  // Called at each opportunity: whether the fault shows now.
  bool Shows(Mutant which) { return mutant == which && after-- == 0; }
};
Mutation& TheMutation();

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_MUTANT_H_
