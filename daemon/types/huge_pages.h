// The pages that memory can have, and the kernel's huge ones.
#ifndef HOIST_DAEMON_TYPES_HUGE_PAGES_H_
#define HOIST_DAEMON_TYPES_HUGE_PAGES_H_

#include <cstdint>
#include <string>

namespace hoistd {

// From the worst to the best.
enum class PageKind {
  kSmall,
  kTransparent,  // Huge where free memory has 2 MiB in one piece.
  kHugetlb,      // Huge, and reserved by the machine's administrator.
};

constexpr const char* ToString(PageKind pages) {
  switch (pages) {
    case PageKind::kSmall:
      return "small";
    case PageKind::kTransparent:
      return "transparent";
    case PageKind::kHugetlb:
      return "hugetlb";
  }
  return "?";
}

// The kernel's pages of 2 MiB.
struct HugePages {
  // Which shared memory has transparent ones: shmem_enabled's choice, such as
  // "advise". "": the kernel has no such file.
  std::string shared_memory;
  uint64_t reserved_bytes = 0;  // hugetlb.
  uint64_t free_bytes = 0;      // Of those, nobody's.

  // Memory that asks for them has transparent ones.
  bool allows_transparent() const {
    return !shared_memory.empty() && shared_memory != "never" &&
           shared_memory != "deny";
  }
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TYPES_HUGE_PAGES_H_
