#include "tests/bench/syscall_trap.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

namespace hoist::bench {
namespace {

// Of linux/prctl.h, which is older on some machines than their kernel.
constexpr int kSetSyscallUserDispatch = 59;
constexpr unsigned long kDispatchOff = 0;
constexpr unsigned long kDispatchOn = 1;
constexpr char kAllow = 0;
constexpr char kBlock = 1;

// The kernel reads the first; a signal handler writes all of them.
volatile char selector = kAllow;
volatile uint64_t trapped = 0;
volatile long last_number = -1;

#ifdef __x86_64__
long RawCall(const greg_t* regs) {
  long result = regs[REG_RAX];
  register long r10 asm("r10") = regs[REG_R10];
  register long r8 asm("r8") = regs[REG_R8];
  register long r9 asm("r9") = regs[REG_R9];
  asm volatile("syscall"
               : "+a"(result)
               : "D"(regs[REG_RDI]), "S"(regs[REG_RSI]), "d"(regs[REG_RDX]),
                 "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

void OnSigsys(int, siginfo_t*, void* raw_context) {
  selector = kAllow;
  auto* context = static_cast<ucontext_t*>(raw_context);
  greg_t* regs = context->uc_mcontext.gregs;
  trapped = trapped + 1;
  last_number = regs[REG_RAX];
  regs[REG_RAX] = RawCall(regs);
}
#endif

}  // namespace

SyscallTrap::SyscallTrap() {
#ifdef __x86_64__
  trapped = 0;
  last_number = -1;
  struct sigaction action = {};
  action.sa_sigaction = OnSigsys;
  action.sa_flags = SA_SIGINFO;
  if (sigaction(SIGSYS, &action, nullptr) != 0) return;
  if (prctl(kSetSyscallUserDispatch, kDispatchOn, 0UL, 0UL, &selector) != 0) {
    return;
  }
  // It is only believed once it caught a call.
  Arm();
  syscall(SYS_getppid);
  Disarm();
  works_ = trapped == 1 && last_number == SYS_getppid;
  trapped = 0;
  last_number = -1;
#endif
}

SyscallTrap::~SyscallTrap() {
  prctl(kSetSyscallUserDispatch, kDispatchOff, 0UL, 0UL, 0UL);
}

void SyscallTrap::Arm() { selector = kBlock; }
void SyscallTrap::Disarm() { selector = kAllow; }
uint64_t SyscallTrap::count() const { return trapped; }
long SyscallTrap::last() const { return last_number; }

}  // namespace hoist::bench
