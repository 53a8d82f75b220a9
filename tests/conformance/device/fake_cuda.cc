// A libcuda.so.1 made of memfds, for hosts without a GPU.
//
// It has the semantics that hoist's CUDA code leans on and can get wrong:
// who owns what, what may be exported, who may write, which copies are refused,
// whether a context is current. It shows nothing about a real driver: the same
// suite runs on a GPU for that. Device addresses are addresses of this process.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "hoist/shared/cuda_driver.h"
#include "tests/conformance/device/fake_cuda_streams.h"

using hoist::cuda::AccessDesc;
using hoist::cuda::Address;
using hoist::cuda::AllocationProp;
using hoist::cuda::Copy2D;
using hoist::cuda::IpcHandle;
using hoist::cuda::MemOp;
using hoist::cuda::Uuid;

namespace {

constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kIllegalAddress = 700;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;
constexpr int kNotSupported = 801;
constexpr size_t kTotal = size_t{256} << 20;
constexpr size_t kGranularity = size_t{2} << 20;
constexpr int kNumaNode = 1;  // The GPU's.

// Its name tells who imports it what it is.
constexpr char kDeviceMemory[] = "fake-cuda";
constexpr char kHostMemory[] = "fake-cuda-host";

struct Allocation {
  int fd = -1;
  size_t bytes = 0;
  bool imported = false;
  bool host = false;
};

struct Range {  // Mapped device memory, or the driver's on the host.
  size_t bytes = 0;
  int access = 0;      // The GPU's. 1: read, 3: read and write.
  size_t charged = 0;  // Of kTotal, given back when it is unmapped.
  bool ipc = false;    // Opened from a handle.
  int fd = -1;         // Of memory from cuMemAlloc.
  bool host = false;
  int cpu_access = 0;
};

struct IpcContent {
  pid_t pid;
  int fd;
  size_t bytes;
};

struct State {
  std::mutex mu;
  int calls = 0;
  int fail_at = 0;
  int retains = 0;
  size_t used = 0;
  uint64_t next_allocation = 1;
  std::map<uint64_t, Allocation> allocations;
  std::map<Address, size_t> reservations;
  std::map<Address, Range> ranges;
  std::map<uintptr_t, size_t> registered;
  std::set<void*> objects;  // Streams and events.
  fake_cuda::Streams streams{mu};
  bool stream_mem_ops = true;
  bool host_memory = true;
};

State& Fake() {
  // Never destroyed: the streams' thread runs until the process ends.
  static State& state = *new State;
  return state;
}

thread_local int contexts = 0;
int the_context;

// Every call that can fail for a driver's own reasons goes through here.
int Enter(State& state, bool needs_context) {
  if (++state.calls == state.fail_at) return 999;
  return needs_context && contexts == 0 ? kInvalidContext : 0;
}

#define ENTER(needs_context)                   \
  State& state = Fake();                       \
  std::unique_lock<std::mutex> lock(state.mu); \
  if (const int error = Enter(state, needs_context); error != 0) return error

void* At(Address address) { return reinterpret_cast<void*>(address); }

// 0, or why [address, +bytes) may not be used so: not mapped, or read-only.
int CheckAccess(State& state, Address address, size_t bytes, int access) {
  while (bytes > 0) {
    auto it = state.ranges.upper_bound(address);
    if (it == state.ranges.begin()) return kInvalidValue;
    --it;
    const Address end = it->first + it->second.bytes;
    if (address >= end) return kInvalidValue;
    if ((it->second.access & access) != access) return kIllegalAddress;
    const size_t here = std::min<size_t>(bytes, end - address);
    address += here;
    bytes -= here;
  }
  return 0;
}

// As the driver does: a copy may not cross the edge of a registered range.
int CheckHost(State& state, const void* host, size_t bytes) {
  const auto start = reinterpret_cast<uintptr_t>(host);
  for (const auto& [at, size] : state.registered) {
    const bool meets = start < at + size && at < start + bytes;
    const bool within = start >= at && start + bytes <= at + size;
    if (meets && !within) return kInvalidValue;
  }
  // Nor may it read or write what the CPU may not.
  for (const auto& [at, range] : state.ranges) {
    const bool meets = start < at + range.bytes && at < start + bytes;
    const bool within = start >= at && start + bytes <= at + range.bytes;
    if (meets && (!within || range.cpu_access == 0)) return kInvalidValue;
  }
  return 0;
}

int CopyIn(State& state, Address to, const void* from, size_t bytes) {
  if (const int e = CheckHost(state, from, bytes); e != 0) return e;
  if (const int e = CheckAccess(state, to, bytes, 3); e != 0) return e;
  std::memcpy(At(to), from, bytes);
  return 0;
}

int CopyOut(State& state, void* to, Address from, size_t bytes) {
  if (const int e = CheckHost(state, to, bytes); e != 0) return e;
  if (const int e = CheckAccess(state, from, bytes, 1); e != 0) return e;
  std::memcpy(to, At(from), bytes);
  return 0;
}

int SetBytes(State& state, Address to, unsigned char value, size_t bytes) {
  if (CheckAccess(state, to, bytes, 3) != 0) return kInvalidValue;
  std::memset(At(to), value, bytes);
  return 0;
}

bool IsHostMemory(int fd) {
  char link[64], name[128] = {};
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  if (readlink(link, name, sizeof(name) - 1) < 0) return false;
  return std::strstr(name, kHostMemory) != nullptr;
}

int NewObject(State& state, void** object) {
  *object = new char;
  state.objects.insert(*object);
  return 0;
}

int DeleteObject(void* object) {
  State& state = Fake();
  const std::lock_guard<std::mutex> lock(state.mu);
  if (state.objects.erase(object) == 0) return kInvalidHandle;
  state.streams.Forget(object);
  state.streams.ForgetEvent(object);
  delete static_cast<char*>(object);
  return 0;
}

// In the stream's turn. What can be told at the call is told there.
int Queue(State& state, void* stream, int error, std::function<int()> run) {
  if (error != 0) return error;
  return state.streams.Add(stream, {.run = std::move(run)});
}

using Word = std::atomic<uint32_t>;

int QueueMemOp(State& state, void* stream, const MemOp& op) {
  // Words lie in registered host memory, at the addresses of the CPU.
  const auto after = state.registered.upper_bound(op.address);
  if (op.address % sizeof(Word) != 0 || after == state.registered.begin()) {
    return kInvalidValue;
  }
  const auto& [start, bytes] = *std::prev(after);
  if (op.address + sizeof(Word) > start + bytes) return kInvalidValue;
  auto* const word = static_cast<Word*>(At(op.address));
  const auto value = static_cast<uint32_t>(op.value);
  if (op.operation == hoist::cuda::kMemOpWrite32) {
    return Queue(state, stream, 0, [word, value] {
      word->store(value, std::memory_order_release);
      return 0;
    });
  }
  if (op.operation != hoist::cuda::kMemOpWait32 ||
      op.flags != hoist::cuda::kWaitGreaterOrEqual) {
    return kInvalidValue;
  }
  return state.streams.Add(stream, {.ready = [word, value] {
                             const uint32_t seen =
                                 word->load(std::memory_order_acquire);
                             return static_cast<int32_t>(seen - value) >= 0;
                           }});
}

}  // namespace

