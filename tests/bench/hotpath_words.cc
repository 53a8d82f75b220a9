#include "tests/bench/hotpath_words.h"

#include <sys/mman.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/bench/basics.h"

namespace hoist::bench {
namespace {

constexpr int kCalls = 2000;
constexpr int kGroups = 200;
constexpr int kReplays = 20;
constexpr int64_t kSpinCycles = 10'000;
constexpr uint64_t kSpan = kMiB;
constexpr uint64_t kDoneWords = kSpan / 2;

cuda::MemOp Wait(cuda::Address word) {
  return {.operation = cuda::kMemOpWait32,
          .address = word,
          .value = 0,  // Satisfied: what is measured is the operation.
          .flags = cuda::kWaitGreaterOrEqual};
}
cuda::MemOp Write(cuda::Address word, uint32_t value) {
  return {.operation = cuda::kMemOpWrite32,
          .address = word,
          .value = value,
          .flags = cuda::kWriteBehindAll};
}

class WordBench {
 public:
  WordBench(Gpu& gpu, Report& report)
      : gpu_(gpu), report_(report), stream_(gpu.NewStream()) {
    void* host = mmap(nullptr, kSpan, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (host == MAP_FAILED) Fail("no memory for words");
    gpu.Require(gpu.driver().host_register(
                    host, kSpan,
                    cuda::kHostRegisterPortable | cuda::kHostRegisterDeviceMap),
                "cuMemHostRegister");
    host_ = reinterpret_cast<cuda::Address>(host);  // The same, by UVA.
    device_ = gpu.Alloc(kSpan);
  }

  void HostTimes(const std::string& where, cuda::Address base) {
    const CudaExtras& extras = gpu_.extras();
    Host(where, "wait", [&] {
      return extras.wait_value(stream_, base, 0, cuda::kWaitGreaterOrEqual);
    });
    Host(where, "write", [&] {
      return extras.write_value(stream_, base + 64, 0, cuda::kWriteBehindAll);
    });
    Host(where, "batch of wait", [&] { return Batch({Wait(base)}); });
    Host(where, "batch of write, wait", [&] {
      return Batch({Write(base + 64, 0), Wait(base)});
    });
    Host(where, "batch of write, wait, write", [&] {
      return Batch({Write(base + 64, 0), Wait(base), Write(base + 128, 0)});
    });
  }

  // One group of a graph: nothing, the counted form, the captured form.
  void GraphTimes() {
    const double bare = GraphGroup(
        "none", "no words", 0, [](uint64_t) {}, [](uint64_t) {});
    for (const auto& [where, base] :
         {std::pair{"host", host_}, std::pair{"device", device_}}) {
      GraphGroup(
          where, "wait; write", bare,
          [&](uint64_t i) { Require(Batch({Wait(base + 128 * i)})); },
          [&](uint64_t i) {
            Require(Batch({Write(base + kDoneWords + 128 * i, 1)}));
          });
      GraphGroup(
          where, "captured form: 3 ops; 3 ops", bare,
          [&](uint64_t i) {
            const cuda::Address flag = base + 128 * i;
            Require(Batch(
                {Write(base + kSpan - 64, 1), Wait(flag), Write(flag, 2)}));
          },
          [&](uint64_t i) {
            const cuda::Address done = base + kDoneWords + 128 * i;
            Require(Batch({Write(base + 128 * i, 0), Write(done, 1),
                           Write(base + kSpan - 64, 0)}));
          });
    }
  }

  cuda::Address host() const { return host_; }
  cuda::Address device() const { return device_; }

 private:
  cuda::Error Batch(std::vector<cuda::MemOp> ops) {
    return gpu_.driver().stream_mem_ops(
        stream_, static_cast<unsigned>(ops.size()), ops.data(), 0);
  }
  void Require(cuda::Error error) { gpu_.Require(error, "cuStreamBatchMemOp"); }

  void Host(const std::string& where, const std::string& what,
            const std::function<cuda::Error()>& call) {
    std::vector<double> clock, seconds;
    for (int i = -kCalls / 10; i < kCalls; ++i) {
      if (i % 100 == 0) gpu_.Sync(stream_);  // The queue never fills up.
      const double begin = Now();
      const double middle = Now();
      const cuda::Error error = call();
      const double end = Now();
      gpu_.Require(error, what.c_str());
      if (i < 0) continue;
      clock.push_back(middle - begin);
      seconds.push_back(end - middle);
    }
    gpu_.Sync(stream_);
    report_.Add({{"words", where},
                 {"host_call", what},
                 {"median_us", (Median(seconds) - Median(clock)) * 1e6},
                 {"p99_us", (Quantile(seconds, 0.99) - Median(clock)) * 1e6}});
  }

  double GraphGroup(const std::string& where, const std::string& what,
                    double bare, const std::function<void(uint64_t)>& before,
                    const std::function<void(uint64_t)>& after) {
    const GraphExec graph = gpu_.Capture(stream_, [&] {
      for (uint64_t i = 0; i < kGroups; ++i) {
        before(i);
        gpu_.LaunchSpin(stream_, kSpinCycles);
        after(i);
      }
    });
    const double seconds =
        gpu_.GraphSeconds(graph, stream_, kReplays) / kGroups;
    gpu_.Require(gpu_.extras().graph_exec_destroy(graph), "destroy a graph");
    report_.Add(
        {{"words", where},
         {"graph_group", what},
         {"gpu_us", seconds * 1e6},
         {"added_us", bare > 0 ? Json((seconds - bare) * 1e6) : Json()}});
    return seconds;
  }

  Gpu& gpu_;
  Report& report_;
  const cuda::Stream stream_;
  cuda::Address host_ = 0;
  cuda::Address device_ = 0;
};

}  // namespace

void MeasureWords(Gpu& gpu, Report& report) {
  WordBench bench(gpu, report);
  bench.HostTimes("host", bench.host());
  bench.HostTimes("device", bench.device());
  bench.GraphTimes();
}

}  // namespace hoist::bench
