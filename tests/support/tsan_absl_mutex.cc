// Tells ThreadSanitizer what absl::Mutex and absl::Status order.
//
// Debian's libabsl_synchronization is not instrumented and sleeps on futexes of
// its own. So TSan sees no order between an Unlock and the next Lock, and takes
// every guarded field for a race. These definitions stand before the library's,
// call it, and say what it did. Linked into tests under HOIST_SANITIZE=thread
// alone; Abseil 20220623's symbols, so it fails to link where they differ.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdint>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

// absl::Mutex's own deadlock detection, under a spin lock that TSan cannot see;
// and the bytes of emulated devices, which messages and words of other
// processes order, and which are mapped anew where others were.
extern "C" const char* __tsan_default_suppressions() {
  return "race:absl::debian3::synchronization_internal::GraphCycles\n"
         "race:hoistd::MappedStream::Do\n"
         "race:ToDevice\n";
}

extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);

namespace {

// The library's own function of that mangled name.
template <typename Function>
Function* Real(const char* symbol) {
  void* found = dlsym(RTLD_NEXT, symbol);
  if (found == nullptr) abort();
  return reinterpret_cast<Function*>(found);
}

}  // namespace

#define HOIST_SYMBOL_(rest) "_ZN4absl7debian3" rest

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const real = Real<void(Mutex*)>(HOIST_SYMBOL_("5Mutex4LockEv"));
  real(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static auto* const real =
      Real<void(Mutex*)>(HOIST_SYMBOL_("5Mutex6UnlockEv"));
  __tsan_release(this);
  real(this);
}

bool Mutex::TryLock() {
  static auto* const real =
      Real<bool(Mutex*)>(HOIST_SYMBOL_("5Mutex7TryLockEv"));
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static auto* const real =
      Real<void(Mutex*)>(HOIST_SYMBOL_("5Mutex10ReaderLockEv"));
  real(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static auto* const real =
      Real<void(Mutex*)>(HOIST_SYMBOL_("5Mutex12ReaderUnlockEv"));
  __tsan_release(this);
  real(this);
}

void Mutex::Await(const Condition& condition) {
  static auto* const real = Real<void(Mutex*, const Condition&)>(
      HOIST_SYMBOL_("5Mutex5AwaitERKNS0_9ConditionE"));
  __tsan_release(this);
  real(this, condition);
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const real = Real<bool(Mutex*, const Condition&, Duration)>(
      HOIST_SYMBOL_("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_"
                    "8DurationE"));
  __tsan_release(this);
  const bool met = real(this, condition, timeout);
  __tsan_acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static auto* const real = Real<bool(Mutex*, const Condition&, Time)>(
      HOIST_SYMBOL_("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_"
                    "4TimeE"));
  __tsan_release(this);
  const bool met = real(this, condition, deadline);
  __tsan_acquire(this);
  return met;
}

void Mutex::LockWhen(const Condition& condition) {
  static auto* const real = Real<void(Mutex*, const Condition&)>(
      HOIST_SYMBOL_("5Mutex8LockWhenERKNS0_9ConditionE"));
  real(this, condition);
  __tsan_acquire(this);
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const real =
      Real<void(CondVar*, Mutex*)>(HOIST_SYMBOL_("7CondVar4WaitEPNS0_5MutexE"));
  __tsan_release(mutex);
  real(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const real = Real<bool(CondVar*, Mutex*, Duration)>(
      HOIST_SYMBOL_("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"));
  __tsan_release(mutex);
  const bool timed_out = real(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const real = Real<bool(CondVar*, Mutex*, Time)>(
      HOIST_SYMBOL_("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"));
  __tsan_release(mutex);
  const bool timed_out = real(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

// Conditions run inside the library, also on the thread of whoever unlocks,
// between its taking the mutex and our saying so. The mutex is held then.
bool Condition::Eval() const {
  static auto* const real =
      Real<bool(const Condition*)>("_ZNK4absl7debian39Condition4EvalEv");
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  const bool met = real(this);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return met;
}

// The library counts references down where TSan does not see it, and whoever
// is last frees what the others have read.
void Status::UnrefNonInlined(uintptr_t rep) {
  static auto* const real =
      Real<void(uintptr_t)>(HOIST_SYMBOL_("6Status15UnrefNonInlinedEm"));
  __tsan_release(reinterpret_cast<void*>(rep));
  __tsan_acquire(reinterpret_cast<void*>(rep));
  real(rep);
}

ABSL_NAMESPACE_END
}  // namespace absl
