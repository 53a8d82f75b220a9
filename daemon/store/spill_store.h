#ifndef HOIST_DAEMON_STORE_SPILL_STORE_H_
#define HOIST_DAEMON_STORE_SPILL_STORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/base/task_threads.h"
#include "daemon/store/model_roll.h"
#include "daemon/store/segment_dir.h"
#include "daemon/store/spill_scan.h"
#include "daemon/store/spill_types.h"
#include "daemon/types/io_engine.h"

namespace hoistd {

// The disk tier of published images: one checksummed segment file an image,
// which says what it is of. The directory is the catalogue.
//
// An image is there once its `done` has said so, and then also after a power
// cut. If the daemon is stopped before, it is there after the next start, or
// nothing of it is. Every byte that Get delivers has been compared with its
// checksum, and everything that List says as well.
//
// Threads:  thread-safe. Callbacks come from a thread of the store, with no
//           lock held, once each; they must not block. One thread of its own
//           uses the directory, others take checksums.
// Owns:     the directory, locked against other stores. Borrows the engine.
//           The destructor waits for what was asked for.
// Bounds:   `capacity_bytes` of segment files, lost ones included.
// Restart:  everything is on the disk.
class SpillStore {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  using PutDone = absl::AnyInvocable<void(absl::StatusOr<SpillId>)>;

  // Sees to what a crash or damage left, and says so in notes(): neither
  // damaged images nor a full disk keep it from opening (spill_scan.h).
  // FailedPrecondition: the directory is in use, or a newer hoistd's.
  static absl::StatusOr<std::unique_ptr<SpillStore>> Open(
      const SpillOptions& options, IoEngine& io);
  ~SpillStore();

  // `image` has `meta->group.image_bytes` bytes, is 4 KiB aligned, and stays
  // as it is until `done`. ResourceExhausted: no room in the capacity or on
  // the disk. After any error nothing is left of it.
  void Put(std::shared_ptr<const SpillMeta> meta,
           std::span<const std::byte> image, PutDone done)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Fills `to`, of the image's size. NotFound. DataLoss: the image is damaged,
  // and now in quarantine; `to` has no bytes to be used after any error.
  void Get(SpillId id, std::span<std::byte> to, Done done)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Reads the image whole and compares it as Get does, delivering nothing. One
  // image at a time, in 16 MiB and its header. NotFound. DataLoss: it is
  // damaged, and in quarantine, now or since before.
  void Verify(SpillId id, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // Frees a quarantined image too, and works on a full disk. NotFound.
  void Remove(SpillId id, Done done) ABSL_LOCKS_EXCLUDED(mu_);

  // A published model has so many groups by now, of which some may never be
  // put; 0: it is forgotten. Written as soon as the disk lets it; nobody is
  // told.
  void NoteModel(User owner, std::string model, uint32_t groups)
      ABSL_LOCKS_EXCLUDED(mu_);
  // How many those were when the store was opened: what List() lacks of them,
  // no disk had.
  const ModelRoll::Models& models() const { return models_; }

  // By id, quarantined ones too.
  std::vector<SpillRecord> List() const ABSL_LOCKS_EXCLUDED(mu_);
  SpillUsage usage() const ABSL_LOCKS_EXCLUDED(mu_);
  // What was wrong at Open: every image whose file is there and which is not in
  // List() is named here, or counted in the last of very many.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct PutJob;
  struct GetJob;

  SpillStore(const SpillOptions& options, IoEngine& io, SegmentDir dir,
             SpillScan found, ModelRoll roll);

  absl::Status CheckPut(const SpillMeta& meta,
                        std::span<const std::byte> image) const;
  // Books the bytes and the id. ResourceExhausted.
  absl::StatusOr<SpillId> Reserve(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void StartPut(std::shared_ptr<PutJob> job);
  void WriteHeader(std::shared_ptr<PutJob> job);
  void Publish(std::shared_ptr<PutJob> job);
  void FinishPut(const std::shared_ptr<PutJob>& job, absl::Status status)
      ABSL_LOCKS_EXCLUDED(mu_);

  // An image that can be read. NotFound. DataLoss: in quarantine.
  absl::StatusOr<StoredImage> FindSound(SpillId id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  void StartGet(std::shared_ptr<GetJob> job);
  void StartVerify(std::shared_ptr<GetJob> job);
  void CheckHeader(std::shared_ptr<GetJob> job);
  void ReadBlocks(std::shared_ptr<GetJob> job);
  void VerifyFrom(std::shared_ptr<GetJob> job, uint64_t at);
  void FinishGet(std::shared_ptr<GetJob> job, const absl::Status& status);
  void EndGet(const std::shared_ptr<GetJob>& job, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns what the caller of Get is told.
  absl::Status Quarantine(SpillId id, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status DoRemove(SpillId id) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls back on the desk; for answers that are known at once.
  void Answer(Done done, absl::Status status);
  void Begin() ABSL_LOCKS_EXCLUDED(mu_);
  void End() ABSL_LOCKS_EXCLUDED(mu_);

  const SpillOptions options_;
  IoEngine& io_;
  SegmentDir dir_;  // The desk's alone, once open.
  ModelRoll roll_;  // The desk's alone, once open.
  const ModelRoll::Models models_;
  const uint64_t lost_bytes_;
  std::vector<std::string> notes_;  // Unchanged, once open.

  mutable absl::Mutex mu_;
  std::map<SpillId, StoredImage> images_ ABSL_GUARDED_BY(mu_);
  uint64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t under_way_ ABSL_GUARDED_BY(mu_) = 0;
  // The first is under way. Each is shared with the steps that it is in.
  std::deque<std::shared_ptr<GetJob>> verifying_ ABSL_GUARDED_BY(mu_);

  TaskThreads hashers_;
  TaskThreads desk_;
};

}  // namespace hoistd

#endif  // HOIST_DAEMON_STORE_SPILL_STORE_H_
