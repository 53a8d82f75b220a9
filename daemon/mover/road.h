#ifndef HOIST_DAEMON_MOVER_ROAD_H_
#define HOIST_DAEMON_MOVER_ROAD_H_

#include <deque>
#include <optional>

#include "daemon/core/transfer.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// Transfers that take turns on one road: urgent ones first, else in order, at
// most `width` at once.
//
// Threads: one at a time.
class Road {
 public:
  explicit Road(int width) : width_(width) {}

  void Add(Transfer transfer);
  // Moves a waiting transfer to the urgent ones; otherwise nothing happens.
  void Hurry(TransferId id);
  // The next to start, if the road has room; it then counts as under way.
  std::optional<Transfer> Next();
  // One that was under way is over.
  void Finished();
  bool idle() const {
    return under_way_ == 0 && urgent_.empty() && others_.empty();
  }

 private:
  const int width_;
  int under_way_ = 0;
  std::deque<Transfer> urgent_;
  std::deque<Transfer> others_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_ROAD_H_
