// A process that streams at full speed, and counts its bytes.
#ifndef HOIST_TESTS_BENCH_STREAM_WORKER_H_
#define HOIST_TESTS_BENCH_STREAM_WORKER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/bench/child_process.h"
#include "tests/bench/client.h"
#include "tests/bench/run_options.h"

namespace hoist::bench {

// Shared by a worker and its starter, which can read it at any time. A message
// would need a worker that answers, and some are stopped.
struct WorkerCounter {
  std::atomic<uint64_t> bytes;   // Of streamed groups, used up to now.
  std::atomic<uint32_t> ending;  // By the starter: finish.
  std::atomic<uint32_t> ready;   // The plan stands.
};

// The source of a worker's copies.
enum class Copies {
  kPlan,     // A plan's groups: hoistd copies them.
  kGranted,  // Memory of its own, to the device, under a permit.
  kAtWill,   // The same without one.
};

struct StreamWorkerSpec {
  std::string socket;
  std::string model;
  Copies copies = Copies::kPlan;
  // The size of a copy between two buffers of the worker. Only the share of
  // `plan` is used.
  uint64_t copy_bytes = 0;
  PlanWish plan;
  DeviceKind device = DeviceKind::kEmulated;
  bool idle = false;  // Sets its plan, then only waits.
};

// Threads: one.
// Owns:    the process.
class StreamWorker {
 public:
  StreamWorker(const RunOptions& run, const StreamWorkerSpec& spec, int number);
  ~StreamWorker();

  uint64_t bytes() const { return counter_->bytes.load(); }
  // Returns once its plan is set and some groups have arrived, or it copies.
  void WaitUntilStreams();
  ChildProcess& process() { return *process_; }
  // Stops it and waits for its end.
  void Finish();

 private:
  void RequireRunning();

  const std::string log_;
  // A worker's own copies get no bytes beside a plan of a higher priority.
  const bool waits_for_bytes_;
  WorkerCounter* counter_ = nullptr;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace hoist::bench

#endif  // HOIST_TESTS_BENCH_STREAM_WORKER_H_
