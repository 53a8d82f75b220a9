#include "client/src/image/host_image.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "hoist/shared/packet_socket.h"

namespace hoist {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
// A signal makes fallocate start again, so each call is bounded.
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

// The memfd has exactly `bytes`. hoistd adds the last seals.
Result<UniqueFd> NewImage(uint64_t bytes, const std::string& group) {
  Result<UniqueFd> memfd = CreateMemfd("hoist-image", bytes);
  if (!memfd.ok()) return memfd;
  if (Status s = Allocate(memfd->get(), bytes, group); !s.ok()) return s;
  if (fcntl(memfd->get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) != 0) {
    return ErrnoStatus(errno, "seal the host image");
  }
  return memfd;
}

bool LieAlike(const TensorEntry& a, const TensorEntry& b) {
  return SameTensor(a, b) && a.offset_bytes == b.offset_bytes;
}

uint64_t AlignedStart(const Mapping& range) {
  const auto at = reinterpret_cast<uintptr_t>(range.data());
  return (kHugePage - at % kHugePage) % kHugePage;
}

}  // namespace

Result<std::unique_ptr<HostImage>> HostImage::Create(
    std::shared_ptr<Session> session, ModelPtr model, uint32_t group) {
  const uint64_t bytes = model->group(group).image_bytes;
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
    : fork_generation_(ForkGeneration()),
      bytes_(model->group(group).image_bytes),
      range_(std::move(range)),
      start_(AlignedStart(range_)),
      session_(std::move(session)),
      model_(std::move(model)),
      group_(group) {}

Status HostImage::Load(std::chrono::milliseconds deadline) {
  if (forked()) return ForkedStatus();
  const MutexLock lock(mu_);
  if (loaded()) return Status();
  if (Status s = session_->Check(); !s.ok()) return s;
  if (bytes() > 0) {
    Result<UniqueFd> memfd = session_->ReadImage(
        *model_, group_,
        [size = bytes(), &name = model_->group(group_).name] {
          return NewImage(size, name);
        },
        deadline);
    if (!memfd.ok()) return memfd.status();
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
  if (forked()) return Unmap();
  const MutexLock lock(mu_);
  Unmap();
}

Status HostImage::Move(std::shared_ptr<Session> session, ModelPtr model,
                       uint32_t group) {
  if (forked() || session->forked()) return ForkedStatus();
  // Released after the lock: the end of a session joins its thread, and the end
  // of a model's use is reported to hoistd.
  std::shared_ptr<Session> before;
  ModelPtr model_before;
  const MutexLock lock(mu_);
  const GroupEntry& old = model_->group(group_);
  const GroupEntry& entry = model->group(group);
  if (old.image_bytes != entry.image_bytes ||
      !std::ranges::equal(old.tensors, entry.tensors, LieAlike)) {
    return Status(Code::kInvalidArgument,
                  "the tensors of group \"" + entry.name + "\" of model \"" +
                      model->facts().name +
                      "\" do not lie as this image's do; make a new image");
  }
  before = std::exchange(session_, std::move(session));
  model_before = std::exchange(model_, std::move(model));
  group_ = group;
  return Status();
}

void HostImage::Unmap() {
  if (!loaded_.exchange(false) || bytes() == 0) return;
  // Replaces a mapping of the same range, so it cannot run out of mappings.
  (void)range_.Unplace(start_, bytes());
}

}  // namespace hoist
