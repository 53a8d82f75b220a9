// An arena's memory for a GPU: the driver's host memory, or memfds that this
// process pins.
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "client/src/base/start_thread.h"
#include "client/src/device/arena_memory.h"
#include "client/src/device/cuda_context.h"
#include "client/src/device/device_map.h"
#include "client/src/device/mapped_slabs.h"

namespace hoist {
namespace {

// Bytes touched at a time before the pin, so that it can be stopped.
constexpr size_t kTouchBytes = size_t{64} << 20;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, from Linux 5.14 on.

// Orders streams by events; holds the context for all calls.
class CudaArenaMemory : public ArenaMemory {
 public:
  explicit CudaArenaMemory(std::unique_ptr<CudaContext> context)
      : context_(std::move(context)) {}
  CudaArenaMemory(const CudaArenaMemory&) = delete;
  CudaArenaMemory& operator=(const CudaArenaMemory&) = delete;
  ~CudaArenaMemory() override {
    if (context_->forked()) return;
    // At exit the driver, and with it these events, may be gone already.
    (void)Run("", [&] {
      for (const cuda::Event event : idle_) driver().event_destroy(event);
      return cuda::kSuccess;
    });
  }

  Status CheckStream(cuda::Stream stream) override {
    int status = cuda::kCaptureNone;
    Status asked = Run("ask whether a stream is captured", [&] {
      return driver().stream_is_capturing(stream, &status);
    });
    if (!asked.ok() || status == cuda::kCaptureNone) return asked;
    return Status(Code::kFailedPrecondition,
                  "the stream is being captured into a graph, which would use "
                  "the block at each launch, in order with nothing that the "
                  "arena knows of; take blocks before the capture, and give "
                  "them when the graph is launched no more");
  }

  Result<ArenaRanges::Mark> MarkOn(cuda::Stream stream) override {
    cuda::Event event = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mu_);
      if (!idle_.empty()) {
        event = idle_.back();
        idle_.pop_back();
      }
    }
    Status marked = Run("mark a stream", [&] {
      if (event == nullptr) {
        const cuda::Error error =
            driver().event_create(&event, cuda::kEventDisableTiming);
        if (error != cuda::kSuccess) return error;
      }
      return driver().event_record(event, stream);
    });
    // The event is reused after its last mark. Earlier waits keep the work that
    // it recorded then.
    ArenaRanges::Mark mark(event, [this](const void* done) {
      if (done == nullptr) return;
      const std::lock_guard<std::mutex> lock(mu_);
      idle_.push_back(static_cast<cuda::Event>(const_cast<void*>(done)));
    });
    if (!marked.ok()) return marked;
    return mark;
  }

  Status WaitFor(const std::vector<ArenaRanges::Use>& uses,
                 cuda::Stream stream) override {
    if (uses.empty()) return Status();
    return Run("order two streams", [&] {
      for (const ArenaRanges::Use& use : uses) {
        const cuda::Error error =
            driver().stream_wait_event(stream, EventOf(use), 0);
        if (error != cuda::kSuccess) return error;
      }
      return cuda::kSuccess;
    });
  }

  Status Synchronize(const std::vector<ArenaRanges::Use>& uses) override {
    if (uses.empty()) return Status();
    return Run("wait for the last use of an arena", [&] {
      cuda::Error error = cuda::kSuccess;
      for (const ArenaRanges::Use& use : uses) {
        error = driver().event_sync(EventOf(use));
        if (error != cuda::kSuccess) break;
      }
      return error;
    });
  }

 protected:
  const CudaContext& context() const { return *context_; }
  const cuda::Driver& driver() const { return context_->driver(); }

  template <typename Call>
  Status Run(const char* what, const Call& call) const {
    const cuda::ScopedContext current(driver(), context_->context());
    const cuda::Error error =
        current.error() == cuda::kSuccess ? call() : current.error();
    return driver().Check(error, what);
  }

 private:
  static cuda::Event EventOf(const ArenaRanges::Use& use) {
    return static_cast<cuda::Event>(const_cast<void*>(use.mark.get()));
  }

  const std::unique_ptr<CudaContext> context_;
  std::mutex mu_;
  std::vector<cuda::Event> idle_;  // Guarded by mu_.
};

// Slabs of the driver's host memory: pinned, at one address for the CPU and the
// GPU.
class VmmArenaMemory final : public CudaArenaMemory {
 public:
  using CudaArenaMemory::CudaArenaMemory;
  ~VmmArenaMemory() override {
    // The child of a fork has the object and not the context.
    if (context().forked()) return;
    (void)Run("", [&] {
      uint64_t at = base_;
      for (const uint64_t bytes : mapped_) {
        driver().unmap(at, bytes);
        at += bytes;
      }
      if (base_ != 0) driver().unreserve(base_, bytes_);
      return cuda::kSuccess;
    });
  }

