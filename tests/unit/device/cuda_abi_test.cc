// Our own declarations of CUDA's driver API against those of cuda.h.
#include <cuda.h>

#include <string>
#include <type_traits>

#include "gtest/gtest.h"
#include "hoist/shared/cuda_driver.h"

namespace hoist::cuda {
namespace {

static_assert(kSuccess == CUDA_SUCCESS);
static_assert(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kStubLibrary == CUDA_ERROR_STUB_LIBRARY);
static_assert(kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kHandlePosixFd == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(kAllocationPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kLocationHostNuma == CU_MEM_LOCATION_TYPE_HOST_NUMA);
static_assert(kAccessRead == CU_MEM_ACCESS_FLAGS_PROT_READ);
static_assert(kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(kGranularityMinimum == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kEventBlockingSync == CU_EVENT_BLOCKING_SYNC);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kHostRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(kHostNumaId == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
static_assert(kHostPointerIsDevicePointer ==
              CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
static_assert(kCanUseStreamMemOps ==
              CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
static_assert(kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(kCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kMemOpWait32 == CU_STREAM_MEM_OP_WAIT_VALUE_32);
static_assert(kMemOpWrite32 == CU_STREAM_MEM_OP_WRITE_VALUE_32);
static_assert(kWaitGreaterOrEqual == CU_STREAM_WAIT_VALUE_GEQ);
static_assert(kWriteBehindAll == CU_STREAM_WRITE_VALUE_DEFAULT);
static_assert(kIpcLazyPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

static_assert(sizeof(Address) == sizeof(CUdeviceptr));
static_assert(sizeof(Allocation) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(Error) == sizeof(CUresult));
static_assert(sizeof(DeviceId) == sizeof(CUdevice));
static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(Uuid) == sizeof(CUuuid));
static_assert(sizeof(Location) == sizeof(CUmemLocation));
static_assert(sizeof(AccessDesc) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDesc, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(AllocationProp) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProp, handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProp, location) ==
              offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProp, win32) ==
              offsetof(CUmemAllocationProp, win32HandleMetaData));

using WaitOp = decltype(CUstreamBatchMemOpParams::waitValue);
using WriteOp = decltype(CUstreamBatchMemOpParams::writeValue);
static_assert(sizeof(MemOp) == sizeof(CUstreamBatchMemOpParams));
static_assert(alignof(MemOp) == alignof(CUstreamBatchMemOpParams));
static_assert(offsetof(MemOp, operation) == offsetof(WaitOp, operation));
static_assert(offsetof(MemOp, address) == offsetof(WaitOp, address));
static_assert(offsetof(MemOp, value) == offsetof(WaitOp, value));
static_assert(offsetof(MemOp, flags) == offsetof(WaitOp, flags));
static_assert(offsetof(MemOp, operation) == offsetof(WriteOp, operation));
static_assert(offsetof(MemOp, address) == offsetof(WriteOp, address));
static_assert(offsetof(MemOp, value) == offsetof(WriteOp, value));
static_assert(offsetof(MemOp, flags) == offsetof(WriteOp, flags));

static_assert(kHostMemory == CU_MEMORYTYPE_HOST);
static_assert(kDeviceMemory == CU_MEMORYTYPE_DEVICE);
static_assert(sizeof(Copy2D) == sizeof(CUDA_MEMCPY2D));
static_assert(offsetof(Copy2D, from.kind) ==
              offsetof(CUDA_MEMCPY2D, srcMemoryType));
static_assert(offsetof(Copy2D, from.host) == offsetof(CUDA_MEMCPY2D, srcHost));
static_assert(offsetof(Copy2D, from.pitch) ==
              offsetof(CUDA_MEMCPY2D, srcPitch));
static_assert(offsetof(Copy2D, to.kind) ==
              offsetof(CUDA_MEMCPY2D, dstMemoryType));
static_assert(offsetof(Copy2D, to.device) ==
              offsetof(CUDA_MEMCPY2D, dstDevice));
static_assert(offsetof(Copy2D, to.pitch) == offsetof(CUDA_MEMCPY2D, dstPitch));
static_assert(offsetof(Copy2D, width_bytes) ==
              offsetof(CUDA_MEMCPY2D, WidthInBytes));
static_assert(offsetof(Copy2D, rows) == offsetof(CUDA_MEMCPY2D, Height));

// How many arguments a function takes, and how many bytes each has.
template <typename Function>
struct Shape;
template <typename R, typename... A>
struct Shape<R (*)(A...)> {
  static std::string Text() {
    std::string text;
    ((text += std::to_string(sizeof(A)) + (std::is_pointer_v<A> ? "* " : " ")),
     ...);
    return text;
  }
};
template <typename R, typename... A>
struct Shape<R(A...)> : Shape<R (*)(A...)> {};

#define EXPECT_SAME(member, name)                    \
  EXPECT_EQ(Shape<decltype(Driver::member)>::Text(), \
            Shape<decltype(name)>::Text())           \
      << #name

TEST(CudaAbi, OurFunctionsHaveTheArgumentsOfCudaH) {
  EXPECT_SAME(get_error_string, cuGetErrorString);
  EXPECT_SAME(init, cuInit);
  EXPECT_SAME(device_count, cuDeviceGetCount);
  EXPECT_SAME(device_get, cuDeviceGet);
  EXPECT_SAME(device_name, cuDeviceGetName);
  EXPECT_SAME(device_uuid, cuDeviceGetUuid);
  EXPECT_SAME(device_total, cuDeviceTotalMem);
  EXPECT_SAME(device_attribute, cuDeviceGetAttribute);
  EXPECT_SAME(primary_retain, cuDevicePrimaryCtxRetain);
  EXPECT_SAME(primary_release, cuDevicePrimaryCtxRelease);
  EXPECT_SAME(push_context, cuCtxPushCurrent);
  EXPECT_SAME(pop_context, cuCtxPopCurrent);
  EXPECT_SAME(current_context, cuCtxGetCurrent);
  EXPECT_SAME(sync_context, cuCtxSynchronize);
  EXPECT_SAME(memory_info, cuMemGetInfo);
  EXPECT_SAME(alloc, cuMemAlloc);
  EXPECT_SAME(free, cuMemFree);
  EXPECT_SAME(ipc_get, cuIpcGetMemHandle);
  EXPECT_SAME(ipc_open, cuIpcOpenMemHandle);
  EXPECT_SAME(ipc_close, cuIpcCloseMemHandle);
  EXPECT_SAME(granularity, cuMemGetAllocationGranularity);
  EXPECT_SAME(reserve, cuMemAddressReserve);
  EXPECT_SAME(unreserve, cuMemAddressFree);
  EXPECT_SAME(create, cuMemCreate);
  EXPECT_SAME(release, cuMemRelease);
  EXPECT_SAME(map, cuMemMap);
  EXPECT_SAME(unmap, cuMemUnmap);
  EXPECT_SAME(set_access, cuMemSetAccess);
  EXPECT_SAME(export_handle, cuMemExportToShareableHandle);
  EXPECT_SAME(import_handle, cuMemImportFromShareableHandle);
  EXPECT_SAME(host_register, cuMemHostRegister);
  EXPECT_SAME(host_unregister, cuMemHostUnregister);
  EXPECT_SAME(copy_in, cuMemcpyHtoD);
  EXPECT_SAME(copy_out, cuMemcpyDtoH);
  EXPECT_SAME(set_bytes, cuMemsetD8);
  EXPECT_SAME(copy_in_async, cuMemcpyHtoDAsync);
  EXPECT_SAME(copy_out_async, cuMemcpyDtoHAsync);
  EXPECT_SAME(copy_2d_async, cuMemcpy2DAsync);
  EXPECT_SAME(stream_create, cuStreamCreate);
  EXPECT_SAME(stream_destroy, cuStreamDestroy);
  EXPECT_SAME(stream_sync, cuStreamSynchronize);
  EXPECT_SAME(stream_query, cuStreamQuery);
  EXPECT_SAME(stream_wait_event, cuStreamWaitEvent);
  EXPECT_SAME(stream_is_capturing, cuStreamIsCapturing);
  EXPECT_SAME(exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
  EXPECT_SAME(stream_mem_ops, cuStreamBatchMemOp);
  EXPECT_SAME(launch_host_function, cuLaunchHostFunc);
  EXPECT_SAME(event_create, cuEventCreate);
  EXPECT_SAME(event_destroy, cuEventDestroy);
  EXPECT_SAME(event_record, cuEventRecord);
  EXPECT_SAME(event_sync, cuEventSynchronize);
}

}  // namespace
}  // namespace hoist::cuda
