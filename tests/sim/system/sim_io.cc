#include "tests/sim/system/sim_io.h"

#include <unistd.h>

#include <cstring>

#include "daemon/base/check.h"
#include "tests/sim/system/reaper.h"

namespace hoistd::sim {
namespace {

constexpr int kUnread = 0xA5;

}  // namespace

void SimIo::Read(ReadRequest request, Done done) {
  TheReaper().Point();
  for (const Scatter& part : request.into) {
    if (part.to == nullptr) continue;
    on_write_({part.to, part.bytes});
    std::memset(part.to, kUnread, part.bytes);
  }
  reads_.push_back({std::move(request), std::move(done)});
  TheReaper().Point();
}

void SimIo::End(size_t n, const absl::Status& status) {
  Pending read = std::move(reads_[n]);
  reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(n));
  if (TheMutation().Shows(Mutant::kNoAnswer)) {
    // Who waits for it waits for ever; nor is it to be called at the end.
    new Done(std::move(read.done));
    return;
  }
  const uint64_t skew = TheMutation().Shows(Mutant::kOtherRange) ? 8 : 0;
  const bool cut = TheMutation().Shows(Mutant::kShortRead);
  Fill(read.request, skew, /*half=*/!status.ok(), cut);
  std::move(read.done)(status);
}

void SimIo::Fill(const ReadRequest& request, uint64_t skew, bool half,
                 bool cut) {
  uint64_t at = request.offset + skew;
  for (size_t i = 0; i < request.into.size(); ++i) {
    const Scatter& part = request.into[i];
    const bool last = i + 1 == request.into.size();
    uint64_t bytes = part.bytes;
    if (half || (cut && last)) bytes /= 2;
    if (part.to != nullptr) {
      on_write_({part.to, part.bytes});
      const ssize_t got =
          pread(request.file.fd, part.to, bytes, static_cast<off_t>(at));
      HOIST_CHECK(got >= 0);
    }
    at += part.bytes;
  }
}

void SimIo::Reap(std::mt19937_64& random) {
  for (const Pending& read : reads_) {
    const uint64_t how = random() % 3;
    if (how > 0) Fill(read.request, 0, /*half=*/how == 1, /*cut=*/false);
  }
}

}  // namespace hoistd::sim
