// The part of CUDA's driver API that hoist uses, found at run time.
//
// The declarations are our own, so neither daemon nor client needs a CUDA
// toolkit to build, and both start without a driver. Types and numbers are
// those of cuda.h 12.8 and 13.0, which the driver keeps stable: each symbol is
// looked up by cuda.h's versioned name.
#ifndef HOIST_SHARED_CUDA_DRIVER_H_
#define HOIST_SHARED_CUDA_DRIVER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hoist/shared/status.h"

namespace hoist::cuda {

using Error = int;            // CUresult.
using DeviceId = int;         // CUdevice.
using Address = uint64_t;     // CUdeviceptr.
using Allocation = uint64_t;  // CUmemGenericAllocationHandle.
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using HostFunction = void (*)(void*);  // CUhostFn.

inline constexpr Error kSuccess = 0;
inline constexpr Error kInvalidValue = 1;
inline constexpr Error kOutOfMemory = 2;
inline constexpr Error kStubLibrary = 34;
inline constexpr Error kNoDevice = 100;
inline constexpr Error kNotReady = 600;

inline constexpr int kHandlePosixFd = 1;     // CUmemAllocationHandleType.
inline constexpr int kAllocationPinned = 1;  // CUmemAllocationType.
inline constexpr int kLocationDevice = 1;    // CUmemLocationType.
inline constexpr int kLocationHostNuma = 3;
inline constexpr int kAccessRead = 1;  // CUmemAccess_flags.
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityMinimum = 0;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;
// CUdevice_attribute.
inline constexpr int kHostPointerIsDevicePointer = 91;
inline constexpr int kCanUseStreamMemOps = 122;  // 64-bit ones; 32-bit too.
inline constexpr int kHostNumaId = 134;          // Nearest; -1: none.
// CUstreamCaptureStatus.
inline constexpr int kCaptureNone = 0;
// CUstreamCaptureMode.
inline constexpr int kCaptureRelaxed = 2;
// CUstreamBatchMemOpType, CUstreamWaitValue_flags, CUstreamWriteValue_flags.
inline constexpr int kMemOpWait32 = 1;
inline constexpr int kMemOpWrite32 = 2;
inline constexpr int kHostMemory = 1;
inline constexpr int kDeviceMemory = 2;
inline constexpr unsigned kWaitGreaterOrEqual = 0;  // As a wrapping counter.
inline constexpr unsigned kWriteBehindAll = 0;      // With a memory barrier.
inline constexpr unsigned kIpcLazyPeerAccess = 1;

struct Location {  // CUmemLocation.
  int type = kLocationDevice;
  int id = 0;
};

struct AllocationProp {  // CUmemAllocationProp.
  int type = kAllocationPinned;
  int handle_types = kHandlePosixFd;
  Location location;
  void* win32 = nullptr;
  std::array<unsigned char, 8> flags = {};
};
static_assert(sizeof(AllocationProp) == 32);

struct AccessDesc {  // CUmemAccessDesc.
  Location location;
  int flags = 0;
};
static_assert(sizeof(AccessDesc) == 12);

struct IpcHandle {  // CUipcMemHandle, passed by value.
  std::array<char, 64> bytes;
};
static_assert(sizeof(IpcHandle) == 64);

struct MemOp {  // CUstreamBatchMemOpParams, a union whose members agree so far.
  int operation = 0;
  Address address = 0;
  uint64_t value = 0;
  unsigned flags = 0;
  std::array<uint64_t, 2> rest = {};
};
static_assert(sizeof(MemOp) == 48);

struct Uuid {  // CUuuid.
  std::array<uint8_t, 16> bytes;
};

// CUDA_MEMCPY2D.
struct Copy2D {
  struct Side {
    size_t x_bytes = 0;
    size_t y = 0;
    int kind = 0;  // kHostMemory, kDeviceMemory.
    const void* host = nullptr;
    Address device = 0;
    void* array = nullptr;
    size_t pitch = 0;
  };
  Side from;
  Side to;
  size_t width_bytes = 0;
  size_t rows = 0;
};

// The driver's functions; none is null in a table from Load().
struct Driver {
  Error (*get_error_string)(Error, const char**);
  Error (*init)(unsigned flags);
  Error (*device_count)(int*);
  Error (*device_get)(DeviceId*, int ordinal);
  Error (*device_name)(char*, int size, DeviceId);
  Error (*device_uuid)(Uuid*, DeviceId);
  Error (*device_total)(size_t*, DeviceId);
  Error (*device_attribute)(int*, int attribute, DeviceId);
  Error (*primary_retain)(Context*, DeviceId);
  Error (*primary_release)(DeviceId);
  Error (*push_context)(Context);
  Error (*pop_context)(Context*);
  Error (*current_context)(Context*);
  Error (*sync_context)();
  Error (*memory_info)(size_t* free, size_t* total);
  Error (*alloc)(Address*, size_t);
  Error (*free)(Address);
  Error (*ipc_get)(IpcHandle*, Address);
  Error (*ipc_open)(Address*, IpcHandle, unsigned flags);
  Error (*ipc_close)(Address);
  Error (*granularity)(size_t*, const AllocationProp*, int option);
  Error (*reserve)(Address*, size_t, size_t alignment, Address hint,
                   unsigned long long flags);
  Error (*unreserve)(Address, size_t);
  Error (*create)(Allocation*, size_t, const AllocationProp*,
                  unsigned long long flags);
  Error (*release)(Allocation);
  Error (*map)(Address, size_t, size_t offset, Allocation,
               unsigned long long flags);
  Error (*unmap)(Address, size_t);
  Error (*set_access)(Address, size_t, const AccessDesc*, size_t count);
  Error (*export_handle)(void*, Allocation, int type, unsigned long long flags);
  Error (*import_handle)(Allocation*, void* os_handle, int type);
  Error (*host_register)(void*, size_t, unsigned flags);
  Error (*host_unregister)(void*);
  Error (*copy_in)(Address, const void*, size_t);
  Error (*copy_out)(void*, Address, size_t);
  Error (*set_bytes)(Address, unsigned char, size_t);
  Error (*copy_in_async)(Address, const void*, size_t, Stream);
  Error (*copy_out_async)(void*, Address, size_t, Stream);
  Error (*copy_2d_async)(const Copy2D*, Stream);
  Error (*stream_create)(Stream*, unsigned flags);
  Error (*stream_destroy)(Stream);
  Error (*stream_sync)(Stream);
  Error (*stream_query)(Stream);
  Error (*stream_wait_event)(Stream, Event, unsigned flags);
  Error (*stream_is_capturing)(Stream, int* status);
  Error (*exchange_capture_mode)(int* mode);  // This thread's.
  Error (*stream_mem_ops)(Stream, unsigned count, MemOp*, unsigned flags);
  Error (*launch_host_function)(Stream, HostFunction, void* argument);
  Error (*event_create)(Event*, unsigned flags);
  Error (*event_destroy)(Event);
  Error (*event_record)(Event, Stream);
  Error (*event_sync)(Event);

