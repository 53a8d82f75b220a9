// Detects system calls in a stretch of code, by the kernel's help.
#ifndef HOIST_TESTS_BENCH_SYSCALL_TRAP_H_
#define HOIST_TESTS_BENCH_SYSCALL_TRAP_H_

#include <cstdint>

namespace hoist::bench {

// Between Arm() and Disarm() the first system call of this thread raises SIGSYS
// (Linux 5.11's syscall user dispatch). The handler counts it, makes the call
// and disarms. So count() is the number of stretches with at least one call.
// Clock reads through the vDSO are no system calls.
//
// Threads: the one that made it. One at a time in a process.
class SyscallTrap {
 public:
  SyscallTrap();
  ~SyscallTrap();
  SyscallTrap(const SyscallTrap&) = delete;
  SyscallTrap& operator=(const SyscallTrap&) = delete;

  // False: the kernel or container lacks this; nothing is counted.
  bool works() const { return works_; }
  void Arm();
  void Disarm();
  uint64_t count() const;
  // The number of the last counted call; -1: none.
  long last() const;

 private:
  bool works_ = false;
};

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_SYSCALL_TRAP_H_
