#include "daemon/host/pageable_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/host/host_limits.h"
#include "daemon/types/tier.h"

namespace hoistd {
namespace {

constexpr uint64_t kBlock = uint64_t{2} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<PageableMemory>> PageableMemory::Create(
    uint64_t bytes, std::string root) {
  HOIST_ASSIGN_OR_RETURN(hoist::Mapping mapping,
                         ToAbsl(hoist::Mapping::Reserve(bytes)));
  if (mprotect(mapping.data(), bytes, PROT_READ | PROT_WRITE) != 0) {
    return ErrnoToStatus(errno,
                         absl::StrCat("host.pageable of ", HumanBytes(bytes)));
  }
  // Fewer faults and TLB misses; a kernel may lack them.
  madvise(mapping.data(), bytes, MADV_HUGEPAGE);
  return std::unique_ptr<PageableMemory>(
      new PageableMemory(std::move(mapping), std::move(root)));
}

PageableMemory::PageableMemory(hoist::Mapping mapping, std::string root)
    : mapping_(std::move(mapping)),
      root_(std::move(root)),
      made_(mapping_.size() / kBlock) {}

absl::Status PageableMemory::MakePages(std::span<std::byte> part) {
  const auto from = static_cast<uint64_t>(part.data() - mapping_.data());
  std::vector<uint64_t> missing;
  {
    absl::MutexLock lock(&mu_);
    for (uint64_t b = from / kBlock; b * kBlock < from + part.size(); ++b) {
      if (!made_[b]) missing.push_back(b);
    }
  }
  if (missing.empty()) return absl::OkStatus();
  const uint64_t needed = missing.size() * kBlock + kSpareBytes;
  const uint64_t free = AvailableMemory(root_).value_or(needed);
  if (free < needed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "pageable memory needs ", HumanBytes(needed), " of free memory, ",
        HumanBytes(kSpareBytes), " of it to spare; ", HumanBytes(free),
        " are free: lower host.pageable"));
  }
  for (const uint64_t block : missing) {
    // Linux before 5.14 does not know it: pages then appear on write.
    if (madvise(mapping_.data() + block * kBlock, kBlock,
                MADV_POPULATE_WRITE) != 0 &&
        errno != EINVAL) {
      return absl::ResourceExhaustedError(
          ErrnoToStatus(errno, "make pages").message());
    }
  }
  absl::MutexLock lock(&mu_);
  for (const uint64_t block : missing) made_[block] = true;
  return absl::OkStatus();
}

uint64_t PageableMemory::made_bytes() const {
  absl::MutexLock lock(&mu_);
  return kBlock *
         static_cast<uint64_t>(std::count(made_.begin(), made_.end(), true));
}

}  // namespace hoistd
