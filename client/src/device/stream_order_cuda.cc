// Order on CUDA streams, by memory operations or by host functions.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "client/src/device/cuda_context.h"
#include "client/src/device/stream_order.h"
#include "client/src/device/word_wait.h"
#include "hoist/shared/mutex.h"

namespace hoist {
namespace {

// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and the later capture errors.
bool IsCaptureError(cuda::Error error) { return error >= 900 && error <= 909; }

class CudaOrder : public StreamOrder {
 public:
  explicit CudaOrder(std::shared_ptr<CudaContext> context)
      : context_(std::move(context)) {}

  bool on_cpu() const override { return false; }

  Result<bool> IsCapturing(cuda::Stream stream) override {
    int status = cuda::kCaptureNone;
    Status asked = Run("ask whether a stream is captured", [&] {
      return driver().stream_is_capturing(stream, &status);
    });
    if (!asked.ok()) return asked;
    return status != cuda::kCaptureNone;
  }

  Status After(cuda::Stream later, cuda::Stream earlier) override {
    const Result<bool> one = IsCapturing(earlier);
    if (!one.ok()) return one.status();
    const Result<bool> other = IsCapturing(later);
    if (!other.ok()) return other.status();
    if (one.value() != other.value()) {
      return Status(Code::kFailedPrecondition,
                    "a group is used on two streams of which one alone is "
                    "being captured into a graph; use one of them");
    }
    return Run("order two streams", [&] {
      cuda::Event event = nullptr;
      cuda::Error error =
          driver().event_create(&event, cuda::kEventDisableTiming);
      if (error != cuda::kSuccess) return error;
      error = driver().event_record(event, earlier);
      if (error == cuda::kSuccess) {
        error = driver().stream_wait_event(later, event, 0);
      }
      driver().event_destroy(event);  // CUDA defers it until the event is done.
      return error;
    });
  }

  Result<Mark> MarkWork(cuda::Stream stream) override {
    const Result<bool> capturing = IsCapturing(stream);
    if (!capturing.ok()) return capturing.status();
    if (capturing.value()) {
      return Status(Code::kFailedPrecondition, "the stream is being captured");
    }
    cuda::Event event = nullptr;
    Status made = Run("mark a stream's work", [&] {
      return driver().event_create(&event, cuda::kEventDisableTiming);
    });
    if (!made.ok()) return made;
    Mark mark(new cuda::Event(event),
              [context = context_](const cuda::Event* one) {
                if (!context->forked()) {
                  const cuda::ScopedContext current(context->driver(),
                                                    context->context());
                  context->driver().event_destroy(*one);
                }
                delete one;
              });
    Status recorded = Run("mark a stream's work",
                          [&] { return driver().event_record(event, stream); });
    if (!recorded.ok()) return recorded;
    return mark;
  }

  Status Await(const Mark& mark) override {
    return Run("wait for a stream's work",
               [&] { return driver().event_sync(*mark); });
  }

  Status Synchronize(cuda::Stream stream) override {
    return Run("wait for a stream",
               [&] { return driver().stream_sync(stream); });
  }
  Status SynchronizeAll() override {
    return Run("wait for the GPU", [&] { return driver().sync_context(); });
  }

 protected:
  const cuda::Driver& driver() const { return context_->driver(); }

  // Calls CUDA in the context, which determines the legacy default stream.
  template <typename Call>
  Status Run(const char* what, const Call& call) const {
    const cuda::ScopedContext current(driver(), context_->context());
    const cuda::Error error =
        current.error() == cuda::kSuccess ? call() : current.error();
    if (error == cuda::kSuccess) return Status();
    Status status = driver().Check(error, what);
    if (!IsCaptureError(error)) return status;
    return Status(Code::kFailedPrecondition, status.message());
  }

 private:
  const std::shared_ptr<CudaContext> context_;
};

// cuStreamBatchMemOp: the GPU's front end waits and writes; one call for all
// ops.
class MemOpOrder final : public CudaOrder {
 public:
  using CudaOrder::CudaOrder;

  bool one_at_a_time() const override { return false; }

  Status Register(std::span<std::byte> memory) override {
    return Run("register a lane", [&] {
      return driver().host_register(
          memory.data(), memory.size(),
          cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap);
    });
  }

