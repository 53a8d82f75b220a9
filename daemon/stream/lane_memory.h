// A lane's shared memory, and the words in it.
#ifndef HOIST_DAEMON_STREAM_LANE_MEMORY_H_
#define HOIST_DAEMON_STREAM_LANE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/stream/streamer.h"
#include "daemon/types/device.h"
#include "hoist/shared/lane_layout.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// The client may write all of it at any time, so nothing here is trusted: all
// decisive state is kept elsewhere, and a look reads each word once.
//
// Threads:  one at a time, beside the client's processes and the device.
// Owns:     the memfd, its mapping and registration, the eventfd. Borrows the
//           device.
class LaneMemory {
 public:
  // ResourceExhausted: no memory or descriptors.
  static absl::StatusOr<std::unique_ptr<LaneMemory>> Create(
      Device& device, uint32_t groups, uint32_t order_length);
  // The memory of the last hoistd's lane of this many groups and positions.
  // InvalidArgument: it is none, or cannot be resumed; a lane of another
  // version then has that as its fault.
  static absl::StatusOr<std::unique_ptr<LaneMemory>> Adopt(
      Device& device, LaneShare found, uint32_t groups, uint32_t order_length);
  LaneMemory(const LaneMemory&) = delete;
  LaneMemory& operator=(const LaneMemory&) = delete;
  // No copy stream may still have to write a word of it.
  ~LaneMemory();

  // New descriptors for the client at each call.
  absl::StatusOr<LaneShare> Share() const;
  int wake_fd() const { return wake_.get(); }
  // Whether another hoistd served it before.
  bool adopted() const { return adopted_; }

  hoist::lane::Header& header() const {
    return *reinterpret_cast<hoist::lane::Header*>(mapping_.data());
  }
  hoist::lane::GroupWords& group(uint32_t index) const {
    return reinterpret_cast<hoist::lane::GroupWords*>(
        mapping_.data() + hoist::lane::GroupsOffset())[index];
  }
  // The request with number `count`, from 0.
  hoist::lane::Request ReadRequest(uint32_t count) const;

  // Stores; on an emulated device also wakes sleepers on the word.
  void Store(hoist::lane::Word& word, uint32_t value) const;
  // Wakes sleepers on the word.
  void Wake(hoist::lane::Word& word) const;
  // For the client: writes the text first, then the code.
  void WriteFault(const absl::Status& fault);

 private:
  LaneMemory(Device& device, hoist::UniqueFd memory, hoist::UniqueFd wake,
             hoist::Mapping mapping, uint32_t groups);
  absl::Status CheckVersion();
  absl::Status Register();

  Device& device_;
  hoist::UniqueFd memory_;
  hoist::UniqueFd wake_;
  hoist::Mapping mapping_;
  const uint32_t groups_;
  const bool sleepers_;  // CPUs wait for words with FUTEX_WAIT.
  bool adopted_ = false;
  bool registered_ = false;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STREAM_LANE_MEMORY_H_
