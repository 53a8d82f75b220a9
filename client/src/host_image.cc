#include "client/src/host_image.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/src/fork_guard.h"
#include "hoist/shared/packet_socket.h"

namespace hoist {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
// What a signal interrupts starts again, so that it must not be too much.
constexpr uint64_t kAllocateAtOnce = uint64_t{64} << 20;

Status Allocate(int fd, uint64_t bytes, const std::string& group) {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t piece = std::min(kAllocateAtOnce, bytes - done);
    if (fallocate(fd, 0, static_cast<off_t>(done), static_cast<off_t>(piece)) ==
        0) {
      done += piece;
    } else if (errno == ENOSPC || errno == ENOMEM) {
      return Status(Code::kResourceExhausted,
                    "this process has no memory for the " +
                        std::to_string(bytes) + " bytes of group \"" + group +
                        "\"; drop other host images, or raise its limit");
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, "allocate the host image");
    }
  }
  return Status();
}

// Of exactly `bytes` bytes, as hoistd wants it: it does the last sealing.
Result<UniqueFd> NewImage(uint64_t bytes, const std::string& group) {
  Result<UniqueFd> memfd = CreateMemfd("hoist-image", bytes);
  if (!memfd.ok()) return memfd;
  if (Status s = Allocate(memfd->get(), bytes, group); !s.ok()) return s;
  if (fcntl(memfd->get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) != 0) {
    return ErrnoStatus(errno, "seal the host image");
  }
  return memfd;
}

uint64_t AlignedStart(const Mapping& range) {
  const auto at = reinterpret_cast<uintptr_t>(range.data());
  return (kHugePage - at % kHugePage) % kHugePage;
}

}  // namespace

Result<std::unique_ptr<HostImage>> HostImage::Create(
    std::shared_ptr<Session> session, ModelPtr model, uint32_t group) {
  const uint64_t bytes = model->groups()[group].image_bytes;
  Mapping range;
  if (bytes > 0) {
    Result<Mapping> reserved = Mapping::Reserve(bytes + kHugePage);
    if (!reserved.ok()) return reserved.status();
    range = std::move(reserved).value();
  }
  return std::unique_ptr<HostImage>(new HostImage(
      std::move(session), std::move(model), group, std::move(range)));
}

HostImage::HostImage(std::shared_ptr<Session> session, ModelPtr model,
                     uint32_t group, Mapping range)
    : session_(std::move(session)),
      model_(std::move(model)),
      group_(group),
      range_(std::move(range)),
      start_(AlignedStart(range_)) {}

Status HostImage::Load(std::chrono::milliseconds deadline) {
  if (session_->forked()) return ForkedStatus();
  const MutexLock lock(mu_);
  if (loaded()) return Status();
  if (Status s = session_->Check(); !s.ok()) return s;
  if (bytes() > 0) {
    Result<UniqueFd> memfd = NewImage(bytes(), entry().name);
    if (!memfd.ok()) return memfd.status();
    if (Status s = session_->ReadImage(*model_, group_, memfd->get(), deadline);
        !s.ok()) {
      return s;
    }
    if (Status s = range_.PlaceFd(start_, memfd->get(), bytes(),
                                  Mapping::Access::kRead);
        !s.ok()) {
      return s;
    }
  }
  loaded_.store(true, std::memory_order_release);
  return Status();
}

void HostImage::Drop() {
  if (session_->forked()) return Unmap();
  const MutexLock lock(mu_);
  Unmap();
}

void HostImage::Unmap() {
  if (!loaded_.exchange(false) || bytes() == 0) return;
  // Replaces one mapping by another of the same range: there is room for it.
  (void)range_.Unplace(start_, bytes());
}

}  // namespace hoist