  // Finds libcuda.so.1 and initializes it. Never unloads it: libcuda does not
  // survive that. Unavailable: no driver, or no GPU. FailedPrecondition: the
  // driver does not work.
  static Result<Driver> Load();

  // Whether its streams can wait for words of host memory, and write them. A
  // GPU that does not know an attribute lacks the feature.
  bool HasStreamWords(DeviceId device) const;
  // Ok, or `what`, the error's number and the driver's text.
  Status Check(Error error, std::string_view what) const;
};

// Makes a context current on this thread for its lifetime.
// Also permits calls that CUDA refuses while another thread captures a graph,
// and for which it would end that capture. None of ours is part of a graph but
// by its stream.
class ScopedContext {
 public:
  ScopedContext(const Driver& driver, Context context)
      : driver_(driver), error_(driver.push_context(context)) {
    if (error_ == kSuccess) driver_.exchange_capture_mode(&mode_);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  ~ScopedContext() {
    if (error_ != kSuccess) return;
    Context popped;
    driver_.exchange_capture_mode(&mode_);
    driver_.pop_context(&popped);
  }
  Error error() const { return error_; }

 private:
  const Driver& driver_;
  int mode_ = kCaptureRelaxed;
  Error error_;
};

}  // namespace hoist::cuda

#endif  // HOIST_SHARED_CUDA_DRIVER_H_