extern "C" {

// For tests: fails the n-th call from now on with CUDA_ERROR_UNKNOWN; 0: none.
void fake_cuda_fail_at(int n) {
  Fake().calls = 0;
  Fake().fail_at = n;
}
// For tests: whether streams can write and wait for words.
void fake_cuda_set_stream_mem_ops(bool can) { Fake().stream_mem_ops = can; }
// For tests: whether host memory can be allocated to be shared.
void fake_cuda_set_host_memory(bool can) { Fake().host_memory = can; }
int fake_cuda_calls() { return Fake().calls; }
// For tests: what is held, in words; empty if nothing.
const char* fake_cuda_held() {
  static char text[256];
  State& state = Fake();
  const std::lock_guard<std::mutex> lock(state.mu);
  text[0] = 0;
  if (state.allocations.size() + state.reservations.size() +
          state.ranges.size() + state.registered.size() + state.objects.size() +
          state.used + state.retains + contexts >
      0) {
    std::snprintf(text, sizeof(text),
                  "allocations %zu, reservations %zu, ranges %zu, registered "
                  "%zu, objects %zu, bytes %zu, retains %d, pushed %d",
                  state.allocations.size(), state.reservations.size(),
                  state.ranges.size(), state.registered.size(),
                  state.objects.size(), state.used, state.retains, contexts);
  }
  return text;
}

int cuGetErrorString(int, const char** text) {
  *text = "an error of the fake driver";
  return 0;
}
int cuInit(unsigned) { return 0; }
int cuDeviceGetCount(int* count) {
  ENTER(false);
  *count = 1;
  return 0;
}
int cuDeviceGet(int* device, int) {
  ENTER(false);
  *device = 0;
  return 0;
}
int cuDeviceGetName(char* name, int size, int) {
  ENTER(false);
  std::snprintf(name, size, "fake");
  return 0;
}
int cuDeviceGetUuid_v2(Uuid* uuid, int) {
  ENTER(false);
  uuid->bytes.fill(0xfa);
  return 0;
}
int cuDeviceTotalMem_v2(size_t* total, int) {
  ENTER(false);
  *total = kTotal;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  ENTER(false);
  switch (attribute) {
    case hoist::cuda::kHostPointerIsDevicePointer:
      *value = 1;
      return 0;
    case hoist::cuda::kCanUseStreamMemOps:
      *value = state.stream_mem_ops ? 1 : 0;
      return 0;
    case hoist::cuda::kHostNumaId:
      *value = kNumaNode;
      return 0;
    default:
      return kInvalidValue;
  }
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  ENTER(false);
  ++state.retains;
  *context = &the_context;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  --Fake().retains;
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  ENTER(false);
  if (context != &the_context) return kInvalidContext;
  ++contexts;
  return 0;
}
int cuCtxPopCurrent_v2(void**) {
  --contexts;
  return 0;
}
int cuCtxGetCurrent(void** context) {
  *context = contexts > 0 ? &the_context : nullptr;
  return 0;
}
int cuCtxSynchronize() {
  ENTER(true);
  state.streams.SyncAll(lock);
  return 0;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  ENTER(true);
  *free = kTotal - state.used;
  *total = kTotal;
  return 0;
}

int cuMemAlloc_v2(Address* address, size_t bytes) {
  ENTER(true);
  if (bytes > kTotal - state.used) return kOutOfMemory;
  const int fd = memfd_create(kDeviceMemory, MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return 999;
  // Room to align.
  void* room = mmap(nullptr, bytes + kGranularity, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const Address start = reinterpret_cast<Address>(room);
  const Address at = (start + kGranularity - 1) & ~(kGranularity - 1);
  munmap(room, at - start);
  munmap(At(at + bytes), start + kGranularity - at);
  mmap(At(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  state.used += bytes;
  state.ranges[at] = {bytes, 3, bytes, false, fd};
  *address = at;
  return 0;
}
int cuMemFree_v2(Address address) {
  State& state = Fake();
  const std::lock_guard<std::mutex> lock(state.mu);
  const auto it = state.ranges.find(address);
  if (it == state.ranges.end() || it->second.fd < 0) return kInvalidValue;
  close(it->second.fd);
  munmap(At(address), it->second.bytes);
  state.used -= it->second.charged;
  state.ranges.erase(it);
  return 0;
}
int cuIpcGetMemHandle(IpcHandle* handle, Address address) {
  ENTER(true);
  const auto it = state.ranges.find(address);
  if (it == state.ranges.end() || it->second.fd < 0) return kInvalidValue;
  const IpcContent content = {getpid(), it->second.fd, it->second.bytes};
  std::memcpy(handle, &content, sizeof(content));
  return 0;
}
int cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned) {
  ENTER(true);
  IpcContent content;
  std::memcpy(&content, &handle, sizeof(content));
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", content.pid, content.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return kInvalidHandle;
  void* at =
      mmap(nullptr, content.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at == MAP_FAILED) return 999;
  *address = reinterpret_cast<Address>(at);
  state.ranges[*address] = {content.bytes, 3, 0, true, -1};
  return 0;
}
int cuIpcCloseMemHandle(Address address) {
  State& state = Fake();
  const std::lock_guard<std::mutex> lock(state.mu);
  const auto it = state.ranges.find(address);
  if (it == state.ranges.end() || !it->second.ipc) return kInvalidValue;
  munmap(At(address), it->second.bytes);
  state.ranges.erase(it);
  return 0;
}

int cuMemGetAllocationGranularity(size_t* bytes, const AllocationProp*, int) {
  ENTER(false);
  *bytes = kGranularity;
  return 0;
}
int cuMemAddressReserve(Address* address, size_t bytes, size_t, Address,
                        unsigned long long) {
  ENTER(true);
  void* at = mmap(nullptr, bytes, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return kOutOfMemory;
  *address = reinterpret_cast<Address>(at);
  state.reservations[*address] = bytes;
  return 0;
}
int cuMemAddressFree(Address address, size_t bytes) {
  State& state = Fake();
  const std::lock_guard<std::mutex> lock(state.mu);
  const auto it = state.reservations.find(address);
  if (it == state.reservations.end() || it->second != bytes) {
    return kInvalidValue;
  }
  const auto first = state.ranges.lower_bound(address);
  if (first != state.ranges.end() && first->first < address + bytes) {
    return kInvalidValue;  // Something is mapped there.
  }
  munmap(At(address), bytes);
  state.reservations.erase(it);
  return 0;
}
int cuMemCreate(uint64_t* handle, size_t bytes, const AllocationProp* prop,
                unsigned long long) {
  ENTER(true);
  if (bytes == 0 || bytes % kGranularity != 0) return kInvalidValue;
  if (prop->handle_types != hoist::cuda::kHandlePosixFd) return kInvalidValue;
  const bool host = prop->location.type == hoist::cuda::kLocationHostNuma;
  if (host ? !state.host_memory : bytes > kTotal - state.used) {
    return host ? kNotSupported : kOutOfMemory;
  }
  if (prop->location.id != (host ? kNumaNode : 0)) return kInvalidValue;
  const int fd = memfd_create(host ? kHostMemory : kDeviceMemory, MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return 999;
  *handle = state.next_allocation++;
  state.allocations[*handle] = {fd, bytes, false, host};
  return 0;
}
int cuMemRelease(uint64_t handle) {
  State& state = Fake();
  const std::lock_guard<std::mutex> lock(state.mu);
  const auto it = state.allocations.find(handle);
  if (it == state.allocations.end()) return kInvalidHandle;
  close(it->second.fd);
  state.allocations.erase(it);
  return 0;
}
int cuMemMap(Address address, size_t bytes, size_t offset, uint64_t handle,
             unsigned long long) {
  ENTER(true);
  const auto it = state.allocations.find(handle);
  auto space = state.reservations.upper_bound(address);
  if (it == state.allocations.end() || space == state.reservations.begin() ||
      offset != 0 || bytes > it->second.bytes) {
    return kInvalidValue;
  }
  // What is there is unmapped first.
  for (const auto& [at, range] : state.ranges) {
    if (address < at + range.bytes && at < address + bytes) {
      return kInvalidValue;
    }
  }
  --space;
  if (address + bytes > space->first + space->second) return kInvalidValue;
  mmap(At(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, it->second.fd, 0);
  const bool host = it->second.host;
  const size_t charged = it->second.imported || host ? 0 : bytes;
  state.used += charged;
  state.ranges[address] = {bytes, 0, charged, false, -1, host};
  return 0;
}
int cuMemUnmap(Address address, size_t bytes) {
  State& state = Fake();
  const std::lock_guard<std::mutex> lock(state.mu);
  const auto it = state.ranges.find(address);
  if (it == state.ranges.end() || it->second.bytes != bytes) {
    return kInvalidValue;
  }
  mmap(At(address), bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  state.used -= it->second.charged;
  state.ranges.erase(it);
  return 0;
}
// Of whole mappings, one after another without a gap.
int cuMemSetAccess(Address address, size_t bytes, const AccessDesc* access,
                   size_t count) {
  ENTER(true);
  if (count == 0 || bytes == 0) return kInvalidValue;
  for (const Address end = address + bytes; address != end;) {
    const auto it = state.ranges.find(address);
    if (it == state.ranges.end() || it->second.bytes > end - address) {
      return kInvalidValue;
    }
    Range& range = it->second;
    for (size_t i = 0; i < count; ++i) {
      const auto& [where, flags] = access[i];
      if (where.type == hoist::cuda::kLocationDevice && where.id == 0) {
        range.access = flags;
      } else if (where.type == hoist::cuda::kLocationHostNuma && range.host &&
                 where.id == kNumaNode) {
        range.cpu_access = flags;
      } else {
        return kInvalidValue;
      }
    }
    // The fake's GPU reads and writes as the CPU that it is.
    const bool writes = range.access == 3 || range.cpu_access == 3;
    mprotect(At(address), range.bytes,
             writes ? PROT_READ | PROT_WRITE : PROT_READ);
    address += range.bytes;
  }
  return 0;
}
int cuMemExportToShareableHandle(void* fd, uint64_t handle, int,
                                 unsigned long long) {
  ENTER(true);
  const auto it = state.allocations.find(handle);
  if (it == state.allocations.end() || it->second.imported) {
    return kInvalidValue;
  }
  *static_cast<int*>(fd) = dup(it->second.fd);
  return 0;
}
int cuMemImportFromShareableHandle(uint64_t* handle, void* os_handle, int) {
  ENTER(true);
  const int fd = dup(static_cast<int>(reinterpret_cast<uintptr_t>(os_handle)));
  const off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
  if (bytes < 0 || bytes % kGranularity != 0) {
    if (fd >= 0) close(fd);
    return kInvalidValue;
  }
  *handle = state.next_allocation++;
  state.allocations[*handle] = {fd, static_cast<size_t>(bytes), true,
                                IsHostMemory(fd)};
  return 0;
}
int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags) {
  ENTER(true);
  // Words in it could not be written by streams, nor by every GPU's.
  if (flags != (hoist::cuda::kHostRegisterPortable |
                hoist::cuda::kHostRegisterDeviceMap)) {
    return kInvalidValue;
  }
  const auto start = reinterpret_cast<uintptr_t>(memory);
  for (const auto& [at, size] : state.registered) {
    if (start < at + size && at < start + bytes) return kAlreadyRegistered;
  }
  state.registered[start] = bytes;
  return 0;
}
int cuMemHostUnregister(void* memory) {
  State& state = Fake();
  const std::lock_guard<std::mutex> lock(state.mu);
  return state.registered.erase(reinterpret_cast<uintptr_t>(memory)) == 1
             ? 0
             : kNotRegistered;
}

int cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
  ENTER(true);
  return CopyIn(state, to, from, bytes);
}
int cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) {
  ENTER(true);
  return CopyOut(state, to, from, bytes);
}
int cuMemsetD8_v2(Address to, unsigned char value, size_t bytes) {
  ENTER(true);
  return SetBytes(state, to, value, bytes);
}
int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes,
                         void* stream) {
  ENTER(true);
  int error = CheckHost(state, from, bytes);
  if (error == 0) error = CheckAccess(state, to, bytes, 3);
  return Queue(state, stream, error, [&state, to, from, bytes] {
    return CopyIn(state, to, from, bytes);
  });
}
int cuMemcpy2DAsync_v2(const Copy2D* given, void* stream) {
  ENTER(true);
  const Copy2D copy = *given;
  const size_t width = copy.width_bytes;
  if (copy.from.kind != hoist::cuda::kHostMemory || copy.from.pitch < width ||
      copy.to.kind != hoist::cuda::kDeviceMemory || copy.to.pitch < width ||
      copy.rows == 0) {
    return kInvalidValue;
  }
  const size_t gaps = copy.rows - 1;
  int error = CheckHost(state, copy.from.host, gaps * copy.from.pitch + width);
  if (error == 0) {
    error = CheckAccess(state, copy.to.device, gaps * copy.to.pitch + width, 3);
  }
  return Queue(state, stream, error, [&state, copy, width] {
    const auto* const from = static_cast<const std::byte*>(copy.from.host);
    int copied = 0;
    for (size_t i = 0; i < copy.rows && copied == 0; ++i) {
      copied = CopyIn(state, copy.to.device + i * copy.to.pitch,
                      from + i * copy.from.pitch, width);
    }
    return copied;
  });
}
int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
  ENTER(true);
  int error = CheckHost(state, to, bytes);
  if (error == 0) error = CheckAccess(state, from, bytes, 1);
  return Queue(state, stream, error, [&state, to, from, bytes] {
    return CopyOut(state, to, from, bytes);
  });
}
int cuStreamCreate(void** stream, unsigned) {
  ENTER(true);
  return NewObject(state, stream);
}
int cuStreamDestroy_v2(void* stream) { return DeleteObject(stream); }
int cuStreamSynchronize(void* stream) {
  State& state = Fake();
  std::unique_lock<std::mutex> lock(state.mu);
  return state.streams.Sync(lock, stream);
}
int cuStreamQuery(void* stream) {
  ENTER(true);
  return state.streams.Query(stream);
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  ENTER(true);
  state.streams.WaitEvent(stream, event);
  return 0;
}
int cuStreamIsCapturing(void*, int* status) {
  *status = hoist::cuda::kCaptureNone;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int*) { return 0; }
int cuStreamBatchMemOp_v2(void* stream, unsigned count, MemOp* ops, unsigned) {
  ENTER(true);
  if (count >= 256) return kInvalidValue;
  for (unsigned i = 0; i < count; ++i) {
    if (const int error = QueueMemOp(state, stream, ops[i]); error != 0) {
      return error;
    }
  }
  return 0;
}
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  ENTER(true);
  return state.streams.Add(
      stream, {.host = [function, argument] { function(argument); }});
}
int cuEventCreate(void** event, unsigned) {
  ENTER(true);
  return NewObject(state, event);
}
int cuEventDestroy_v2(void* event) { return DeleteObject(event); }
int cuEventRecord(void* event, void* stream) {
  ENTER(true);
  state.streams.Record(event, stream);
  return 0;
}
int cuEventSynchronize(void* event) {
  ENTER(true);
  return state.streams.SyncEvent(lock, event);
}

}  // extern "C"
