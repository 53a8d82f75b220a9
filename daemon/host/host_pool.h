// The host tier's memory: one pool that only the daemon pins.
#ifndef HOIST_DAEMON_HOST_HOST_POOL_H_
#define HOIST_DAEMON_HOST_HOST_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/base/clock.h"
#include "daemon/base/timed_cond_var.h"
#include "daemon/types/device.h"
#include "daemon/types/huge_pages.h"
#include "hoist/shared/mapping.h"
#include "hoist/shared/unique_fd.h"

namespace hoistd {

struct HostPoolOptions {
  uint64_t bytes = 0;  // A multiple of 2 MiB; not 0.
  // The first piece is small, so that the first stage is served early.
  uint64_t first_piece_bytes = uint64_t{256} << 20;
  // A driver pins about 1 GiB in 40 to 90 ms with its locks held. Half of that
  // keeps others' calls below 50 ms.
  uint64_t piece_bytes = uint64_t{512} << 20;
  // During copies to devices: 1 to 3 ms, of which queued copies hide 1.2.
  uint64_t shy_piece_bytes = uint64_t{32} << 20;
  int touch_threads = 4;
  PageKind best_pages = PageKind::kTransparent;  // That it may have.
  // `memory` was brought up by an earlier daemon.
  bool found = false;
};

// One memfd, mapped for writing. With a CUDA device it is brought up in the
// background, piece by piece from its start: several threads touch pages, and
// one registers touched pieces. With emulated devices alone all of it is ready
// at once, and pages are allocated on write.
//
// Bring-up yields to copies. It pins during the part of the time that they do
// not need, and at least during kLeastPart of it, in small pieces with pauses.
// Meanwhile the same part of the threads touches pages, at least a quarter of
// them, and at most kShyPiecesAhead pieces ahead.
//
// Found memory is ready at once, too: its bytes need not be read again. A copy
// from it to a device first pins its part (Pin), which in total is faster than
// an unpinned copy.
//
// Threads:  thread-safe. Bring-up runs on threads of its own, joined on
//           destruction.
// Owns:     the memory. Borrows the devices, which outlive it.
// Bounds:   options.bytes; it never grows past them.
class HostPool {
 public:
  using OnGrown = absl::AnyInvocable<void(uint64_t ready_bytes)>;
  // From 0 to 1: the part of the time that copies to devices need now.
  // Thread-safe.
  using Demand = std::function<double()>;
  // Gets problems, for the log and `status`.
  using OnNote = absl::AnyInvocable<void(std::string)>;

  static constexpr double kLeastPart = 0.05;
  static constexpr uint64_t kShyPiecesAhead = 8;

  // InvalidArgument: a size is 0 or not a multiple of 2 MiB, or not `memory`'s.
  static absl::StatusOr<std::unique_ptr<HostPool>> Create(
      const HostPoolOptions& options, std::vector<Device*> devices,
      const hoist::UniqueFd& memory);
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;
  // Stops bring-up after the current piece, and unregisters.
  ~HostPool();

  // Begins bring-up; call once. A pool thread calls `on_grown` after each new
  // piece; for a pool that is ready already, Start calls it, once. `on_note` is
  // called likewise; Start reports problems from Create. Neither is called
  // after the destructor begins to return.
  absl::Status Start(OnGrown on_grown, Demand demand, OnNote on_note);
  // How long bring-up leaves the driver to others after a piece that took
  // `took`.
  static absl::Duration PauseAfter(absl::Duration took, double demand);
  // Registers the unregistered shy pieces of found memory that overlap
  // `memory`; waits for those under way. No effect for other memory.
  void Pin(std::span<const std::byte> memory) ABSL_LOCKS_EXCLUDED(mu_);

  // [0, ready_bytes()) is usable; bytes() is the final size.
  uint64_t ready_bytes() const ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t bytes() const { return options_.bytes; }
  // As of Create; found memory may be older than what the kernel offers now.
  PageKind pages() const { return pages_; }
  // Bytes that could not be pinned, summed over devices.
  uint64_t unpinned_bytes() const { return unpinned_bytes_; }
  // The whole pool, ready or not.
  std::span<std::byte> span() const { return memory_.span(); }
  std::byte* Address(uint64_t offset) const { return memory_.data() + offset; }

 private:
  HostPool(const HostPoolOptions& options, std::vector<Device*> devices,
           hoist::Mapping memory, PageKind pages, std::string note);

  // `thread`: its number; during copies the highest ones rest.
  void Touch(int thread) ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the next bytes to touch; empty: none are left.
  std::span<std::byte> TakeStep(int thread) ABSL_LOCKS_EXCLUDED(mu_);
  void Touched(std::span<std::byte> step) ABSL_LOCKS_EXCLUDED(mu_);
  void Register() ABSL_LOCKS_EXCLUDED(mu_);
  void RegisterFound() ABSL_LOCKS_EXCLUDED(mu_);
  // Registers up to `most` contiguous unclaimed bytes of found memory in
  // [begin, end). False: none are left.
  bool RegisterSome(uint64_t begin, uint64_t end, uint64_t most)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until the piece after `registered` is touched. Its bytes, or 0 to
  // stop.
  uint64_t WaitForPiece(uint64_t registered) ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t SizeOfNext(uint64_t registered) const;
  bool IsShy() const;
  bool Yield(absl::Duration pause) ABSL_LOCKS_EXCLUDED(mu_);
  void RegisterPiece(std::span<std::byte> piece) ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t ShyPieces() const;

  const HostPoolOptions options_;
  const std::vector<Device*> devices_;  // CUDA's alone.
  const hoist::Mapping memory_;
  const PageKind pages_;
  const std::string note_;  // Of Create; or empty.
  OnGrown on_grown_;        // Only the registering thread, once started.
  Demand demand_;           // Set before threads start.

  struct Registration {
    Device* device;
    std::span<std::byte> memory;
  };

  const MonotonicClock clock_;
  absl::Mutex note_mu_;
  mutable absl::Mutex mu_;
  TimedCondVar changed_;
  uint64_t next_touch_ ABSL_GUARDED_BY(mu_) = 0;  // Taken up to here.
  uint64_t touched_ ABSL_GUARDED_BY(mu_) = 0;     // All up to here.
  // Touched ranges beyond touched_: begin to end.
  std::map<uint64_t, uint64_t> touched_later_ ABSL_GUARDED_BY(mu_);
  uint64_t ready_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Registered pieces and their devices, in order.
  std::vector<Registration> registered_ ABSL_GUARDED_BY(mu_);
  OnNote on_note_ ABSL_GUARDED_BY(note_mu_);
  // Found memory, by shy piece.
  enum class Pinned : uint8_t { kNo, kBusy, kYes };
  std::vector<Pinned> pinned_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> unpinned_bytes_ = 0;
  std::atomic<bool> all_pinned_ = true;  // There is nothing for Pin to do.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_HOST_HOST_POOL_H_
