// Copies to one device that are in flight.
#ifndef HOIST_DAEMON_LINK_COPY_QUEUE_H_
#define HOIST_DAEMON_LINK_COPY_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/link/link_customer.h"
#include "daemon/plan/link_share.h"
#include "daemon/types/device.h"
#include "hoist/shared/mapping.h"

namespace hoistd {

// One stream: copies on two would share the link and end together, leaving a
// ring of two slots empty meanwhile (measured: 90 % of the link with 16 MiB
// groups). Ends are detected by polling a word that no other process can write.
//
// Threads:  one at a time.
// Owns:     the stream and a page with the word. Destroying it waits for them.
class CopyQueue {
 public:
  // A queued piece and its party.
  struct Queued {
    LinkParty party;
    uint64_t bytes = 0;
    absl::Time queued = absl::InfinitePast();
    std::vector<TracedPart> parts;  // As LinkPiece's.
  };

  // Called with the source just before its copy. nullptr: no call.
  using BeforeCopy = std::function<void(std::span<const std::byte>)>;

  static absl::StatusOr<std::unique_ptr<CopyQueue>> Create(
      Device& device, BeforeCopy before_copy);
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;
  ~CopyQueue();

  // On an error the piece is not queued, or queued without its words, as
  // `queued` says. A queued piece will be among those that ended.
  absl::Status Add(LinkParty party, LinkPiece piece, absl::Time now,
                   bool& queued);
  // Takes pieces that ended since the last call, oldest first.
  std::vector<Queued> Ended();
  // As Ended() for all remaining pieces: after an error of the device.
  std::vector<Queued> GiveUp();
  absl::Status Health() { return copies_->Health(); }
  int under_way() const { return static_cast<int>(pieces_.size()); }

 private:
  using Word = std::atomic<uint32_t>;

  CopyQueue(Device& device, hoist::Mapping page, BeforeCopy before_copy)
      : device_(device),
        before_copy_(std::move(before_copy)),
        page_(std::move(page)) {}

  Device& device_;
  const BeforeCopy before_copy_;
  hoist::Mapping page_;
  bool registered_ = false;
  // The number of the last piece that ended: written by the stream, cut to 32
  // bits; or, if it could not, by its thread.
  Word* by_stream_ = nullptr;
  std::atomic<uint64_t> by_thread_ = 0;
  uint64_t last_ = 0;  // Number of the last piece queued.
  uint64_t ended_ = 0;
  std::deque<Queued> pieces_;
  std::unique_ptr<CopyStream> copies_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_LINK_COPY_QUEUE_H_
