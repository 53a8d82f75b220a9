#include "daemon/host/pool_memory.h"

#include <linux/magic.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/machine_files.h"
#include "daemon/base/start_thread.h"
#include "daemon/base/status.h"
#include "daemon/host/numa.h"
#include "daemon/types/tier.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/packet_socket.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
// Of one thread at a time.
constexpr uint64_t kAllocateStep = uint64_t{64} << 20;

uint64_t Pages(const std::string& path) {
  uint64_t pages = 0;
  return absl::SimpleAtoi(ReadKernelFile(path), &pages) ? pages : 0;
}

std::string InBrackets(const std::string& text) {
  const size_t from = text.find('['), to = text.find(']');
  if (from == text.npos || to == text.npos || to < from) return "";
  return text.substr(from + 1, to - from - 1);
}

PageKind PagesWithoutReserved(PageKind best, const HugePages& offered) {
  return best != PageKind::kSmall && offered.allows_transparent()
             ? PageKind::kTransparent
             : PageKind::kSmall;
}

absl::StatusOr<hoist::UniqueFd> MakeReserved(uint64_t bytes, int threads) {
  hoist::UniqueFd memory(memfd_create(
      "hoist-host",
      MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
  if (!memory.valid()) return ErrnoToStatus(errno, "memfd_create");
  if (ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoToStatus(errno, "ftruncate");
  }
  // This takes free pages from all others, but a cgroup or cpuset can still
  // refuse them one by one.
  HOIST_ASSIGN_OR_RETURN(
      const hoist::Mapping mapping,
      ToAbsl(hoist::Mapping::OfFd(memory.get(), bytes,
                                  hoist::Mapping::Access::kReadWrite)));
  // The pool maps the memory again, spreads it, and notes a failure.
  SpreadOverNodes(mapping.span()).IgnoreError();
  HOIST_RETURN_IF_ERROR(AllocatePages(mapping.span(), threads));
  return memory;
}

}  // namespace

HugePages ReadHugePages(const std::string& root) {
  const std::string mm = root + "/sys/kernel/mm/";
  HugePages offered;
  // From Linux 6.12 on, each size has its own choice.
  offered.shared_memory = InBrackets(ReadKernelFile(
      mm + "transparent_hugepage/hugepages-2048kB/shmem_enabled"));
  if (offered.shared_memory.empty() || offered.shared_memory == "inherit") {
    offered.shared_memory =
        InBrackets(ReadKernelFile(mm + "transparent_hugepage/shmem_enabled"));
  }
  const std::string reserved = mm + "hugepages/hugepages-2048kB/";
  offered.reserved_bytes = kHugePage * Pages(reserved + "nr_hugepages");
  const uint64_t free = Pages(reserved + "free_hugepages");
  offered.free_bytes =
      kHugePage * (free - std::min(free, Pages(reserved + "resv_hugepages")));
  return offered;
}

absl::StatusOr<hoist::UniqueFd> MakeHostMemory(uint64_t bytes, PageKind best,
                                               int threads) {
  if (best == PageKind::kHugetlb) {
    absl::StatusOr<hoist::UniqueFd> reserved = MakeReserved(bytes, threads);
    if (reserved.ok()) return reserved;
    const HugePages offered = ReadHugePages("");
    if (offered.reserved_bytes > 0) {
      SPDLOG_WARN(
          "host pool: {} of reserved huge pages are not to be had ({}; {} of "
          "{} are free); it has {} pages, see hoistctl doctor",
          HumanBytes(bytes), std::string(reserved.status().message()),
          HumanBytes(offered.free_bytes), HumanBytes(offered.reserved_bytes),
          ToString(PagesWithoutReserved(best, offered)));
    }
  }
  return ToAbsl(hoist::CreateMemfd("hoist-host", bytes));
}

PageKind PagesOf(const hoist::UniqueFd& memory, PageKind best,
                 const HugePages& offered) {
  struct statfs system;
  if (fstatfs(memory.get(), &system) == 0 && system.f_type == HUGETLBFS_MAGIC) {
    return PageKind::kHugetlb;
  }
  return PagesWithoutReserved(best, offered);
}

absl::Status AllocatePages(std::span<std::byte> memory, int threads) {
  std::atomic<uint64_t> next = 0;
  std::atomic<int> error = 0;
  const auto allocate = [&] {
    while (error == 0) {
      const uint64_t from = next.fetch_add(kAllocateStep);
      if (from >= memory.size()) return;
      const std::span<std::byte> step =
          memory.subspan(from, std::min(kAllocateStep, memory.size() - from));
      if (madvise(step.data(), step.size(), MADV_POPULATE_WRITE) != 0) {
        error = errno;
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) {
    absl::StatusOr<std::thread> started = StartThread(allocate);
    if (!started.ok()) break;  // This thread does their part.
    others.push_back(*std::move(started));
  }
  allocate();
  for (std::thread& other : others) other.join();
  if (error == 0) return absl::OkStatus();
  if (error == EINVAL) {
    return absl::UnimplementedError(
        "Linux before 5.14 cannot allocate pages without a risk of SIGBUS");
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(ErrnoToStatus(error, "allocate pages").message(),
                   "; a limit of the hugetlb cgroup, or the cpuset's nodes"));
}

}  // namespace hoistd
