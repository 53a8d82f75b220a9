#include "client/src/device/stream_order.h"
#include "client/src/device/word_wait.h"

namespace hoist {
namespace {

class EmulatedOrder final : public StreamOrder {
 public:
  explicit EmulatedOrder(std::chrono::milliseconds wait_limit)
      : wait_limit_(wait_limit) {}

  Status Register(std::span<std::byte>) override { return Status(); }
  void Unregister(std::span<std::byte>) override {}
  bool on_cpu() const override { return true; }
  bool one_at_a_time() const override { return false; }
  Result<bool> IsCapturing(cuda::Stream) override { return false; }

  Status Put(cuda::Stream, std::span<const WordOp> ops) override {
    for (const WordOp& op : ops) {
      if (op.kind == WordOp::Kind::kWrite) {
        op.word->store(op.value);  // In one order with hoistd's `sleeping`.
      } else if (!WaitWord(*op.word, op.value,
                           std::chrono::steady_clock::now() + wait_limit_)) {
        return Status(Code::kDeadlineExceeded,
                      "hoistd brought no bytes and gave no reason for " +
                          std::to_string(wait_limit_.count()) +
                          " ms; connect again");
      }
    }
    return Status();
  }

  // The caller's own thread is the only stream.
  Status After(cuda::Stream, cuda::Stream) override { return Status(); }
  Status Synchronize(cuda::Stream) override { return Status(); }
  Status SynchronizeAll() override { return Status(); }

 private:
  const std::chrono::milliseconds wait_limit_;
};

}  // namespace

std::unique_ptr<StreamOrder> CreateEmulatedOrder(
    std::chrono::milliseconds wait_limit) {
  return std::make_unique<EmulatedOrder>(wait_limit);
}

}  // namespace hoist
