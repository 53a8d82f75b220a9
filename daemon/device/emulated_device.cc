#include "daemon/device/emulated_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/device/emulated_stream.h"
#include "hoist/shared/packet_socket.h"

namespace hoistd {
namespace {

std::byte* AlignedBase(std::byte* data) {
  constexpr uintptr_t kMask = EmulatedDevice::kGranularity - 1;
  const auto address = reinterpret_cast<uintptr_t>(data);
  return data + (((address + kMask) & ~kMask) - address);
}

// FNV-1a, which is the same in every build and on every host.
uint64_t Hash(const std::string& text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325 ^ seed;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

// A version 8 uuid (RFC 9562: made by whoever uses it).
std::array<uint8_t, 16> MakeUuid(const std::string& pool, DeviceIndex index) {
  const std::string name = absl::StrCat("hoist:", pool, ":", index.number());
  const uint64_t halves[2] = {Hash(name, 0), Hash(name, 1)};
  std::array<uint8_t, 16> uuid;
  static_assert(sizeof(halves) == sizeof(uuid));
  std::memcpy(uuid.data(), halves, sizeof(halves));
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0f) | 0x80);
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3f) | 0x80);
  return uuid;
}

// A descriptor of the same file that maps for reading only: the kernel then
// refuses mprotect(PROT_WRITE) on its mappings for ever. The mode keeps other
// uids from opening the file anew through /proc; a client of the daemon's own
// uid, or root, can undo that. (F_SEAL_FUTURE_WRITE would stop even those, but
// also the next hoistd, which adopts the slab.)
absl::StatusOr<hoist::UniqueFd> ReopenReadOnly(int fd) {
  hoist::UniqueFd read_only(
      open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!read_only.valid()) {
    return ErrnoToStatus(errno, "open a slab for reading (is /proc mounted?)");
  }
  if (fchmod(fd, S_IRUSR) != 0) {
    return ErrnoToStatus(errno, "forbid others to open a slab");
  }
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return ErrnoToStatus(errno, "fix a slab's size");
  }
  return read_only;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EmulatedDevice>> EmulatedDevice::Create(
    const EmulatedDeviceOptions& options) {
  EmulatedDeviceOptions o = options;
  if (o.span_bytes == 0) o.span_bytes = 4 * o.total_bytes;
  if (o.total_bytes == 0 || o.total_bytes % kGranularity != 0 ||
      o.span_bytes % kGranularity != 0 || o.span_bytes < o.total_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("an emulated device's memory (", o.total_bytes,
                     " bytes, span ", o.span_bytes, ") must be a multiple of ",
                     kGranularity, ", not 0, and its span no smaller"));
  }
  HOIST_ASSIGN_OR_RETURN(
      hoist::Mapping span,
      ToAbsl(hoist::Mapping::Reserve(o.span_bytes + kGranularity)));
  return absl::WrapUnique(new EmulatedDevice(o, std::move(span)));
}

EmulatedDevice::EmulatedDevice(const EmulatedDeviceOptions& options,
                               hoist::Mapping span)
    : clock_(options.clock != nullptr ? *options.clock : monotonic_),
      in_(options.link_bytes_per_second, options.link_latency),
      out_(options.link_bytes_per_second, options.link_latency),
      span_(std::move(span)),
      base_(AlignedBase(span_.data())),
      slabs_(kGranularity, options.span_bytes) {
  info_.index = options.index;
  info_.name = "emulated";
  info_.uuid = MakeUuid(options.pool, options.index);
  info_.kind = DeviceKind::kEmulated;
  info_.total_bytes = options.total_bytes;
  info_.free_bytes = options.total_bytes;
  info_.granularity = kGranularity;
  info_.span_bytes = options.span_bytes;
  info_.backing = Backing::kMemfd;
}

absl::Status EmulatedDevice::CreateSlab(const SlabSpec& spec) {
  return AddSlab(spec, {});
}

absl::Status EmulatedDevice::AdoptSlab(const SlabSpec& spec,
                                       hoist::UniqueFd fd) {
  struct stat is = {};
  if (fstat(fd.get(), &is) != 0 ||
      static_cast<uint64_t>(is.st_size) != spec.bytes ||
      fcntl(fd.get(), F_GET_SEALS) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
    return absl::InvalidArgumentError(
        absl::StrCat("what was kept of slab ", spec.id.number(),
                     " is no slab of ", spec.bytes, " bytes"));
  }
  return AddSlab(spec, std::move(fd));
}

