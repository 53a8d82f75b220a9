#include "daemon/device/emulated_device.h"

#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status.h"
#include "daemon/device/memfd_memory.h"

namespace hoistd {
namespace {

// FNV-1a, which is the same in every build and on every host.
uint64_t Hash(const std::string& text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325 ^ seed;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

}  // namespace

std::array<uint8_t, 16> MakeDeviceUuid(const std::string& pool,
                                       DeviceIndex index) {
  const std::string name = absl::StrCat("hoist:", pool, ":", index.number());
  const uint64_t halves[2] = {Hash(name, 0), Hash(name, 1)};
  std::array<uint8_t, 16> uuid;
  static_assert(sizeof(halves) == sizeof(uuid));
  std::memcpy(uuid.data(), halves, sizeof(halves));
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0f) | 0x80);
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3f) | 0x80);
  return uuid;
}

absl::StatusOr<std::unique_ptr<EmulatedDevice>> EmulatedDevice::Create(
    const EmulatedDeviceOptions& options) {
  MappedDeviceOptions mapped;
  DeviceInfo& info = mapped.info;
  info.index = options.index;
  info.name = "emulated";
  info.uuid = MakeDeviceUuid(options.pool, options.index);
  info.kind = DeviceKind::kEmulated;
  info.total_bytes = options.total_bytes;
  info.free_bytes = options.total_bytes;
  info.span_bytes =
      options.span_bytes != 0 ? options.span_bytes : 4 * options.total_bytes;
  HOIST_RETURN_IF_ERROR(CheckSizes(info));
  HOIST_ASSIGN_OR_RETURN(mapped.memory, MemfdMemory::Create(info.span_bytes));
  info.link_bytes_per_second = options.link_bytes_per_second;
  mapped.link_latency = options.link_latency;
  mapped.clock = options.clock;
  return absl::WrapUnique(new EmulatedDevice(std::move(mapped)));
}

}  // namespace hoistd
