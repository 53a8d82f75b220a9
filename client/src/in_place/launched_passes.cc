#include "client/src/in_place/launched_passes.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>

namespace hoist {

void LaunchedPasses::Begin(pid_t thread, cuda::Stream stream) {
  std::erase_if(launching_,
                [&](const Launch& one) { return one.thread == thread; });
  launching_.push_back({thread, stream});
  ++seen_.begun;
}

void LaunchedPasses::Note(cuda::Stream stream) {
  for (On& on : seen_.streams) {
    if (on.stream != stream) continue;
    on.end.reset();
    return;
  }
  seen_.streams.push_back({stream, std::nullopt});
}

void LaunchedPasses::End(pid_t thread, StreamOrder& order) {
  for (const Launch& one : launching_) {
    if (one.thread != thread) continue;
    for (On& on : seen_.streams) {
      if (on.stream != one.stream) continue;
      if (auto end = order.MarkWork(on.stream); end.ok()) on.end = *end;
    }
  }
  std::erase_if(launching_,
                [&](const Launch& one) { return one.thread == thread; });
}

// A thread that has exited in the middle of a pass launches no more work.
bool LaunchedPasses::AnyLaunches(pid_t but) {
  std::erase_if(launching_, [&](const Launch& one) {
    return one.thread != but && tgkill(getpid(), one.thread, 0) != 0;
  });
  return std::any_of(launching_.begin(), launching_.end(),
                     [&](const Launch& one) { return one.thread != but; });
}

Result<bool> LaunchedPasses::HaveRun(const Seen& seen, bool own,
                                     StreamOrder& order) {
  for (const auto& [stream, end] : seen.streams) {
    if (end.has_value()) {
      if (Status s = order.Await(*end); !s.ok()) return s;
      continue;
    }
    // A wait for a stream under capture, or for the GPU, would end the capture.
    // Another thread's may begin at any time.
    if (!own) return false;
    if (Result<bool> is = order.IsCapturing(stream); is.ok() && *is) {
      return false;
    }
    if (order.Synchronize(stream).ok()) continue;
    // The stream may be destroyed, with its work still on the device.
    if (Status s = order.SynchronizeAll(); !s.ok()) return s;
    break;
  }
  return true;
}

bool LaunchedPasses::Forget(const Seen& seen, pid_t but) {
  if (seen.begun != seen_.begun || AnyLaunches(but)) return false;
  seen_.streams.clear();
  return true;
}

}  // namespace hoist
