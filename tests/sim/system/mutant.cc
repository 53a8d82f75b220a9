#include "tests/sim/system/mutant.h"

#include <array>
#include <cstddef>

namespace hoistd::sim {

const char* NameOf(Mutant mutant) {
  constexpr std::array<const char*, kMutants> kNames = {
      "none",        "dropped-copy",    "late-copy",     "torn-copy",
      "not-zeroed",  "other-range",     "short-read",    "no-answer",
      "early-done",  "kept-lease",      "early-leave",   "other-piece",
      "over-budget", "ignored-done",    "invented-done", "freed-twice",
      "never-freed", "kept-quota",      "lost-wake",     "lost-record",
      "kept-record", "lost-descriptor", "stale-ids",     "no-copy-again",
      "done-again",  "lost-done"};
  return kNames[static_cast<size_t>(mutant)];
}

}  // namespace hoistd::sim