  void Unregister(std::span<std::byte> memory) override {
    // Fails at exit, when the driver and the registration are gone.
    (void)Run("unregister a lane",
              [&] { return driver().host_unregister(memory.data()); });
  }

  Status Put(cuda::Stream stream, std::span<const WordOp> ops) override {
    std::array<cuda::MemOp, kMaxOps> out;
    for (size_t i = 0; i < ops.size(); ++i) {
      const bool wait = ops[i].kind == WordOp::Kind::kWait;
      out[i].operation = wait ? cuda::kMemOpWait32 : cuda::kMemOpWrite32;
      // Registered memory has one address for the CPU and the GPU; Create
      // checked it.
      out[i].address = reinterpret_cast<cuda::Address>(ops[i].word);
      out[i].value = ops[i].value;
      out[i].flags = wait ? cuda::kWaitGreaterOrEqual : cuda::kWriteBehindAll;
    }
    return Run("put a group's words on a stream", [&] {
      return driver().stream_mem_ops(stream, static_cast<unsigned>(ops.size()),
                                     out.data(), 0);
    });
  }
};

// cuLaunchHostFunc: one of CUDA's threads waits and writes. Works everywhere
// and in captures; costs that thread and its wake-ups.
class HostFunctionOrder final : public CudaOrder {
 public:
  using CudaOrder::CudaOrder;

  // CUDA may run all host functions on one thread.
  bool one_at_a_time() const override { return true; }
  Status Register(std::span<std::byte>) override { return Status(); }
  void Unregister(std::span<std::byte>) override {}

  Status Put(cuda::Stream stream, std::span<const WordOp> ops) override {
    const Result<bool> capturing = IsCapturing(stream);
    if (!capturing.ok()) return capturing.status();
    Work work;
    work.count = ops.size();
    std::copy(ops.begin(), ops.end(), work.ops.begin());
    if (capturing.value()) {
      // Graphs may run it any number of times until the plan ends.
      const MutexLock lock(mu_);
      return Launch(stream, &captured_.emplace_back(work));
    }
    work.once = true;
    auto own = std::make_unique<Work>(work);
    Status launched = Launch(stream, own.get());
    if (launched.ok()) own.release();  // RunWork frees it.
    return launched;
  }

 private:
  struct Work {
    std::array<WordOp, kMaxOps> ops;
    size_t count = 0;
    bool once = false;
  };

  static void RunWork(void* argument) {
    Work* work = static_cast<Work*>(argument);
    for (size_t i = 0; i < work->count; ++i) {
      const WordOp& op = work->ops[i];
      if (op.kind == WordOp::Kind::kWrite) {
        op.word->store(op.value);  // In one order with the waits behind it.
        continue;
      }
      // Ends with the plan at the latest; see PlanLife.
      while (!WaitWord(
          *op.word, op.value,
          std::chrono::steady_clock::now() + std::chrono::seconds(1))) {
      }
    }
    if (work->once) delete work;
  }

  Status Launch(cuda::Stream stream, Work* work) {
    return Run("put a group's words on a stream", [&] {
      return driver().launch_host_function(stream, &RunWork, work);
    });
  }

  Mutex mu_;
  std::deque<Work> captured_ HOIST_GUARDED_BY(mu_);  // Entries stay put.
};

bool CanUseMemOps(const CudaContext& context) {
  const char* given = std::getenv("HOIST_STREAM_OPS");
  if (given != nullptr && std::strcmp(given, "0") == 0) return false;
  return context.driver().HasStreamWords(context.device());
}

}  // namespace

Result<std::unique_ptr<StreamOrder>> CreateCudaOrder(
    const std::array<uint8_t, 16>& uuid) {
  Result<std::unique_ptr<CudaContext>> context = CudaContext::Open(uuid);
  if (!context.ok()) return context.status();
  if (CanUseMemOps(**context)) {
    return std::unique_ptr<StreamOrder>(
        std::make_unique<MemOpOrder>(std::move(context).value()));
  }
  return std::unique_ptr<StreamOrder>(
      std::make_unique<HostFunctionOrder>(std::move(context).value()));
}

}  // namespace hoist
