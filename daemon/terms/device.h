// What mover, link and engine need of a device. Implemented by daemon/device.
#ifndef HOIST_DAEMON_TERMS_DEVICE_H_
#define HOIST_DAEMON_TERMS_DEVICE_H_

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
#include "daemon/terms/ids.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

enum class DeviceKind {
  kEmulated,
  kCuda,
  kInPlace,  // Host memory that the node's other devices read where it lies.
};

// How a slab's memory reaches another process.
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
  uint64_t free_bytes = 0;   // Of that, when the device was opened.
  uint64_t granularity = 0;  // Slab sizes and offsets are multiples of it.
  // Offsets are below this: the address space that is reserved for slabs.
  uint64_t span_bytes = 0;
  uint64_t link_bytes_per_second = 0;  // Emulated; 0: no limit.
  // Usual backing, and whether IPC slabs can be had beside it.
  Backing backing = Backing::kMemfd;
  bool ipc = false;
  // In place: GPUs cannot read it there, so that nothing is staged to it.
  bool arenas_alone = false;
  // Copies can be followed by words that kernels wait for: plans can stream.
  bool stream_words = true;
};

// One physical allocation, at a fixed place in the device's span.
struct SlabSpec {
  SlabId id;
  uint64_t offset = 0;  // In the span; a multiple of the granularity.
  uint64_t bytes = 0;   // A multiple of the granularity.
  Backing backing = Backing::kMemfd;
  // Of one image, which workers may map somewhere else, by itself.
  bool apart = false;
  // Of an arena: the worker that has it writes to it. Apart, too.
  bool writable = false;
};

// What another process needs to open a slab.
struct SlabShare {
  Backing backing = Backing::kMemfd;
  // Borrowed: valid while the slab exists. kMemfd: for reading alone, unless
  // the slab is writable; kVmm.
  int fd = -1;
  // Borrowed likewise: what Device::AdoptSlab takes, in this process or in
  // another after this one's end. -1: its memory goes with this process.
  int keep_fd = -1;
  std::array<uint8_t, 64> ipc_handle = {};  // kIpc.
  uint32_t numa_node = 0;  // Of the driver's host memory: where it lies.
};

// A word in memory that was given to RegisterHost, and what it is to become.
struct WordWrite {
  std::atomic<uint32_t>* word = nullptr;
  uint32_t value = 0;
};

// Copies in order, without blocking the caller. One owner thread.
class CopyStream {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  virtual ~CopyStream() = default;  // Waits for what was queued.

  // Host to device. `from` and the device range must stay valid until a later
  // Then() is called back. Where the range spans slabs, they must be side by
  // side (kMemfd, kVmm).
  virtual absl::Status CopyIn(uint64_t to_offset,
                              std::span<const std::byte> from) = 0;
  // Device to host.
  virtual absl::Status CopyOut(std::span<std::byte> to,
                               uint64_t from_offset) = 0;
  // Writes words behind everything queued before: who sees a word, on a CPU or
  // on a GPU, sees the bytes. Emulated: also wakes those who wait for them with
  // FUTEX_WAIT. After an error of the stream they may stay as they are.
  virtual absl::Status WriteWords(std::span<const WordWrite> words) = 0;
  // What something queued here is known to have failed with. Does not block.
  virtual absl::Status Health() = 0;
  // Calls `done` once, from a thread of the device, when everything queued
  // before has finished or failed. `done` must not block.
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

  // May take long, and holds up no other call meanwhile, copies included, but
  // CreateSlab and DestroySlab. The memory comes zeroed. ResourceExhausted: the
  // device has none left.
  // InvalidArgument: the place is taken, or not a multiple of the granularity.
  // Unimplemented: not a backing of this device.
  virtual absl::Status CreateSlab(const SlabSpec& spec) = 0;
  // The slab of another process, which made it and is gone: its memory is what
  // it was. `fd` was the SlabShare's keep_fd. May take long, as CreateSlab.
  // InvalidArgument: it is no slab of these bytes; or as CreateSlab says.
  virtual absl::Status AdoptSlab(const SlabSpec& spec, hoist::UniqueFd fd) = 0;
  // Gives the memory back once no other process has it open. NotFound.
  virtual absl::Status DestroySlab(SlabId id) = 0;
  // Makes its bytes what CreateSlab gives. May take long, as that may; it is
  // not destroyed meanwhile. NotFound. Unimplemented: this process does not map
  // it.
  virtual absl::Status ZeroSlab(SlabId id) = 0;
  virtual absl::StatusOr<SlabShare> Share(SlabId id) const = 0;

  // Makes copies from and to this host memory run at the link's rate, and lets
  // streams write words in it. Takes
  // driver locks: call it in pieces, off the hot path. A no-op where emulated.
  virtual absl::Status RegisterHost(std::span<std::byte> memory) = 0;
  virtual absl::Status UnregisterHost(std::span<std::byte> memory) = 0;

  virtual absl::StatusOr<std::unique_ptr<CopyStream>> CreateStream() = 0;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_TERMS_DEVICE_H_
