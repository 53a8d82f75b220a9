#ifndef HOIST_DAEMON_MOVER_DEVICE_HASH_H_
#define HOIST_DAEMON_MOVER_DEVICE_HASH_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/sha256.h"
#include "daemon/base/threads.h"
#include "daemon/link/link.h"
#include "daemon/model/published_group.h"
#include "daemon/model/tensor.h"
#include "hoist/shared/mapping.h"

namespace hoistd {

// Buffers for reads back from a device: allocated on first use and kept, since
// registering memory takes driver locks.
//
// Threads:  thread-safe.
// Owns:     the memory, registered. Borrows the device.
class ReadMemory {
 public:
  static constexpr size_t kReaders = 2;
  static constexpr uint64_t kChunkBytes = uint64_t{4} << 20;

  explicit ReadMemory(Device& device) : device_(device) {}
  ReadMemory(const ReadMemory&) = delete;
  ReadMemory& operator=(const ReadMemory&) = delete;
  ~ReadMemory();

  // kReaders chunks in a row. May take milliseconds.
  absl::StatusOr<std::span<std::byte>> Get() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Device& device_;
  absl::Mutex mu_;
  std::optional<hoist::Mapping> memory_ ABSL_GUARDED_BY(mu_);
};

// Hashes a group's content on a device: reads it back over the device's link,
// chunk by chunk.
//
// Threads:  thread-safe; the executor's threads hash.
// Owns:     itself, until it has reported.
// Bounds:   only ReadMemory's chunks of the image are on the host.
class DeviceHash : public std::enable_shared_from_this<DeviceHash> {
 public:
  using Report = absl::AnyInvocable<void(absl::StatusOr<Content>)>;

  struct Parts {
    Link* link = nullptr;
    Executor* executor = nullptr;
    ReadMemory* memory = nullptr;  // Used by it alone until it reports.
    GroupKey key;                  // For recordings.
  };

  DeviceHash(const Parts& parts, std::shared_ptr<const Group> group,
             uint64_t device_offset, Report report);

  // To be called once. `report` runs once, on a thread of the executor.
  void Start();

 private:
  // Reads pieces in sequence.
  struct Reader {
    std::span<std::byte> chunk;
    size_t piece = 0;
    uint64_t at = 0;    // In the image.
    uint64_t left = 0;  // In the piece.
    std::optional<Sha256> hash;
  };

  void Begin();
  void Next(Reader& reader);
  bool TakePiece(Reader& reader);
  void Arrived(Reader& reader, uint64_t bytes, const absl::Status& status);
  // A reader has ended.
  void Leave(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  const Parts parts_;
  const std::shared_ptr<const Group> group_;
  const uint64_t device_offset_;
  const ContentPlan plan_;
  std::vector<Content> digests_;  // Each written by one thread.
  std::array<Reader, ReadMemory::kReaders> readers_;
  std::atomic<size_t> next_ = 0;
  absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  size_t left_ ABSL_GUARDED_BY(mu_) = ReadMemory::kReaders;
  Report report_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_DEVICE_HASH_H_
