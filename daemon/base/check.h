#ifndef HOIST_DAEMON_BASE_CHECK_H_
#define HOIST_DAEMON_BASE_CHECK_H_

namespace hoistd {
// Prints the place and the condition to stderr, and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* what);
}  // namespace hoistd

// For our own invariants, in every build; never for input from a client, a disk
// or a driver.
#define HOIST_CHECK(condition)  \
  (static_cast<bool>(condition) \
       ? static_cast<void>(0)   \
       : ::hoistd::CheckFailed(__FILE__, __LINE__, #condition))

#endif  // HOIST_DAEMON_BASE_CHECK_H_
