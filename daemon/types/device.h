// The devices' interface for mover, link and engine. Implemented by
// daemon/device.
#ifndef HOIST_DAEMON_TYPES_DEVICE_H_
#define HOIST_DAEMON_TYPES_DEVICE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/types/ids.h"
#include "daemon/types/ranges.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

enum class DeviceKind {
  kEmulated,
  kCuda,
  kInPlace,  // Host memory that the node's devices read in place.
};

// How another process maps a slab's memory.
enum class Backing {
  kMemfd,  // Emulated: a descriptor to map.
  kVmm,    // CUDA: a descriptor for cuMemImportFromShareableHandle.
  kIpc,    // CUDA: 64 bytes for cuIpcOpenMemHandle.
};

struct DeviceInfo {
  DeviceIndex index;
  std::string name;                   // "NVIDIA H200", "emulated".
  std::array<uint8_t, 16> uuid = {};  // CUDA's; made up if emulated.
  DeviceKind kind = DeviceKind::kEmulated;
  uint64_t total_bytes = 0;  // Of the hardware's memory.
  uint64_t free_bytes = 0;   // When the device was opened.
  uint64_t granularity = 0;  // Slab sizes and offsets are multiples of it.
  // Offsets are below this: the address space reserved for slabs.
  uint64_t span_bytes = 0;
  uint64_t link_bytes_per_second = 0;  // Emulated; 0: no limit.
  // Usual backing, and whether IPC slabs are available as well.
  Backing backing = Backing::kMemfd;
  bool ipc = false;
  // In place: GPUs cannot read it there, so nothing is staged to it.
  bool arenas_alone = false;
  // Streams can write words that kernels wait for: plans can stream.
  bool stream_words = true;
};

// One physical allocation, at a fixed place in the device's span.
struct SlabSpec {
  SlabId id;
  uint64_t offset = 0;  // In the span; a multiple of the granularity.
  uint64_t bytes = 0;   // A multiple of the granularity.
  Backing backing = Backing::kMemfd;
  // Holds one image, which workers may map singly at any address.
  bool apart = false;
  // Of an arena: its worker writes to it. Apart as well.
  bool writable = false;
};

// What another process needs to open a slab.
struct SlabShare {
  Backing backing = Backing::kMemfd;
  // Borrowed: valid while the slab exists. For kVmm and kMemfd; the latter is
  // read-only unless the slab is writable.
  int fd = -1;
  // Borrowed likewise: for Device::AdoptSlab in this process, or in another
  // after its end. -1: the memory ends with this process.
  int keep_fd = -1;
  std::array<uint8_t, 64> ipc_handle = {};  // kIpc.
  uint32_t numa_node = 0;  // NUMA node of the driver's host memory.
};

// A word in memory given to RegisterHost, and its new value.
struct WordWrite {
  std::atomic<uint32_t>* word = nullptr;
  uint32_t value = 0;
};

// Ordered copies that do not block the caller. One owner thread.
class CopyStream {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  virtual ~CopyStream() = default;  // Waits for queued copies.

  // Host to device. `from` and the device range must stay valid until the
  // callback of a later Then(), after an error too: some may be in flight.
  // Slabs of the range must be adjacent (kMemfd, kVmm).
  virtual absl::Status CopyIn(uint64_t to_offset,
                              std::span<const std::byte> from) = 0;
  // As CopyIn for each row.
  virtual absl::Status CopyRowsIn(const HostRows& rows) {
    absl::Status status;
    for (uint64_t i = 0; i < rows.count && status.ok(); ++i) {
      status = CopyIn(rows.to_offset + i * rows.first.size(), rows.row(i));
    }
    return status;
  }
  // Device to host; likewise.
  virtual absl::Status CopyOut(std::span<std::byte> to,
                               uint64_t from_offset) = 0;
  // Writes words after everything queued before: a CPU or GPU that sees a word
  // sees the bytes. Emulated: also wakes FUTEX_WAIT waiters of the words. After
  // an error of the stream they may stay unchanged.
  virtual absl::Status WriteWords(std::span<const WordWrite> words) = 0;
  // The known error of work queued here. Does not block.
  virtual absl::Status Health() = 0;
  // Calls `done` once, on a thread of the device, when everything queued before
  // has finished or failed. `done` must not block.
  virtual void Then(Done done) = 0;
};

// One device's memory, in slabs, and the copies to and from it.
//
// Threads:  thread-safe.
// Owns:     slabs and streams. Destroying it needs all streams gone.
class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;

  // May be slow; blocks no other call, copies included, except CreateSlab and
  // DestroySlab. The memory is zeroed. ResourceExhausted: the device has none
  // left. InvalidArgument: the place is taken, or not a multiple of the
  // granularity. Unimplemented: not a backing of this device.
  virtual absl::Status CreateSlab(const SlabSpec& spec) = 0;
  // Takes over a slab that a dead process made, with its contents. `fd` was its
  // SlabShare's keep_fd. As slow as CreateSlab. InvalidArgument: no slab of
  // these bytes; or as CreateSlab.
  virtual absl::Status AdoptSlab(const SlabSpec& spec, hoist::UniqueFd fd) = 0;
  // Frees the memory once no other process has it open. NotFound.
  virtual absl::Status DestroySlab(SlabId id) = 0;
  // Zeroes its bytes. As slow as CreateSlab; the slab must not be destroyed
  // meanwhile. NotFound. Unimplemented: this process does not map it.
  virtual absl::Status ZeroSlab(SlabId id) = 0;
  virtual absl::StatusOr<SlabShare> Share(SlabId id) const = 0;

  // Lets copies from and to this host memory run at link rate, and streams
  // write words in it. Takes driver locks: call it in pieces, off the hot path.
  // A no-op if emulated.
  virtual absl::Status RegisterHost(std::span<std::byte> memory) = 0;
  virtual absl::Status UnregisterHost(std::span<std::byte> memory) = 0;

  virtual absl::StatusOr<std::unique_ptr<CopyStream>> CreateStream() = 0;

  // Bytes of the hardware's memory that are neither free nor in slabs: other
  // programs', and contexts'. 0: no others use the device.
  virtual absl::StatusOr<uint64_t> OthersBytes() { return 0; }
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TYPES_DEVICE_H_