  Status Map(const std::vector<SlabImport>& slabs) {
    for (const SlabImport& slab : slabs) bytes_ += slab.bytes;
    Status reserved = Run("reserve addresses for an arena", [&] {
      return driver().reserve(&base_, bytes_, kSlabAlignment, 0, 0);
    });
    if (!reserved.ok()) return reserved;
    uint64_t at = base_;
    for (const SlabImport& slab : slabs) {
      if (Status s = MapSlab(slab, at); !s.ok()) return s;
      at += slab.bytes;
    }
    return Status();
  }

  std::byte* base() const override {
    return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(base_));
  }
  uint64_t pinned_bytes() const override { return bytes_; }

 private:
  Status MapSlab(const SlabImport& slab, uint64_t at) {
    const std::string name = "slab " + std::to_string(slab.id);
    if (slab.backing != SlabBacking::kVmm || !slab.fd.valid()) {
      return Status(Code::kInvalidArgument, name + " is no host memory");
    }
    const cuda::AccessDesc access[] = {
        {{cuda::kLocationHostNuma, slab.numa_node}, cuda::kAccessReadWrite},
        {{cuda::kLocationDevice, context().device()}, cuda::kAccessReadWrite}};
    return Run(("map " + name).c_str(), [&] {
      cuda::Allocation allocation = 0;
      cuda::Error error = driver().import_handle(
          &allocation,
          reinterpret_cast<void*>(static_cast<uintptr_t>(slab.fd.get())),
          cuda::kHandlePosixFd);
      if (error != cuda::kSuccess) return error;
      error = driver().map(at, slab.bytes, 0, allocation, 0);
      // The mapping keeps the memory; neither handle nor descriptor is needed.
      driver().release(allocation);
      if (error != cuda::kSuccess) return error;
      mapped_.push_back(slab.bytes);
      return driver().set_access(at, slab.bytes, access, std::size(access));
    });
  }

  cuda::Address base_ = 0;
  uint64_t bytes_ = 0;
  std::vector<uint64_t> mapped_;  // Side by side, from base_ on.
};

// Memfds, pinned as one range: the driver refuses a copy across the edge of a
// range. Pages are touched first, outside the driver's locks.
class PinnedArenaMemory final : public CudaArenaMemory {
 public:
  PinnedArenaMemory(std::unique_ptr<CudaContext> context, Mapping memory)
      : CudaArenaMemory(std::move(context)), memory_(std::move(memory)) {
    // Without it copies stay slower.
    (void)StartThread(&pinner_, [this] { Pin(); });
  }
  ~PinnedArenaMemory() override {
    if (context().forked()) {
      if (pinner_.joinable()) pinner_.detach();
      return;
    }
    stopping_ = true;
    if (pinner_.joinable()) pinner_.join();
    if (pinned_bytes_ == 0) return;
    (void)Run("", [&] { return driver().host_unregister(memory_.data()); });
  }

  std::byte* base() const override { return memory_.data(); }
  uint64_t pinned_bytes() const override { return pinned_bytes_; }

 private:
  void Pin() {
    pthread_setname_np(pthread_self(), "hoist-pin");
    for (size_t at = 0; at < memory_.size() && !stopping_; at += kTouchBytes) {
      // Before Linux 5.14 (no MADV_POPULATE_WRITE) the driver touches the
      // pages.
      if (madvise(memory_.data() + at,
                  std::min(kTouchBytes, memory_.size() - at),
                  kPopulateWrite) != 0) {
        break;
      }
    }
    if (stopping_) return;
    // If it is refused (RLIMIT_MEMLOCK, a container), copies stay slower.
    const Status pinned = Run("pin an arena", [&] {
      return driver().host_register(
          memory_.data(), memory_.size(),
          cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
    });
    if (pinned.ok()) pinned_bytes_ = memory_.size();
  }

  const Mapping memory_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> pinned_bytes_{0};
  std::thread pinner_;
};

}  // namespace

Result<std::unique_ptr<ArenaMemory>> CreateCudaArenaMemory(
    const std::array<uint8_t, 16>& uuid, std::vector<SlabImport> slabs) {
  Result<std::unique_ptr<CudaContext>> context = CudaContext::Open(uuid);
  if (!context.ok()) return context.status();
  const bool memfds =
      !slabs.empty() && slabs.front().backing == SlabBacking::kMemfd;
  if (memfds) {
    Result<Mapping> memory = MapSlabs(slabs);
    if (!memory.ok()) return memory.status();
    return std::unique_ptr<ArenaMemory>(std::make_unique<PinnedArenaMemory>(
        std::move(context).value(), std::move(memory).value()));
  }
  auto memory = std::make_unique<VmmArenaMemory>(std::move(context).value());
  if (Status s = memory->Map(slabs); !s.ok()) return s;
  return std::unique_ptr<ArenaMemory>(std::move(memory));
}

}  // namespace hoist
