// A program has from its parent more than arguments: signals that it ignores
// or blocks, descriptors 0 to 2, limits. One that must outlive others sets them
// as it needs them, before anything else.
#ifndef HOIST_DAEMON_BASE_INHERITED_H_
#define HOIST_DAEMON_BASE_INHERITED_H_

#include <signal.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace hoistd {

// What a signal does to hoistd and to hoist-keeper.
enum class SignalUse {
  kAwaited,  // It asks for something: a thread takes it, no handler runs.
  kIgnored,  // By default it would end the program, or stop it while it logs.
  kFault,    // The program is at fault, or is made to leave a core: it ends.
  kSystem,   // As the kernel has it, which ends nothing; or nobody can choose.
};

// The table. One of glibc's own (SIGCANCEL, SIGSETXID) is kSystem.
SignalUse UseOf(int signal);

// All that are kAwaited.
sigset_t AwaitedSignals();

// Opens /dev/null where one of the descriptors 0 to 2 is closed: the next file
// that is opened would have that number, and what is written to stderr would go
// there. Sets every signal as the table says, and blocks those that are
// awaited, and no other. Raises each limit as far as the parent lets it. While
// there is one thread.
//
// FailedPrecondition: under a limit that cannot be raised the kernel would kill
// the program (RLIMIT_CPU), or it could not keep what others give it
// (RLIMIT_NOFILE). NotFound, PermissionDenied: there is no /dev/null.
absl::Status SetInherited();

// Fewer descriptors are too few to begin with.
inline constexpr unsigned kFewestDescriptors = 128;

// What a program of many threads maps beside its pools.
inline constexpr uint64_t kFewestAddressBytes = uint64_t{2} << 30;

// FailedPrecondition: RLIMIT_AS leaves less than that beside what is mapped
// now. Libraries that are refused memory end the program, and say nothing.
absl::Status CheckAddresses();

// From now on operator new ends the program where there is no memory: it says
// so, with the limits that it had, and exits with `status`.
void EndWithoutMemory(absl::string_view program, int status);

// For what comes after exec: nothing is ignored, nothing blocked.
void ResetSignals();

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_INHERITED_H_
