#include "tests/sim/system/sim_streams.h"

#include "hoist/shared/lane_layout.h"
#include "tests/sim/system/violation.h"

namespace hoistd::sim {

using Kind = hoist::WordOp::Kind;

bool SimStreams::CanStep(uint64_t stream) const {
  const std::deque<Op>& queue = queues_[stream];
  if (queue.empty()) return false;
  const Op& op = queue.front();
  if (op.after < kStreams) return done_[op.after] >= op.count;
  if (op.word.word == nullptr || op.word.kind == Kind::kWrite) return true;
  return hoist::lane::Reached(op.word.word->load(), op.word.value);
}

void SimStreams::Step(uint64_t stream) {
  const Op op = std::move(queues_[stream].front());
  queues_[stream].pop_front();
  ++done_[stream];
  if (op.word.word != nullptr && op.word.kind == Kind::kWrite) {
    op.word.word->store(op.word.value);
  }
  if (op.kernel != nullptr) op.kernel();
}

void SimStreams::Push(hoist::cuda::Stream stream, Op op) {
  if (capturing_ != nullptr && stream == capturing_) {
    graph_.push_back(std::move(op));
    return;
  }
  ++put_[NumberOf(stream)];
  queues_[NumberOf(stream)].push_back(std::move(op));
}

hoist::Status SimStreams::Put(hoist::cuda::Stream stream,
                              std::span<const hoist::WordOp> ops) {
  for (const hoist::WordOp& op : ops) {
    const bool at_once = on_cpu_ && queues_[NumberOf(stream)].empty() &&
                         (op.kind == Kind::kWrite ||
                          hoist::lane::Reached(op.word->load(), op.value));
    if (!at_once) {
      if (on_cpu_ && op.kind == Kind::kWrite) {
        Violation(Check::kProtocol, "a thread that waits writes a word");
      }
      Push(stream, {.word = op});
    } else if (op.kind == Kind::kWrite) {
      op.word->store(op.value);
    }
  }
  return {};
}

hoist::Status SimStreams::After(hoist::cuda::Stream later,
                                hoist::cuda::Stream earlier) {
  if (later == earlier) return {};
  Push(later, {.after = NumberOf(earlier), .count = put_[NumberOf(earlier)]});
  return {};
}

}  // namespace hoistd::sim
