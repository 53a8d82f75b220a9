#include "tests/sim/system/sim_io.h"

#include <unistd.h>

#include <cstring>

#include "daemon/base/check.h"

namespace hoistd::sim {
namespace {

constexpr int kUnread = 0xA5;

}  // namespace

void SimIo::Read(ReadRequest request, Done done) {
  for (const Scatter& part : request.into) {
    if (part.to == nullptr) continue;
    on_write_({part.to, part.bytes});
    std::memset(part.to, kUnread, part.bytes);
  }
  reads_.push_back({std::move(request), std::move(done)});
}

void SimIo::End(size_t n, const absl::Status& status) {
  Pending read = std::move(reads_[n]);
  reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(n));
  if (TheMutation().Shows(Mutant::kNoAnswer)) {
    // Who waits for it waits for ever; nor is it to be called at the end.
    new Done(std::move(read.done));
    return;
  }
  uint64_t at = read.request.offset;
  if (TheMutation().Shows(Mutant::kOtherRange)) at += 8;
  const bool cut = TheMutation().Shows(Mutant::kShortRead);
  for (size_t i = 0; i < read.request.into.size(); ++i) {
    const Scatter& part = read.request.into[i];
    const bool last = i + 1 == read.request.into.size();
    uint64_t bytes = part.bytes;
    if (!status.ok() || (cut && last)) bytes /= 2;
    if (part.to != nullptr) {
      on_write_({part.to, part.bytes});
      const ssize_t got =
          pread(read.request.file.fd, part.to, bytes, static_cast<off_t>(at));
      HOIST_CHECK(got >= 0);
    }
    at += part.bytes;
  }
  std::move(read.done)(status);
}

}  // namespace hoistd::sim
