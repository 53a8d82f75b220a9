// Carries out what core decided: it moves bytes between files, the spill store,
// the host pool and the devices.
//
// Each kind of road has a queue with a bound on what is under way: enough to
// keep the road busy, few enough that what a worker waits for overtakes what
// was only prefetched.
#ifndef HOIST_DAEMON_MOVER_MOVER_H_
#define HOIST_DAEMON_MOVER_MOVER_H_

#include <cstddef>
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
#include "daemon/errand/errands.h"
#include "daemon/io/source_file.h"
#include "daemon/link/link.h"
#include "daemon/mover/device_hash.h"
#include "daemon/mover/image_copy.h"
#include "daemon/mover/road.h"
#include "daemon/store/spill_store.h"
#include "daemon/terms/ids.h"
#include "daemon/terms/io_engine.h"
#include "daemon/trace/recorder.h"
#include "hoist/shared/mapping.h"

namespace hoistd {

// A model's open files, as SourceRun::file counts them; shared with its owner's
// other models that are read from them.
using SourceFiles = std::vector<std::shared_ptr<const SourceFile>>;

struct MoverParts {
  std::span<std::byte> host;      // The host pool.
  std::span<std::byte> in_place;  // The span of what is read in place, if any.
  IoEngine* io = nullptr;
  Errands* errands = nullptr;      // nullptr: no file is parked.
  SpillStore* store = nullptr;     // nullptr: nothing spills.
  std::vector<Link*> links;        // One a device.
  Threads* threads = nullptr;      // nullptr: the system's.
  int copy_threads = 0;            // 0: by the machine's CPUs.
  TraceRecorder* trace = nullptr;  // nullptr: nothing is recorded.
};

// Threads:  all calls from one thread (the engine's). `on_done` is called once
//           a transfer, from any thread, and must not block.
// Owns:     the models' files. Borrows the parts.
// Bounds:   kReadsUnderWay groups from disk, or kSmallReadsUnderWay small ones
//           (Road); of files that may hang as many of each owner as errands
//           read at once; kImagesUnderWay images to clients, as many from
//           clients as there are threads for them; what goes to a device its
//           link bounds; one image that is read back from a device, through
//           ReadMemory, which each device has once it was checked.
class Mover {
 public:
  static constexpr int kReadsUnderWay = 8;
  static constexpr int kSmallReadsUnderWay = 64;
  static constexpr int kSpillsUnderWay = 2;
  static constexpr int kImagesUnderWay = 2;

  using OnDone =
      absl::AnyInvocable<void(TransferId, absl::Status, const TransferResult&)>;

  Mover(MoverParts parts, OnDone on_done);
  ~Mover();  // Waits for what its threads do; the rest must be over.

  void AddFiles(ModelId model, std::shared_ptr<const SourceFiles> files);
  // They close when no read uses them any more.
  void DropFiles(ModelId model);

  void Start(Transfer transfer);
  // A stage waits for it now.
  void Hurry(TransferId id);
  // Must be called once for each `on_done`, on the calls' thread: room for the
  // next one. `failed` and `ended`, where it is known, are for recordings.
  void Finished(TransferId id, bool failed = false,
                absl::Time ended = absl::InfinitePast());
  void Unspill(SpillId id);

 private:
  // mover_trace.cc
  void TraceBegin(const Transfer& transfer);
  void TraceEnd(TransferId id, bool failed, absl::Time ended);

  Road& RoadOf(const Transfer& transfer);
  void Run(const Transfer& transfer);
  void Carry(const Transfer& transfer, const FilesToHost& way);
  void ReadParked(const Transfer& transfer, const FilesToHost& way, User owner);
  void Carry(const Transfer& transfer, const SpillToHost& way);
  void Carry(const Transfer& transfer, const ClientToHost& way);
  void Carry(const Transfer& transfer, const CheckOnHost& way);
  void Carry(const Transfer& transfer, const CheckOnDevice& way);
  void Carry(const Transfer& transfer, const CheckOnDisk& way);
  void Carry(const Transfer& transfer, const HostToSpill& way);
  void Carry(const Transfer& transfer, const HostToDevice& way);
  void Carry(const Transfer& transfer, const InPlaceToDevice& way);
  void Carry(const Transfer& transfer, const HostToClient& way);
  void CopyIn(const Transfer& transfer, DeviceIndex device, uint64_t offset,
              const std::vector<ImagePart>& parts);
  void Hash(const Transfer& transfer, std::span<const std::byte> image,
            std::shared_ptr<hoist::Mapping> held);
  void Report(TransferId id, absl::Status status, TransferResult result = {});
  std::span<std::byte> HostOf(const Transfer& transfer, uint64_t offset) const;
  // Where they lie.
  std::vector<ImagePart> PartsOf(const ImageRanges& ranges) const;

  const MoverParts parts_;
  OnDone on_done_;
  absl::flat_hash_map<ModelId, std::shared_ptr<const SourceFiles>> files_;
  Road reads_;
  std::map<User, Road> parked_reads_;  // By owner; those that are not idle.
  Road spills_;
  Road receives_;
  Road checks_;
  Road device_checks_;
  Road images_;
  absl::flat_hash_map<TransferId, Road*> road_of_;
  absl::flat_hash_map<TransferId, Link*> link_of_;
  // Those under way that are recorded.
  absl::flat_hash_map<TransferId, TraceEvent> traced_;
  std::vector<std::unique_ptr<ReadMemory>> read_memory_;  // One a device.
  std::unique_ptr<Executor> receivers_;
  // Not the former: somebody waits for these.
  std::unique_ptr<Executor> copiers_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_MOVER_MOVER_H_
