#include "daemon/permit/permit_memory.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <new>

#include "daemon/base/status.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {

namespace permit = hoist::permit;

absl::StatusOr<PermitMemory::Made> PermitMemory::Create(bool sleepers) {
  PermitShare share;
  HOIST_ASSIGN_OR_RETURN(
      share.memory, ToAbsl(hoist::CreateMemfd("hoist-permit", permit::kBytes)));
  // Without this the client could remove the page, and our next look would
  // raise SIGBUS.
  if (fcntl(share.memory.get(), F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoToStatus(errno, "seal a permit's page");
  }
  HOIST_ASSIGN_OR_RETURN(
      hoist::Mapping mapping,
      ToAbsl(hoist::Mapping::OfFd(share.memory.get(), permit::kBytes,
                                  hoist::Mapping::Access::kReadWrite)));
  hoist::UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoToStatus(errno, "make a permit's eventfd");
  share.wake = hoist::UniqueFd(fcntl(wake.get(), F_DUPFD_CLOEXEC, 0));
  if (!share.wake.valid()) return ErrnoToStatus(errno, "pass a permit on");
  // A new memfd is zeroed, the initial value of each word.
  permit::Page& page = *new (mapping.data()) permit::Page();
  page.magic = permit::kMagic;
  page.version = permit::kVersion;
  page.bytes = permit::kBytes;
  return Made{PermitMemory(std::move(mapping), std::move(wake), sleepers),
              std::move(share)};
}

void PermitMemory::StoreGranted(uint32_t value) const {
  hoist::lane::Word& word = page().granted;
  word.store(value, std::memory_order_seq_cst);
  if (!sleepers_) return;
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hoistd
