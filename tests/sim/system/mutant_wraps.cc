// Faults of the daemon's and libhoist's own code, and points where it can be
// killed. The linker puts these in the place of the functions that they are
// named for
// (--wrap, in this program alone), so that the daemon has no hooks for them. A
// name that is not there any more wraps nothing; the test of that mutant then
// says that nobody noticed it.
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "client/src/in_place/piece_book.h"
#include "daemon/core/extent_map.h"
#include "daemon/core/node_restore.h"
#include "daemon/core/quota.h"
#include "daemon/keeper/descriptor_bundle.h"
#include "daemon/keeper/persisted_book.h"
#include "daemon/plan/lane_schedule.h"
#include "daemon/stream/lane_memory.h"
#include "daemon/successor/persisted_keys.h"
#include "hoist/shared/lane_layout.h"
#include "tests/sim/system/mutant.h"
#include "tests/sim/system/reaper.h"

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

using absl::Status;
using hoistd::PersistedKey;
using hoistd::sim::Broken;
using hoistd::sim::Mutant;
using hoistd::sim::TheMutation;
using hoistd::sim::TheReaper;

// NOLINTBEGIN: names are the linker's.
#ifdef __clang__
// Nobody calls them from C.
#pragma clang diagnostic ignored "-Wreturn-type-c-linkage"
#endif
extern "C" {

// PieceBook::NextToBring(uint64_t)
#define NEXT_TO_BRING "_ZN5hoist9PieceBook11NextToBringEm"
std::vector<size_t> RealNext(hoist::PieceBook*,
                             uint64_t) __asm__("__real_" NEXT_TO_BRING);
std::vector<size_t> WrapNext(hoist::PieceBook* book,
                             uint64_t budget) __asm__("__wrap_" NEXT_TO_BRING);
std::vector<size_t> WrapNext(hoist::PieceBook* book, uint64_t budget) {
  if (Broken(Mutant::kOverBudget)) budget = UINT64_MAX;
  return RealNext(book, budget);
}

// LaneSchedule::SawDone(LaneGroup, uint32_t)
void __real__ZN6hoistd12LaneSchedule7SawDoneEjj(hoistd::LaneSchedule*, uint32_t,
                                                uint32_t);
void __wrap__ZN6hoistd12LaneSchedule7SawDoneEjj(hoistd::LaneSchedule* schedule,
                                                uint32_t group, uint32_t word) {
  if (Broken(Mutant::kIgnoredDone)) return;
  if (TheMutation().lives > 1 && Broken(Mutant::kLostDone)) return;
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

// LaneSchedule::ResumeWords(LaneGroup, uint32_t, uint32_t)
void __real__ZN6hoistd12LaneSchedule11ResumeWordsEjjj(hoistd::LaneSchedule*,
                                                      uint32_t, uint32_t,
                                                      uint32_t);
void __wrap__ZN6hoistd12LaneSchedule11ResumeWordsEjjj(
    hoistd::LaneSchedule* schedule, uint32_t group, uint32_t ready,
    uint32_t done) {
  if (ready == done && ready > 0 && Broken(Mutant::kNoCopyAgain)) --done;
  if (ready != done && Broken(Mutant::kDoneAgain)) done = ready;
  __real__ZN6hoistd12LaneSchedule11ResumeWordsEjjj(schedule, group, ready,
                                                   done);
}

// NodeRestore::SkipIds(uint64_t)
void __real__ZN6hoistd11NodeRestore7SkipIdsEm(hoistd::NodeRestore*, uint64_t);
void __wrap__ZN6hoistd11NodeRestore7SkipIdsEm(hoistd::NodeRestore* restore,
                                              uint64_t last) {
  if (TheMutation().mutant == Mutant::kStaleIds) return;
  __real__ZN6hoistd11NodeRestore7SkipIdsEm(restore, last);
}

// PersistedBook::Put(PersistedKey, std::string_view)
#define KEPT_BOOK_PUT                                \
  "_ZN6hoistd13PersistedBook3PutENS_12PersistedKeyE" \
  "St17basic_string_viewIcSt11char_traitsIcEE"
Status RealPut(hoistd::PersistedBook*, PersistedKey,
               std::string_view) __asm__("__real_" KEPT_BOOK_PUT);
Status WrapPut(hoistd::PersistedBook* book, PersistedKey key,
               std::string_view value) __asm__("__wrap_" KEPT_BOOK_PUT);
Status WrapPut(hoistd::PersistedBook* book, PersistedKey key,
               std::string_view value) {
  TheReaper().Point();
  if (IsOfNode(key) && TheMutation().Shows(Mutant::kLostRecord)) return {};
  Status status = RealPut(book, key, value);
  TheReaper().Point();
  return status;
}

// PersistedBook::Erase(PersistedKey)
Status __real__ZN6hoistd13PersistedBook5EraseENS_12PersistedKeyE(
    hoistd::PersistedBook*, PersistedKey);
Status __wrap__ZN6hoistd13PersistedBook5EraseENS_12PersistedKeyE(
    hoistd::PersistedBook* book, PersistedKey key) {
  TheReaper().Point();
  if (IsOfNode(key) && TheMutation().Shows(Mutant::kKeptRecord)) return {};
  Status status =
      __real__ZN6hoistd13PersistedBook5EraseENS_12PersistedKeyE(book, key);
  TheReaper().Point();
  return status;
}

// DescriptorBundle::Add(PersistedKey, int)
Status __real__ZN6hoistd16DescriptorBundle3AddENS_12PersistedKeyEi(
    hoistd::DescriptorBundle*, PersistedKey, int);
Status __wrap__ZN6hoistd16DescriptorBundle3AddENS_12PersistedKeyEi(
    hoistd::DescriptorBundle* bundle, PersistedKey key, int fd) {
  TheReaper().Point();
  if (TheMutation().Shows(Mutant::kLostDescriptor)) return {};
  return __real__ZN6hoistd16DescriptorBundle3AddENS_12PersistedKeyEi(bundle,
                                                                     key, fd);
}

// DescriptorBundle::Remove(PersistedKey)
Status __real__ZN6hoistd16DescriptorBundle6RemoveENS_12PersistedKeyE(
    hoistd::DescriptorBundle*, PersistedKey);
Status __wrap__ZN6hoistd16DescriptorBundle6RemoveENS_12PersistedKeyE(
    hoistd::DescriptorBundle* bundle, PersistedKey key) {
  TheReaper().Point();
  return __real__ZN6hoistd16DescriptorBundle6RemoveENS_12PersistedKeyE(bundle,
                                                                       key);
}

// LaneMemory::Store(Word&, uint32_t) const
void __real__ZNK6hoistd10LaneMemory5StoreERSt6atomicIjEj(
    const hoistd::LaneMemory*, hoist::lane::Word*, uint32_t);
void __wrap__ZNK6hoistd10LaneMemory5StoreERSt6atomicIjEj(
    const hoistd::LaneMemory* memory, hoist::lane::Word* word, uint32_t value) {
  TheReaper().Point();
  __real__ZNK6hoistd10LaneMemory5StoreERSt6atomicIjEj(memory, word, value);
}

}  // extern "C"
// NOLINTEND
