// What parked_test.sh runs in the booted root.
//
//   park_probe park COUNT   a service that keeps COUNT descriptors in systemd's
//                           store, as hoistd does, tells what it found there
//                           and is ready, and waits to be killed
//   park_probe busy         how long PID 1 ran at a stretch, in microseconds,
//                           until standard input ends
#include <poll.h>
#include <sys/mman.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "daemon/keeper/fd_store.h"
#include "daemon/keeper/keep.h"

namespace hoistd {
namespace {

using std::chrono::microseconds;
using std::chrono::steady_clock;

int Park(uint64_t count) {
  std::vector<HandedFd> handed = TakeHandedFds();
  const std::unique_ptr<FdStore> store = NotifyFdStore();
  if (store == nullptr) return 2;
  std::set<PersistedKey> there;
  Keep::Found found;
  absl::StatusOr<Keep> keep = Keep::Create(
      *store, handed, found,
      [&](PersistedKey key, hoist::UniqueFd) { there.insert(key); });
  if (!keep.ok()) {
    std::fprintf(stderr, "%s\n", keep.status().ToString().c_str());
    return 3;
  }
  const size_t found_count = there.size();
  for (uint64_t i = 0; i < count; ++i) {
    if (there.contains({1, i})) continue;
    const hoist::UniqueFd memory(memfd_create("parked", MFD_CLOEXEC));
    const absl::Status kept = keep->KeepDescriptor({1, i}, memory.get());
    if (kept.ok()) continue;
    std::fprintf(stderr, "%s\n", kept.ToString().c_str());
    return 4;
  }
  keep->Adopted();
  std::printf("found %zu, keeps %llu by %llu of the store\n", found_count,
              static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(keep->stored_descriptors()));
  std::fflush(stdout);
  sd_notify(0, "READY=1");
  while (true) pause();
}

// What PID 1 has run so far.
microseconds Ran() {
  std::ifstream stat("/proc/1/schedstat");
  uint64_t nanoseconds = 0;
  stat >> nanoseconds;
  return microseconds(nanoseconds / 1000);
}

// A stretch goes on while it runs for a tenth of the time between two looks.
int Busy() {
  constexpr int kLookEveryMs = 5;
  microseconds longest{0};
  microseconds stretch{0};
  const microseconds begin = Ran();
  microseconds before = begin;
  steady_clock::time_point at = steady_clock::now();
  pollfd input = {STDIN_FILENO, POLLIN, 0};
  while (poll(&input, 1, kLookEveryMs) == 0) {
    const steady_clock::time_point now = steady_clock::now();
    const microseconds ran = Ran() - before;
    stretch = ran * 10 >= now - at ? stretch + ran : microseconds(0);
    longest = std::max(longest, stretch);
    before += ran;
    at = now;
  }
  std::printf("%lld %lld\n", static_cast<long long>(longest.count()),
              static_cast<long long>((Ran() - begin).count()));
  return 0;
}

}  // namespace
}  // namespace hoistd

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "park" && argc > 2) {
    return hoistd::Park(std::strtoull(argv[2], nullptr, 10));
  }
  return verb == "busy" ? hoistd::Busy() : 1;
}
