// The memory that a lane is made of, and the words in it.
#ifndef HOIST_DAEMON_STREAM_LANE_MEMORY_H_
#define HOIST_DAEMON_STREAM_LANE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/stream/streamer.h"
#include "daemon/terms/device.h"
#include "hoist/shared/lane_layout.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

// The client may write all of it at any time, so nothing here is believed: what
// decides anything is kept elsewhere, and each word is read once a look.
//
// Threads:  one at a time, beside the client's processes and the device.
// Owns:     the memfd, its mapping and registration, the eventfd. Borrows the
//           device.
class LaneMemory {
 public:
  // ResourceExhausted: no memory or descriptors.
  static absl::StatusOr<std::unique_ptr<LaneMemory>> Create(
      Device& device, uint32_t groups, uint32_t order_length);
  // What the last hoistd's lane of so many groups and positions was made of.
  // InvalidArgument: it is none, or one that cannot be gone on with; one of
  // another version has that as its fault then.
  static absl::StatusOr<std::unique_ptr<LaneMemory>> Adopt(
      Device& device, LaneShare found, uint32_t groups, uint32_t order_length);
  LaneMemory(const LaneMemory&) = delete;
  LaneMemory& operator=(const LaneMemory&) = delete;
  // No copy stream may have a word of it to write.
  ~LaneMemory();

  // Descriptors for the client, new ones each time.
  absl::StatusOr<LaneShare> Share() const;
  int wake_fd() const { return wake_.get(); }
  // Whether somebody else served it before.
  bool adopted() const { return adopted_; }

  hoist::lane::Header& header() const {
    return *reinterpret_cast<hoist::lane::Header*>(mapping_.data());
  }
  hoist::lane::GroupWords& group(uint32_t index) const {
    return reinterpret_cast<hoist::lane::GroupWords*>(
        mapping_.data() + hoist::lane::GroupsOffset())[index];
  }
  // The request that `count` others came before.
  hoist::lane::Request ReadRequest(uint32_t count) const;

  // Stores, and on the emulated device wakes whoever sleeps on the word.
  void Store(hoist::lane::Word& word, uint32_t value) const;
  // What sleeps on the word looks again.
  void Wake(hoist::lane::Word& word) const;
  // For the client to read: the text first, then the code.
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
  const bool sleepers_;  // CPUs wait for words, with FUTEX_WAIT.
  bool adopted_ = false;
  bool registered_ = false;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STREAM_LANE_MEMORY_H_
