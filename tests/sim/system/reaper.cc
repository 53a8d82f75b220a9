#include "tests/sim/system/reaper.h"

#include "daemon/base/check.h"

namespace hoistd::sim {

// What is jumped over has destructors that must not run: they would wait for
// transfers, answer requests and give memory back, as no dead process does.
bool Reaper::Run(absl::FunctionRef<void()> run) {
  HOIST_CHECK(!running_);
  if (setjmp(out_) != 0) return false;  // NOLINT(cert-err52-cpp)
  running_ = true;
  run();
  running_ = false;
  return true;
}

void Reaper::Point() {
  if (!armed_ || !running_ || left_-- > 0) return;
  armed_ = false;
  running_ = false;
  std::longjmp(out_, 1);  // NOLINT(cert-err52-cpp)
}

Reaper& TheReaper() {
  static Reaper reaper;
  return reaper;
}

}  // namespace hoistd::sim
