// Faults that the simulation injects, to show that its checks would find them.
#ifndef HOIST_TESTS_SIM_SYSTEM_MUTANT_H_
#define HOIST_TESTS_SIM_SYSTEM_MUTANT_H_

namespace hoistd::sim {

enum class Mutant {
  kNone,
  // The device's.
  kDroppedCopy,  // Says that a copy is over, and has not done it.
  kLateCopy,     // Copies after it has written the words behind the copy.
  kTornCopy,     // Leaves the last page as it was.
  // The I/O engine's.
  kOtherRange,  // Reads another range of the file.
  kShortRead,   // Says ok before the end is read.
  kNoAnswer,    // Never says that a read is over.
  // The worker's.
  kEarlyDone,       // Says done while its kernel runs.
  kPersistedLease,  // A release gets lost on its way to the engine.
  kEarlyLeave,      // Gives a hot piece back that its tensor shows.
  // The daemon's own: see mutant_wraps.cc.
  kIgnoredDone,   // A done word that is not seen.
  kInventedDone,  // One that is seen before it is written.
  kFreedTwice,    // An extent of the host is freed again, one step later.
  kNeverFreed,    // An extent of the host is not freed.
  kKeptQuota,     // What a user gives back still counts.
  kLostWake,      // The link is not woken by what is posted to it.
  // Of what one hoistd leaves to the next:
  kLostRecord,      // A record that is not in the book.
  kKeptRecord,      // One that is in it still.
  kLostDescriptor,  // A descriptor that nobody holds.
  kStaleIds,        // The next one's numbers begin where the last one's did.
  kNoCopyAgain,     // A slot that no word vouches for counts as loaded.
  kDoneAgain,       // The done word of a position counts for the next one.
  kLostDone,        // In the next one's life, as kIgnoredDone.
};
inline constexpr int kMutants = static_cast<int>(Mutant::kLostDone) + 1;
const char* NameOf(Mutant mutant);

// Of this process, which runs one case. Wrapped functions of the daemon, which
// have no other way to know, look here.
struct Mutation {
  Mutant mutant = Mutant::kNone;
  int after = 0;  // It shows at the so many-th chance.
  int lives = 1;  // Which hoistd in a row lives.

  // A chance: whether it shows now.
  bool Shows(Mutant which) { return mutant == which && after-- == 0; }
};
Mutation& TheMutation();

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_MUTANT_H_
