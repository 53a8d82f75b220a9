#ifndef HOIST_DAEMON_MOVER_TRANSFER_QUEUE_H_
#define HOIST_DAEMON_MOVER_TRANSFER_QUEUE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "daemon/core/transfer.h"
#include "daemon/types/ids.h"

namespace hoistd {

// How many transfers of a queue run at once: its width, and more if they are
// small.
struct QueueWidth {
  int width = 1;
  // This many, while all images together are at most kSmallBytes.
  int of_small = 0;
};

// Transfers that wait for a place in progress: urgent ones first, then in
// order.
//
// Threads: one at a time.
class TransferQueue {
 public:
  static constexpr uint64_t kSmallBytes = uint64_t{8} << 20;

  explicit TransferQueue(QueueWidth width) : width_(width) {}

  void Add(Transfer transfer);
  // Makes a waiting transfer urgent; else a no-op.
  void Hurry(TransferId id);
  // The next to start if the width allows; it then counts as in progress.
  std::optional<Transfer> Next();
  // A transfer in progress has ended.
  void Finished(TransferId id);
  bool idle() const {
    return under_way_.empty() && urgent_.empty() && others_.empty();
  }

 private:
  bool HasRoomFor(const Transfer& transfer) const;

  const QueueWidth width_;
  std::map<TransferId, uint64_t> under_way_;  // Bytes of their images.
  uint64_t bytes_ = 0;                        // Theirs.
  std::deque<Transfer> urgent_;
  std::deque<Transfer> others_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_TRANSFER_QUEUE_H_
