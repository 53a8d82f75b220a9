// Faults of the daemon's own code. The linker puts these in the place of the
// functions that they are named for (--wrap, in this program alone), so that
// the daemon has no hooks for them. A name that is not there any more wraps
// nothing; the test of that mutant then says that nobody noticed it.
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "daemon/core/extent_map.h"
#include "daemon/core/quota.h"
#include "daemon/plan/lane_schedule.h"
#include "hoist/shared/lane_layout.h"
#include "tests/sim/system/mutant.h"

namespace hoistd::sim {
namespace {

// From its first chance on, and for good.
bool Broken(Mutant mutant) {
  static std::array<bool, kMutants> broken = {};
  bool& of = broken[static_cast<size_t>(mutant)];
  of = of || TheMutation().Shows(mutant);
  return of;
}

}  // namespace
}  // namespace hoistd::sim

using hoistd::sim::Broken;
using hoistd::sim::Mutant;
using hoistd::sim::TheMutation;

// NOLINTBEGIN: names are the linker's.
extern "C" {

// LaneSchedule::SawDone(LaneGroup, uint32_t)
void __real__ZN6hoistd12LaneSchedule7SawDoneEjj(hoistd::LaneSchedule*, uint32_t,
                                                uint32_t);
void __wrap__ZN6hoistd12LaneSchedule7SawDoneEjj(hoistd::LaneSchedule* schedule,
                                                uint32_t group, uint32_t word) {
  if (Broken(Mutant::kIgnoredDone)) return;
  if (Broken(Mutant::kInventedDone)) {
    word = hoist::lane::WordOf(schedule->last_position(group));
  }
  __real__ZN6hoistd12LaneSchedule7SawDoneEjj(schedule, group, word);
}

// ExtentMap::Free(uint64_t)
void __real__ZN6hoistd9ExtentMap4FreeEm(hoistd::ExtentMap*, uint64_t);
void __wrap__ZN6hoistd9ExtentMap4FreeEm(hoistd::ExtentMap* map,
                                        uint64_t offset) {
  static std::map<hoistd::ExtentMap*, uint64_t> again;
  if (TheMutation().Shows(Mutant::kNeverFreed)) return;
  __real__ZN6hoistd9ExtentMap4FreeEm(map, offset);
  if (TheMutation().mutant != Mutant::kFreedTwice) return;
  // Of the next one that is freed, the one before is freed again.
  const auto before = again.find(map);
  if (before != again.end() && TheMutation().Shows(Mutant::kFreedTwice)) {
    __real__ZN6hoistd9ExtentMap4FreeEm(map, before->second);
  }
  again[map] = offset;
}

// QuotaBook::Unuse(User, const CopyRef&)
void __real__ZN6hoistd9QuotaBook5UnuseENS_4UserERKNS_7CopyRefE(
    hoistd::QuotaBook*, hoistd::User, const hoistd::CopyRef&);
void __wrap__ZN6hoistd9QuotaBook5UnuseENS_4UserERKNS_7CopyRefE(
    hoistd::QuotaBook* book, hoistd::User user, const hoistd::CopyRef& copy) {
  if (TheMutation().Shows(Mutant::kKeptQuota)) return;
  __real__ZN6hoistd9QuotaBook5UnuseENS_4UserERKNS_7CopyRefE(book, user, copy);
}

// write(2): to an eventfd 8 bytes are written, and to nothing else here.
ssize_t __real_write(int, const void*, size_t);
ssize_t __wrap_write(int fd, const void* from, size_t bytes) {
  if (bytes == 8 && Broken(Mutant::kLostWake)) return 8;
  return __real_write(fd, from, bytes);
}

}  // extern "C"
// NOLINTEND
