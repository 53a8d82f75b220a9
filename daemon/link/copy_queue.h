// Copies to one device that are in flight.
#ifndef HOIST_DAEMON_LINK_COPY_QUEUE_H_
#define HOIST_DAEMON_LINK_COPY_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
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
    absl::Time ended = absl::InfiniteFuture();  // At the latest, as is known.
    std::vector<TracedPart> parts;              // As LinkPiece's.
  };

  static absl::StatusOr<std::unique_ptr<CopyQueue>> Create(Device& device);
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;
  ~CopyQueue();

  // The piece will be among those that ended. After an error too: some of it
  // may be in flight, without its words.
  absl::Status Add(LinkParty party, LinkPiece piece, absl::Time now);
  // For a recording: pieces before the last one ended at `ended`, which began
  // at `began`.
  void Note(absl::Time ended, absl::Time began);
  // Takes pieces that ended since the last call, oldest first.
  std::vector<Queued> Ended();
  // As Ended() for all remaining pieces: after an error of the device.
  std::vector<Queued> GiveUp();
  absl::Status Health() { return copies_->Health(); }
  // Pieces not taken yet.
  int under_way() const { return static_cast<int>(pieces_.size()); }
  // Of those, the ones that have not ended.
  int running() const { return static_cast<int>(last_ - Reached()); }

 private:
  using Word = std::atomic<uint32_t>;

  CopyQueue(Device& device, hoist::Mapping page)
      : device_(device), page_(std::move(page)) {}

  // The number of the last piece that ended.
  uint64_t Reached() const;

  Device& device_;
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
