// The streams of the fake libcuda: work runs in order, and at once unless
// earlier work waits.
#ifndef HOIST_TESTS_CONFORMANCE_DEVICE_FAKE_CUDA_STREAMS_H_
#define HOIST_TESTS_CONFORMANCE_DEVICE_FAKE_CUDA_STREAMS_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace fake_cuda {

// One operation of a stream.
struct Step {
  std::function<bool()> ready;  // Empty: at once.
  std::function<int()> run;     // Empty: nothing; returns an error or 0.
  std::function<void()> host;   // Called without the lock, by a thread of ours.
};

// Threads:  all calls with the lock held that it was made with; those that take
//           a unique_lock release it while they wait.
// Owns:     a thread, started when a stream first has to wait. It never ends:
//           like the driver's, it outlives its users.
class Streams {
 public:
  // Runs the step if it is ready, and returns its error; else 0.
  int Add(void* stream, Step step);
  // The streams go on with what they have.
  void Forget(void* stream) { streams_.erase(stream); }
  void ForgetEvent(void* event) { events_.erase(event); }

  int Query(void* stream);
  int Sync(std::unique_lock<std::mutex>& lock, void* stream);
  void SyncAll(std::unique_lock<std::mutex>& lock);
  void Record(void* event, void* stream);
  int SyncEvent(std::unique_lock<std::mutex>& lock, void* event);
  void WaitEvent(void* stream, void* event);

  // The lock is the one of every call.
  explicit Streams(std::mutex& mu) : mu_(mu) {}

 private:
  struct Stream {
    std::deque<Step> steps;
    uint64_t queued = 0;
    uint64_t finished = 0;
    int error = 0;  // Of what ran later than it was called for; it stays.
  };
  struct Mark {
    std::shared_ptr<Stream> stream;
    uint64_t ticket = 0;
    bool reached() const { return !stream || stream->finished >= ticket; }
  };

  std::shared_ptr<Stream> Find(void* stream);
  // Runs all ready steps; true: some are left.
  bool Pump(std::unique_lock<std::mutex>& lock);
  void Run();

  std::mutex& mu_;
  std::condition_variable changed_;
  std::map<void*, std::shared_ptr<Stream>> streams_;
  std::map<void*, Mark> events_;
  std::vector<std::shared_ptr<Stream>> waiting_;
  bool started_ = false;
};

}  // namespace fake_cuda

#endif  // HOIST_TESTS_CONFORMANCE_DEVICE_FAKE_CUDA_STREAMS_H_
