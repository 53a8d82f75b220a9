// Carries out core's transfers: moves bytes between files, the spill store, the
// host pool and the devices.
//
// Each kind of transfer has a queue with a bound on transfers in progress:
// enough to keep its hardware busy, few enough that urgent transfers soon
// overtake prefetches.
#ifndef HOIST_DAEMON_MOVER_MOVER_H_
#define HOIST_DAEMON_MOVER_MOVER_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/base/threads.h"
#include "daemon/core/transfer.h"
#include "daemon/io/source_file.h"
#include "daemon/io_helper/io_helpers.h"
#include "daemon/link/link.h"
#include "daemon/mover/device_hash.h"
#include "daemon/mover/image_copy.h"
#include "daemon/mover/transfer_queue.h"
#include "daemon/store/spill_store.h"
#include "daemon/trace/recorder.h"
#include "daemon/types/ids.h"
#include "daemon/types/io_engine.h"
#include "hoist/shared/mapping.h"

namespace hoistd {

// A model's open files, as SheetRange::file counts them; shared with other
// models of the owner that use them.
using SourceFiles = std::vector<std::shared_ptr<const SourceFile>>;

struct MoverParts {
  std::span<std::byte> host;      // The host pool.
  std::span<std::byte> in_place;  // Span of in-place memory, if any.
  std::span<std::byte> pageable;  // Behind the pool, if any.
  // Makes the pages of a part of it, before the first byte goes there; may
  // block. nullptr: they are there.
  std::function<absl::Status(std::span<std::byte>)> make_pages;
  IoEngine* io = nullptr;
  IoHelpers* io_helpers = nullptr;  // nullptr: no file is parked.
  SpillStore* store = nullptr;      // nullptr: nothing spills.
  std::vector<Link*> links;         // One per device.
  Threads* threads = nullptr;       // nullptr: the system's.
  int copy_threads = 0;             // 0: by the machine's CPUs.
  TraceRecorder* trace = nullptr;   // nullptr: no recording.
};

// Threads:  all calls from one thread (the engine's). `on_done` is called once
//           per transfer, from any thread, and must not block.
// Owns:     the models' files. Borrows the parts.
// Bounds:   kReadsUnderWay groups from disk, or kSmallReadsUnderWay small ones
//           (TransferQueue); of files that may hang, per owner as many as
//           helpers read at once; kImagesUnderWay images to clients and to and
//           from pageable memory; from clients as many as there are threads
//           for their pieces; the link bounds copies to devices; one image read
//           back from a device, through ReadMemory, kept for each device once
//           it was checked.
class Mover {
 public:
  static constexpr int kReadsUnderWay = 8;
  static constexpr int kSmallReadsUnderWay = 64;
  static constexpr int kSpillsUnderWay = 2;
  static constexpr int kImagesUnderWay = 2;

  using OnDone =
      absl::AnyInvocable<void(TransferId, absl::Status, const TransferResult&)>;

  Mover(MoverParts parts, OnDone on_done);
  // To be called first, and once. StartThread's errors.
  absl::Status StartThreads();
  ~Mover();  // Waits for its threads; all else must be over.

  void AddFiles(ModelId model, std::shared_ptr<const SourceFiles> files);
  // Files close after their last read.
  void DropFiles(ModelId model);

  void Start(Transfer transfer);
  // The transfer has a waiter now.
  void Hurry(TransferId id);
  // Must be called once per `on_done`, on the calling thread: frees its place
  // in the queue. `failed` and `ended`, if known, are for recordings.
  void Finished(TransferId id, bool failed = false,
                absl::Time ended = absl::InfinitePast());
  void Unspill(SpillId id);

 private:
  // mover_trace.cc
  void TraceBegin(const Transfer& transfer);
  void TraceEnd(TransferId id, bool failed, absl::Time ended);

  TransferQueue& QueueOf(const Transfer& transfer);
  void Run(const Transfer& transfer);
  void Carry(const Transfer& transfer, const FilesToHost& way);
  void ReadParked(const Transfer& transfer, const FilesToHost& way, User owner);
  void Carry(const Transfer& transfer, const SpillToHost& way);
  void Carry(const Transfer& transfer, const ClientToHost& way);
  void Carry(const Transfer& transfer, const CheckOnHost& way);
  void Carry(const Transfer& transfer, const CheckOnDevice& way);
  void Carry(const Transfer& transfer, const CheckOnPageable& way);
  void Carry(const Transfer& transfer, const CheckOnDisk& way);
  void Carry(const Transfer& transfer, const HostToSpill& way);
  void Carry(const Transfer& transfer, const HostToDevice& way);
  void Carry(const Transfer& transfer, const InPlaceToDevice& way);
  void Carry(const Transfer& transfer, const HostToClient& way);
  void Carry(const Transfer& transfer, const HostToPageable& way);
  void Carry(const Transfer& transfer, const PageableToHost& way);
  void CopyInMemory(TransferId id, std::span<const std::byte> from,
                    std::span<std::byte> to);
  void CopyIn(const Transfer& transfer, DeviceIndex device,
              std::vector<HostRun> runs);
  void Hash(const Transfer& transfer, std::span<const std::byte> image,
            std::shared_ptr<hoist::Mapping> held);
  void Report(TransferId id, absl::Status status, TransferResult result = {});
  std::span<std::byte> HostOf(const Transfer& transfer, uint64_t offset) const;
  // Of an image that is to begin at `to_offset`.
  std::vector<HostRun> RunsOf(const ImageRanges& ranges,
                              uint64_t to_offset) const;

  const MoverParts parts_;
  OnDone on_done_;
  absl::flat_hash_map<ModelId, std::shared_ptr<const SourceFiles>> files_;
  TransferQueue reads_;
  std::map<User, TransferQueue>
      parked_reads_;  // By owner; those that are not idle.
  TransferQueue spills_;
  TransferQueue receives_;
  TransferQueue checks_;
  TransferQueue device_checks_;
  TransferQueue images_;
  absl::flat_hash_map<TransferId, TransferQueue*> queue_of_;
  absl::flat_hash_map<TransferId, Link*> link_of_;
  // Recorded transfers in progress.
  absl::flat_hash_map<TransferId, TraceEvent> traced_;
  std::vector<std::unique_ptr<ReadMemory>> read_memory_;  // One per device.
  std::unique_ptr<Executor> receivers_;
  // Separate from receivers_: these have waiters.
  std::unique_ptr<Executor> copy_threads_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_MOVER_H_
