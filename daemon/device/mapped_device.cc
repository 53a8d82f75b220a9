#include "daemon/device/mapped_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/device/mapped_stream.h"

namespace hoistd {
namespace {

DeviceInfo WithBacking(DeviceInfo info, Backing backing) {
  info.granularity = MappedDevice::kGranularity;
  info.backing = backing;
  return info;
}

}  // namespace

absl::Status MappedDevice::CheckSizes(const DeviceInfo& info) {
  if (info.total_bytes != 0 && info.total_bytes % kGranularity == 0 &&
      info.span_bytes % kGranularity == 0 &&
      info.span_bytes >= info.total_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the memory of device \"", info.name, "\" (", info.total_bytes,
      " bytes, span ", info.span_bytes, ") must be a multiple of ",
      kGranularity, ", not 0, and its span no smaller"));
}

MappedDevice::MappedDevice(MappedDeviceOptions options)
    : clock_(options.clock != nullptr ? *options.clock : monotonic_),
      memory_(std::move(options.memory)),
      info_(WithBacking(std::move(options.info), memory_->backing())),
      in_(info_.link_bytes_per_second, options.link_latency),
      out_(info_.link_bytes_per_second, options.link_latency),
      slabs_(kGranularity, info_.span_bytes) {}

// Slabs must leave before the memory does: a driver would keep the addresses.
MappedDevice::~MappedDevice() {
  const absl::MutexLock lock(&mu_);
  for (const auto& [id, fds] : fds_) {
    // No caller is left to handle an error.
    memory_->Unplace(*slabs_.Find(id)).IgnoreError();
  }
}

absl::Status MappedDevice::CreateSlab(const SlabSpec& spec) {
  return AddSlab(spec, {});
}

absl::Status MappedDevice::AdoptSlab(const SlabSpec& spec, hoist::UniqueFd fd) {
  if (!fd.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("nothing was kept of slab ", spec.id.number()));
  }
  return AddSlab(spec, std::move(fd));
}

absl::Status MappedDevice::AddSlab(const SlabSpec& spec,
                                   hoist::UniqueFd original) {
  if (spec.backing != info_.backing) {
    return absl::UnimplementedError(absl::StrCat(
        "device \"", info_.name, "\" has slabs of one backing alone"));
  }
  {
    const absl::MutexLock lock(&mu_);
    HOIST_RETURN_IF_ERROR(slabs_.CheckNew(spec));
    const uint64_t free = info_.total_bytes - slabs_.total_bytes();
    if (spec.bytes > free) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a slab of ", spec.bytes, " bytes: ", free, " of ",
                       info_.total_bytes, " bytes are free on device ",
                       info_.index.number(), ", \"", info_.name, "\""));
    }
    slabs_.Add(spec);
  }
  absl::StatusOr<SlabMemory::Fds> fds =
      memory_->Place(spec, std::move(original));
  const absl::MutexLock lock(&mu_);
  if (fds.ok()) {
    fds_.emplace(spec.id, *std::move(fds));
  } else {
    slabs_.Remove(spec.id);
  }
  return fds.status();
}

absl::Status MappedDevice::DestroySlab(SlabId id) {
  SlabSpec spec;
  SlabMemory::Fds fds;
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
  const absl::Status status = memory_->Unplace(spec);
  if (status.ok()) fds = {};  // Its pages go here, and not under the lock.
  const absl::MutexLock lock(&mu_);
  if (status.ok()) {
    slabs_.Remove(id);
  } else {
    fds_.emplace(id, std::move(fds));
  }
  return status;
}

absl::Status MappedDevice::ZeroSlab(SlabId id) {
  SlabSpec spec;
  int original = -1;
  {
    const absl::MutexLock lock(&mu_);
    const auto it = fds_.find(id);
    if (it == fds_.end()) {
      return absl::NotFoundError(absl::StrCat("no slab ", id.number()));
    }
    spec = *slabs_.Find(id);
    original = it->second.original.get();
  }
  return memory_->Zero(spec, original);
}

absl::StatusOr<SlabShare> MappedDevice::Share(SlabId id) const {
  const absl::MutexLock lock(&mu_);
  const auto it = fds_.find(id);
  if (it == fds_.end()) {
    return absl::NotFoundError(absl::StrCat("no slab ", id.number()));
  }
  const SlabMemory::Fds& fds = it->second;
  SlabShare share;
  share.backing = info_.backing;
  share.fd = fds.shared.valid() ? fds.shared.get() : fds.original.get();
  share.keep_fd = fds.original.get();
  share.numa_node = memory_->NumaNodeOf(*slabs_.Find(id));
  return share;
}

absl::Status MappedDevice::RegisterHost(std::span<std::byte>) {
  return absl::OkStatus();
}

absl::Status MappedDevice::UnregisterHost(std::span<std::byte>) {
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CopyStream>> MappedDevice::CreateStream() {
  auto stream = std::make_unique<MappedStream>(*this);
  HOIST_RETURN_IF_ERROR(stream->Start());
  return stream;
}

absl::StatusOr<std::byte*> MappedDevice::Range(uint64_t offset,
                                               uint64_t bytes) const {
  const absl::MutexLock lock(&mu_);
  HOIST_RETURN_IF_ERROR(slabs_.CheckRange(offset, bytes));
  return memory_->base() + offset;
}

}  // namespace hoistd
