#include "tests/bench/stream_worker.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <deque>
#include <vector>

#include "tests/bench/basics.h"
#include "tests/bench/gpu.h"
#include "tests/bench/worker_modes.h"

namespace hoist::bench {
namespace {

// Groups that a worker's GPU may be behind its host: enough that the host never
// holds it up, few enough that the count is of now.
constexpr size_t kBehind = 8;

WorkerCounter* MapCounter(int fd) {
  void* memory = mmap(nullptr, sizeof(WorkerCounter), PROT_READ | PROT_WRITE,
                      MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) Fail("cannot map a worker's counter");
  return static_cast<WorkerCounter*>(memory);
}

// Groups that are used, in order, and counted once the GPU is done with them.
class Progress {
 public:
  Progress(Gpu* gpu, cuda::Stream stream, WorkerCounter& counter)
      : gpu_(gpu), stream_(stream), counter_(counter) {
    if (gpu == nullptr) return;
    for (size_t i = 0; i <= kBehind; ++i) free_.push_back(gpu->NewEvent());
  }

  void Used(uint64_t bytes) {
    if (gpu_ == nullptr) {
      counter_.bytes += bytes;
      return;
    }
    const cuda::Event event = free_.back();
    free_.pop_back();
    gpu_->Record(event, stream_);
    behind_.push_back({event, bytes});
    if (behind_.size() <= kBehind) return;
    const auto [first, first_bytes] = behind_.front();
    behind_.pop_front();
    gpu_->Require(gpu_->driver().event_sync(first), "cuEventSynchronize");
    counter_.bytes += first_bytes;
    free_.push_back(first);
  }

