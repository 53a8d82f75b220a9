// A device with accounting but no memory, for tests of policy.
#ifndef HOIST_TESTS_SUPPORT_FAKE_DEVICE_H_
#define HOIST_TESTS_SUPPORT_FAKE_DEVICE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/types/device.h"

namespace hoistd::testing {

struct FakeDeviceOptions {
  DeviceIndex index;
  DeviceKind kind = DeviceKind::kEmulated;
  uint64_t span_bytes = 0;
  uint64_t granularity = 0;
  Backing backing = Backing::kMemfd;
  bool ipc = false;
  uint64_t memory_bytes = UINT64_MAX;  // Slabs beyond it are refused.
};

// Refuses like a real device: occupied or misaligned places, and too much
// memory. No streams.
//
// Threads: one at a time.
class FakeDevice final : public Device {
 public:
  explicit FakeDevice(const FakeDeviceOptions& options)
      : memory_bytes_(options.memory_bytes) {
    info_.index = options.index;
    info_.name = "fake";
    info_.kind = options.kind;
    info_.granularity = options.granularity;
    info_.span_bytes = options.span_bytes;
    info_.backing = options.backing;
    info_.ipc = options.ipc;
  }

  const DeviceInfo& info() const override { return info_; }
  // Adopted slabs keep no earlier bytes.
  absl::Status AdoptSlab(const SlabSpec& spec, hoist::UniqueFd) override {
    return CreateSlab(spec);
  }
  absl::Status CreateSlab(const SlabSpec& spec) override {
    ++creates_;
    if (spec.bytes == 0 || spec.bytes % info_.granularity != 0 ||
        spec.offset % info_.granularity != 0 ||
        spec.offset + spec.bytes > info_.span_bytes ||
        slabs_.contains(spec.id)) {
      return absl::InvalidArgumentError("crooked slab");
    }
    for (const auto& [id, slab] : slabs_) {
      if (slab.offset < spec.offset + spec.bytes &&
          spec.offset < slab.offset + slab.bytes) {
        return absl::InvalidArgumentError("place is taken");
      }
    }
    if (bytes() + spec.bytes > memory_bytes_) {
      return absl::ResourceExhaustedError("the device's memory is all used");
    }
    slabs_[spec.id] = spec;
    return absl::OkStatus();
  }
  absl::Status DestroySlab(SlabId id) override {
    if (slabs_.erase(id) == 0) return absl::NotFoundError("no such slab");
    return absl::OkStatus();
  }
  absl::Status ZeroSlab(SlabId id) override {
    if (!slabs_.contains(id)) return absl::NotFoundError("no such slab");
    return absl::OkStatus();
  }
  absl::StatusOr<SlabShare> Share(SlabId id) const override {
    const auto found = slabs_.find(id);
    if (found == slabs_.end()) return absl::NotFoundError("no such slab");
    SlabShare share;
    share.backing = found->second.backing;
    if (share.backing != Backing::kIpc) share.keep_fd = 0;
    return share;
  }
  absl::Status RegisterHost(std::span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::Status UnregisterHost(std::span<std::byte>) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<CopyStream>> CreateStream() override {
    return absl::UnimplementedError("no memory, no copies");
  }

  void set_memory_bytes(uint64_t bytes) { memory_bytes_ = bytes; }
  const std::map<SlabId, SlabSpec>& slabs() const { return slabs_; }
  int creates() const { return creates_; }  // Refused ones too.
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& [id, slab] : slabs_) sum += slab.bytes;
    return sum;
  }
  // True: every byte of the range lies in a slab.
  bool Covers(uint64_t offset, uint64_t bytes) const {
    uint64_t covered = 0;
    for (const auto& [id, slab] : slabs_) {
      const uint64_t begin = std::max(offset, slab.offset);
      const uint64_t end = std::min(offset + bytes, slab.offset + slab.bytes);
      if (begin < end) covered += end - begin;
    }
    return covered == bytes;
  }

 private:
  DeviceInfo info_;
  uint64_t memory_bytes_;
  std::map<SlabId, SlabSpec> slabs_;
  int creates_ = 0;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_FAKE_DEVICE_H_
