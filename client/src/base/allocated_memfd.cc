#include "client/src/base/allocated_memfd.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "hoist/shared/packet_socket.h"

namespace hoist {
namespace {

// A signal makes fallocate start again, so each call is bounded.
constexpr uint64_t kAllocateAtOnce = uint64_t{64} << 20;

}  // namespace

Result<UniqueFd> AllocatedMemfd(const char* name, uint64_t bytes,
                                const std::string& group) {
  Result<UniqueFd> memfd = CreateMemfd(name, bytes);
  if (!memfd.ok()) return memfd;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t piece = std::min(kAllocateAtOnce, bytes - done);
    if (fallocate(memfd->get(), 0, static_cast<off_t>(done),
                  static_cast<off_t>(piece)) == 0) {
      done += piece;
    } else if (errno == ENOSPC || errno == ENOMEM) {
      return Status(Code::kResourceExhausted,
                    "this process has no memory for the " +
                        std::to_string(bytes) + " bytes of group \"" + group +
                        "\"; drop host images, or raise its limit");
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "allocate an image");
    }
  }
  return memfd;
}

}  // namespace hoist