 private:
  struct Behind {
    cuda::Event event;
    uint64_t bytes;
  };
  Gpu* const gpu_;
  const cuda::Stream stream_;
  WorkerCounter& counter_;
  std::vector<cuda::Event> free_;
  std::deque<Behind> behind_;
};

// Copies the same bytes over and over.
void CopyOwn(const Session& session, const Json& arguments, Gpu* gpu,
             cuda::Stream stream, WorkerCounter& counter) {
  const auto bytes = arguments["copy_bytes"].get<uint64_t>();
  std::vector<std::byte> host(gpu == nullptr ? 2 * bytes : 0);
  std::byte* from = host.data();
  std::byte* to = host.data() + bytes;
  if (gpu != nullptr) {
    from = static_cast<std::byte*>(gpu->PinnedAlloc(bytes));
    to = reinterpret_cast<std::byte*>(gpu->Alloc(bytes));
  }
  CopyPermit permit;
  if (arguments["copies"].get<Copies>() == Copies::kGranted) {
    permit = OpenPermit(session, arguments["device"].get<uint32_t>(),
                        arguments["weight"].get<uint32_t>(),
                        arguments["priority"].get<int32_t>());
  }
  counter.ready = 1;
  Progress progress(gpu, stream, counter);
  while (!counter.ending) {
    if (permit != nullptr) {
      hoist_error* error = nullptr;
      const int code = hoist_copy_permit_to_device(
          permit.get(), to, from, bytes, reinterpret_cast<hoist_stream>(stream),
          &error);
      RequireOk(code, error, "hoist_copy_permit_to_device");
    } else if (gpu != nullptr) {
      gpu->Require(
          gpu->driver().copy_in_async(reinterpret_cast<cuda::Address>(to), from,
                                      bytes, stream),
          "cuMemcpyHtoDAsync");
    } else {
      std::memcpy(to, from, bytes);
    }
    progress.Used(bytes);
  }
  if (gpu != nullptr) gpu->Sync(stream);
}

}  // namespace

void RunStreamWorker(const Json& arguments) {
  WorkerCounter& counter = *MapCounter(arguments["counter_fd"].get<int>());
  const Session session = Connect(arguments["socket"].get<std::string>(),
                                  arguments["name"].get<std::string>());
  std::unique_ptr<Gpu> gpu;
  cuda::Stream stream = nullptr;
  if (arguments["cuda"].get<bool>()) {
    gpu = std::make_unique<Gpu>(
        DeviceInfo(session, arguments["device"].get<size_t>()).uuid);
    stream = gpu->NewStream();
  }
  if (arguments["copies"].get<Copies>() != Copies::kPlan) {
    return CopyOwn(session, arguments, gpu.get(), stream, counter);
  }
  const Model model = Describe(session, arguments["model"].get<std::string>());
  PlanWish wish;
  wish.device = arguments["device"].get<uint32_t>();
  wish.budget_bytes = arguments["budget_bytes"].get<uint64_t>();
  wish.weight = arguments["weight"].get<uint32_t>();
  wish.priority = arguments["priority"].get<int32_t>();
  wish.max_bytes_per_second = arguments["max_bytes_per_second"].get<uint64_t>();
  wish.deadline_ms = arguments["deadline_ms"].get<uint64_t>();
  const Plan plan = MakePlan(session, model, wish);
  counter.ready = 1;
  const std::vector<uint64_t> bytes = GroupBytes(model);
  std::vector<bool> streamed(bytes.size());
  for (uint32_t g = 0; g < bytes.size(); ++g) {
    streamed[g] = IsStreamed(plan, g);
  }
  while (arguments["idle"].get<bool>() && !counter.ending) SleepFor(0.005);
  Progress progress(gpu.get(), stream, counter);
  while (!counter.ending) {
    for (uint32_t g = 0; g < bytes.size() && !counter.ending; ++g) {
      if (!streamed[g]) continue;
      Stage(plan, g, stream);
      Done(plan, g, stream);
      progress.Used(bytes[g]);
    }
  }
  if (gpu != nullptr) gpu->Sync(stream);
  Check(plan);
}

StreamWorker::StreamWorker(const RunOptions& run, const StreamWorkerSpec& spec,
                           int number)
    : log_(run.scratch + "/worker-" + std::to_string(number) + ".log"),
      waits_for_bytes_(!spec.idle && spec.copies == Copies::kPlan) {
  const int fd = memfd_create("hoist-bench-counter", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, sizeof(WorkerCounter)) != 0) {
    Fail("cannot make a worker's counter");
  }
  counter_ = MapCounter(fd);
  const Json arguments = {
      {"socket", spec.socket},
      {"name", "bench-" + std::to_string(number)},
      {"model", spec.model},
      {"cuda", spec.device == DeviceKind::kCuda},
      {"counter_fd", fd},
      {"copies", spec.copies},
      {"copy_bytes", spec.copy_bytes},
      {"device", spec.plan.device},
      {"budget_bytes", spec.plan.budget_bytes},
      {"weight", spec.plan.weight},
      {"priority", spec.plan.priority},
      {"max_bytes_per_second", spec.plan.max_bytes_per_second},
      {"deadline_ms", spec.plan.deadline_ms},
      {"idle", spec.idle}};
  process_ = std::make_unique<ChildProcess>(
      ChildSpec{.arguments = WorkerCommandLine("stream", arguments),
                .log = log_,
                .inherited_fd = fd});
  close(fd);
}

StreamWorker::~StreamWorker() {
  process_->End(SIGKILL);
  munmap(counter_, sizeof(WorkerCounter));
}

void StreamWorker::RequireRunning() {
  if (!process_->Running()) Fail("a worker ended; it said: " + ReadText(log_));
}

void StreamWorker::WaitUntilStreams() {
  while (!counter_->ready || (waits_for_bytes_ && bytes() == 0)) {
    RequireRunning();
    SleepFor(0.002);
  }
}

void StreamWorker::Finish() {
  RequireRunning();
  counter_->ending = 1;
  for (const double begin = Now(); process_->Running();) {
    if (Now() - begin > 30) Fail("a worker does not end");
    SleepFor(0.002);
  }
}

}  // namespace hoist::bench