absl::Status EmulatedDevice::AddSlab(const SlabSpec& spec,
                                     hoist::UniqueFd original) {
  if (spec.backing != Backing::kMemfd) {
    return absl::UnimplementedError(
        "an emulated device's slabs are memfds; it has no other backing");
  }
  {
    const absl::MutexLock lock(&mu_);
    HOIST_RETURN_IF_ERROR(slabs_.CheckNew(spec));
    const uint64_t free = info_.total_bytes - slabs_.total_bytes();
    if (spec.bytes > free) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "a slab of ", spec.bytes, " bytes: ", free, " of ", info_.total_bytes,
          " bytes are free on emulated device ", info_.index.number()));
    }
    slabs_.Add(spec);
  }
  absl::StatusOr<SlabFds> fds = Place(spec, std::move(original));
  const absl::MutexLock lock(&mu_);
  if (fds.ok()) {
    fds_.emplace(spec.id, *std::move(fds));
  } else {
    slabs_.Remove(spec.id);
  }
  return fds.status();
}

absl::StatusOr<EmulatedDevice::SlabFds> EmulatedDevice::Place(
    const SlabSpec& spec, hoist::UniqueFd original) {
  SlabFds fds;
  fds.original = std::move(original);
  if (!fds.original.valid()) {
    HOIST_ASSIGN_OR_RETURN(
        fds.original, ToAbsl(hoist::CreateMemfd("hoist-slab", spec.bytes)));
  }
  HOIST_ASSIGN_OR_RETURN(fds.read_only, ReopenReadOnly(fds.original.get()));
  const size_t at = static_cast<size_t>(base_ - span_.data()) + spec.offset;
  HOIST_RETURN_IF_ERROR(ToAbsl(span_.PlaceFd(
      at, fds.original.get(), spec.bytes, hoist::Mapping::Access::kReadWrite)));
  // Advice alone: it fails where the kernel has no huge pages.
  madvise(base_ + spec.offset, spec.bytes, MADV_HUGEPAGE);
  return fds;
}

absl::Status EmulatedDevice::DestroySlab(SlabId id) {
  SlabSpec spec;
  SlabFds fds;
  {
    const absl::MutexLock lock(&mu_);
    const auto it = fds_.find(id);
    if (it == fds_.end()) {
      return absl::NotFoundError(absl::StrCat("no slab ", id.number()));
    }
    spec = *slabs_.Find(id);
    fds = std::move(it->second);
    fds_.erase(it);
  }
  const size_t at = static_cast<size_t>(base_ - span_.data()) + spec.offset;
  const absl::Status status = ToAbsl(span_.Unplace(at, spec.bytes));
  if (status.ok()) fds = {};  // Its pages go here, and not under the lock.
  const absl::MutexLock lock(&mu_);
  if (status.ok()) {
    slabs_.Remove(id);
  } else {
    fds_.emplace(id, std::move(fds));
  }
  return status;
}

absl::StatusOr<SlabShare> EmulatedDevice::Share(SlabId id) const {
  const absl::MutexLock lock(&mu_);
  const auto it = fds_.find(id);
  if (it == fds_.end()) {
    return absl::NotFoundError(absl::StrCat("no slab ", id.number()));
  }
  SlabShare share;
  share.backing = Backing::kMemfd;
  share.fd = it->second.read_only.get();
  share.keep_fd = it->second.original.get();
  return share;
}

absl::Status EmulatedDevice::RegisterHost(std::span<std::byte>) {
  return absl::OkStatus();
}

absl::Status EmulatedDevice::UnregisterHost(std::span<std::byte>) {
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CopyStream>> EmulatedDevice::CreateStream() {
  return std::make_unique<EmulatedStream>(*this);
}

absl::StatusOr<std::byte*> EmulatedDevice::Range(uint64_t offset,
                                                 uint64_t bytes) const {
  const absl::MutexLock lock(&mu_);
  HOIST_RETURN_IF_ERROR(slabs_.CheckRange(offset, bytes));
  return base_ + offset;
}

}  // namespace hoistd
