// State that a program inherits besides its arguments: ignored and blocked
// signals, descriptors 0 to 2, limits. A program that must outlive others sets
// it as needed, before anything else.
#ifndef HOIST_DAEMON_BASE_INHERITED_H_
#define HOIST_DAEMON_BASE_INHERITED_H_

#include <signal.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace hoistd {

// The use of a signal in hoistd and hoist-keeper.
enum class SignalUse {
  kAwaited,  // A request: a thread takes it, no handler runs.
  kIgnored,  // Its default would end the program, or stop it while it logs.
  kFault,    // A fault, or a request for a core dump: the program ends.
  kSystem,   // The kernel's default, which is harmless or cannot be changed.
};

// The table of uses. glibc's own signals (SIGCANCEL, SIGSETXID) are kSystem.
SignalUse UseOf(int signal);

// All signals that are kAwaited.
sigset_t AwaitedSignals();

// To be called while there is one thread.
//
// Opens /dev/null for closed descriptors among 0 to 2: else the next opened
// file would get that number, and with it output meant for stderr. Sets all
// signals by the table, and blocks exactly the awaited ones. Raises each limit
// as far as the parent allows.
//
// FailedPrecondition: a limit cannot be raised. With RLIMIT_CPU the kernel
// would kill the program; with RLIMIT_NOFILE it could not keep others'
// descriptors. NotFound, PermissionDenied: there is no /dev/null.
absl::Status SetInherited();

// The least number of descriptors to start with.
inline constexpr unsigned kFewestDescriptors = 128;

// Address space of a program with many threads, besides its pools.
inline constexpr uint64_t kFewestAddressBytes = uint64_t{2} << 30;

// FailedPrecondition: RLIMIT_AS leaves less than that besides current mappings.
// Libraries end the program silently when an allocation fails.
absl::Status CheckAddresses();

// From now on operator new ends the program when there is no memory: it reports
// that, with the current limits, and exits with `status`.
void EndWithoutMemory(absl::string_view program, int status);

// For the program after exec: no signal is ignored or blocked.
void ResetSignals();

}  // namespace hoistd

#endif  // HOIST_DAEMON_BASE_INHERITED_H_
