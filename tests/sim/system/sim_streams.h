// A worker's streams, which advance one operation at a time.
#ifndef HOIST_TESTS_SIM_SYSTEM_SIM_STREAMS_H_
#define HOIST_TESTS_SIM_SYSTEM_SIM_STREAMS_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "client/src/device/stream_order.h"

namespace hoistd::sim {

// Stands for a CUDA device's streams or, on an emulated device, for the
// worker's own thread. There a wait that would block goes onto the one stream,
// and the worker does nothing else until it is through.
//
// Threads:  one.
class SimStreams final : public hoist::StreamOrder {
 public:
  using Kernel = std::function<void()>;
  static constexpr uint64_t kStreams = 3;  // The first is nullptr.

  explicit SimStreams(bool on_cpu) : on_cpu_(on_cpu) {}

  static hoist::cuda::Stream Of(uint64_t number) {
    return reinterpret_cast<hoist::cuda::Stream>(number);
  }

  // Enqueues a kernel, or a part of one, behind the stream's work.
  void Launch(hoist::cuda::Stream stream, Kernel kernel) {
    Push(stream, {.kernel = std::move(kernel)});
  }
  bool CanStep(uint64_t stream) const;
  void Step(uint64_t stream);
  bool idle() const {
    for (const auto& queue : queues_) {
      if (!queue.empty()) return false;
    }
    return true;
  }

  // Until EndCapture, work put on this stream is kept for Replay.
  void BeginCapture(uint64_t stream) { capturing_ = Of(stream); }
  void EndCapture() { capturing_ = nullptr; }
  bool has_graph() const { return !graph_.empty(); }
  void Replay(uint64_t stream) {
    auto& queue = queues_[stream];
    queue.insert(queue.end(), graph_.begin(), graph_.end());
    put_[stream] += graph_.size();
  }

  hoist::Status Register(std::span<std::byte>) override { return {}; }
  void Unregister(std::span<std::byte>) override {}
  bool on_cpu() const override { return on_cpu_; }
  bool one_at_a_time() const override { return false; }
  hoist::Result<bool> IsCapturing(hoist::cuda::Stream stream) override {
    return capturing_ != nullptr && stream == capturing_;
  }
  hoist::Status Put(hoist::cuda::Stream stream,
                    std::span<const hoist::WordOp> ops) override;
  hoist::Status After(hoist::cuda::Stream later,
                      hoist::cuda::Stream earlier) override;
  hoist::Status Synchronize(hoist::cuda::Stream) override { return {}; }
  hoist::Status SynchronizeAll() override { return {}; }

 private:
  struct Op {
    hoist::WordOp word = {};  // Unless its word is nullptr.
    Kernel kernel = nullptr;
    uint64_t after = kStreams;  // Behind so many of that stream's.
    uint64_t count = 0;
  };

  void Push(hoist::cuda::Stream stream, Op op);
  static uint64_t NumberOf(hoist::cuda::Stream stream) {
    return reinterpret_cast<uint64_t>(stream);
  }

  const bool on_cpu_;
  hoist::cuda::Stream capturing_ = nullptr;
  std::vector<Op> graph_;
  std::array<std::deque<Op>, kStreams> queues_;
  std::array<uint64_t, kStreams> put_ = {};
  std::array<uint64_t, kStreams> done_ = {};
};

}  // namespace hoistd::sim

#endif  // HOIST_TESTS_SIM_SYSTEM_SIM_STREAMS_H_
