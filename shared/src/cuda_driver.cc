#include "hoist/shared/cuda_driver.h"

#include <dlfcn.h>

#include <string>

namespace hoist::cuda {
namespace {

// The code says what the caller may do next.
Code CodeOf(Error error) {
  switch (error) {
    case 1:    // INVALID_VALUE
    case 400:  // INVALID_HANDLE
      return Code::kInvalidArgument;
    case kOutOfMemory:
    case 808:  // MPS_MAX_CLIENTS_REACHED
    case 809:  // MPS_MAX_CONNECTIONS_REACHED
      return Code::kResourceExhausted;
    case 3:    // NOT_INITIALIZED: also in a child that forked
    case 4:    // DEINITIALIZED
    case 36:   // CALL_REQUIRES_NEWER_DRIVER
    case 201:  // INVALID_CONTEXT
    case 709:  // CONTEXT_IS_DESTROYED
    case 803:  // SYSTEM_DRIVER_MISMATCH
      return Code::kFailedPrecondition;
    case kNoDevice:
    case 101:  // INVALID_DEVICE
    case 713:  // HOST_MEMORY_NOT_REGISTERED
      return Code::kNotFound;
    case 208:  // ALREADY_MAPPED
    case 712:  // HOST_MEMORY_ALREADY_REGISTERED
      return Code::kAlreadyExists;
    case 214:  // ECC_UNCORRECTABLE
    case 220:  // NVLINK_UNCORRECTABLE
      return Code::kDataLoss;
    case 46:   // DEVICE_UNAVAILABLE
    case 600:  // NOT_READY
    case 802:  // SYSTEM_NOT_READY
      return Code::kUnavailable;
    case 800:  // NOT_PERMITTED
      return Code::kPermissionDenied;
    case 801:  // NOT_SUPPORTED
      return Code::kUnimplemented;
    default:
      return Code::kInternal;
  }
}

// Fills `function` from the library; remembers the first name that is missing.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void Find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (function == nullptr && missing_ == nullptr) missing_ = name;
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

void FindDevices(Symbols& symbols, Driver& driver) {
  symbols.Find("cuGetErrorString", driver.get_error_string);
  symbols.Find("cuInit", driver.init);
  symbols.Find("cuDeviceGetCount", driver.device_count);
  symbols.Find("cuDeviceGet", driver.device_get);
  symbols.Find("cuDeviceGetName", driver.device_name);
  symbols.Find("cuDeviceGetUuid_v2", driver.device_uuid);
  symbols.Find("cuDeviceTotalMem_v2", driver.device_total);
  symbols.Find("cuDeviceGetAttribute", driver.device_attribute);
  symbols.Find("cuDevicePrimaryCtxRetain", driver.primary_retain);
  symbols.Find("cuDevicePrimaryCtxRelease_v2", driver.primary_release);
  symbols.Find("cuCtxPushCurrent_v2", driver.push_context);
  symbols.Find("cuCtxPopCurrent_v2", driver.pop_context);
  symbols.Find("cuCtxGetCurrent", driver.current_context);
  symbols.Find("cuCtxSynchronize", driver.sync_context);
}

void FindMemory(Symbols& symbols, Driver& driver) {
  symbols.Find("cuMemGetInfo_v2", driver.memory_info);
  symbols.Find("cuMemAlloc_v2", driver.alloc);
  symbols.Find("cuMemFree_v2", driver.free);
  symbols.Find("cuIpcGetMemHandle", driver.ipc_get);
  symbols.Find("cuIpcOpenMemHandle_v2", driver.ipc_open);
  symbols.Find("cuIpcCloseMemHandle", driver.ipc_close);
  symbols.Find("cuMemGetAllocationGranularity", driver.granularity);
  symbols.Find("cuMemAddressReserve", driver.reserve);
  symbols.Find("cuMemAddressFree", driver.unreserve);
  symbols.Find("cuMemCreate", driver.create);
  symbols.Find("cuMemRelease", driver.release);
  symbols.Find("cuMemMap", driver.map);
  symbols.Find("cuMemUnmap", driver.unmap);
  symbols.Find("cuMemSetAccess", driver.set_access);
  symbols.Find("cuMemExportToShareableHandle", driver.export_handle);
  symbols.Find("cuMemImportFromShareableHandle", driver.import_handle);
  symbols.Find("cuMemHostRegister_v2", driver.host_register);
  symbols.Find("cuMemHostUnregister", driver.host_unregister);
}

void FindStreams(Symbols& symbols, Driver& driver) {
  symbols.Find("cuMemcpyHtoD_v2", driver.copy_in);
  symbols.Find("cuMemcpyDtoH_v2", driver.copy_out);
  symbols.Find("cuMemsetD8_v2", driver.set_bytes);
  symbols.Find("cuMemcpyHtoDAsync_v2", driver.copy_in_async);
  symbols.Find("cuMemcpyDtoHAsync_v2", driver.copy_out_async);
  symbols.Find("cuMemcpy2DAsync_v2", driver.copy_2d_async);
  symbols.Find("cuStreamCreate", driver.stream_create);
  symbols.Find("cuStreamDestroy_v2", driver.stream_destroy);
  symbols.Find("cuStreamSynchronize", driver.stream_sync);
  symbols.Find("cuStreamQuery", driver.stream_query);
  symbols.Find("cuStreamWaitEvent", driver.stream_wait_event);
  symbols.Find("cuStreamIsCapturing", driver.stream_is_capturing);
  symbols.Find("cuThreadExchangeStreamCaptureMode",
               driver.exchange_capture_mode);
  symbols.Find("cuStreamBatchMemOp_v2", driver.stream_mem_ops);
  symbols.Find("cuLaunchHostFunc", driver.launch_host_function);
  symbols.Find("cuEventCreate", driver.event_create);
  symbols.Find("cuEventDestroy_v2", driver.event_destroy);
  symbols.Find("cuEventRecord", driver.event_record);
  symbols.Find("cuEventSynchronize", driver.event_sync);
}

}  // namespace

Result<Driver> Driver::Load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Status(Code::kUnavailable,
                  std::string("no CUDA driver here: ") +
                      (why != nullptr ? why : "libcuda.so.1 not found"));
  }
  Symbols symbols(library);
  Driver driver = {};
  FindDevices(symbols, driver);
  FindMemory(symbols, driver);
  FindStreams(symbols, driver);
  if (symbols.missing() != nullptr) {
    return Status(Code::kFailedPrecondition,
                  std::string("the CUDA driver is too old: it lacks ") +
                      symbols.missing() + "; install driver 525 or newer");
  }
  const Error error = driver.init(0);
  if (error == kNoDevice || error == kStubLibrary) {
    return Status(Code::kUnavailable, "the CUDA driver sees no GPU here");
  }
  if (error != kSuccess) {
    return Status(Code::kFailedPrecondition,
                  driver.Check(error, "cuInit").message());
  }
  return driver;
}

bool Driver::HasStreamWords(DeviceId device) const {
  for (const int attribute :
       {kCanUseStreamMemOps, kHostPointerIsDevicePointer}) {
    int value = 0;
    if (device_attribute(&value, attribute, device) != kSuccess || value == 0) {
      return false;
    }
  }
  return true;
}

Status Driver::Check(Error error, std::string_view what) const {
  if (error == kSuccess) return Status();
  const char* text = nullptr;
  if (get_error_string(error, &text) != kSuccess || text == nullptr) {
    text = "unknown error";
  }
  return Status(CodeOf(error), std::string(what) + ": " + text +
                                   " (CUDA error " + std::to_string(error) +
                                   ")");
}

}  // namespace hoist::cuda
