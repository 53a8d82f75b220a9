#ifndef HOIST_DAEMON_MOVER_ROAD_H_
#define HOIST_DAEMON_MOVER_ROAD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "daemon/core/transfer.h"
#include "daemon/terms/ids.h"

namespace hoistd {

// How many transfers are on a road at once: as many as its width, and more of
// those that are over at once.
struct RoadWidth {
  int width = 1;
  // So many, as long as the images of all together are no larger than
  // kSmallBytes.
  int of_small = 0;
};

// Transfers that take turns on one road: urgent ones first, else in order.
//
// Threads: one at a time.
class Road {
 public:
  static constexpr uint64_t kSmallBytes = uint64_t{8} << 20;

  explicit Road(RoadWidth width) : width_(width) {}

  void Add(Transfer transfer);
  // Moves a waiting transfer to the urgent ones; otherwise nothing happens.
  void Hurry(TransferId id);
  // The next to start, if the road has room; it then counts as under way.
  std::optional<Transfer> Next();
  // One that was under way is over.
  void Finished(TransferId id);
  bool idle() const {
    return under_way_.empty() && urgent_.empty() && others_.empty();
  }

 private:
  bool HasRoomFor(const Transfer& transfer) const;

  const RoadWidth width_;
  std::map<TransferId, uint64_t> under_way_;  // Bytes of their images.
  uint64_t bytes_ = 0;                        // Theirs.
  std::deque<Transfer> urgent_;
  std::deque<Transfer> others_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_ROAD_H_
